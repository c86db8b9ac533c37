import pytest
import torch
from torch.distributions import Normal

import latentcal as lc
from latentcal.flows import Kind, LinearGaussianFlow
from latentcal.outputs import (
    AtomChance,
    ChainFlow,
    ChainModel,
    GridModel,
    OutputLaw,
    close,
    dequantize,
    fit_mixed,
)
from uniformity import distance_to_uniform, uniform_limit

KINDS = ["positive + 0", "real + 0 + 2", "count + 0", "unit + 0 + 1"]


def _rows(generator, n):
    """Outputs with atoms below, within and at both ends of their supports, and a count with many zeros."""
    x = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    rain = torch.where(noise[:, 0] + x[:, 0] > 0, torch.exp(0.5 * noise[:, 1]), 0.0)
    level = torch.where(noise[:, 2] > 0.8, 0.0, torch.where(noise[:, 2] < -1, 2.0, x[:, 0] + noise[:, 3]))
    visits = torch.poisson(torch.exp(0.4 + 0.3 * x[:, 0]), generator=generator)
    visits = torch.where(noise[:, 1] > 0.5, 0.0, visits)
    share = torch.sigmoid(noise[:, 1] + x[:, 0])
    share = torch.where(noise[:, 3] > 1, 1.0, torch.where(noise[:, 3] < -1, 0.0, share))
    return x, torch.stack([rain, level, visits, share], 1)


@pytest.fixture(scope="module")
def chain():
    x, y = _rows(torch.Generator().manual_seed(3), 400)
    return fit_mixed(
        lambda features, line: LinearGaussianFlow.fit(features, line), x, y, KINDS, boosted=False
    )


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS,
        "real",
        "count",
        "rounded(0.5)",
        "rounded(0.5, 0, 3) + -1 + 9",
        "interval(-1, 3) + 1",
        "positive + -1 + 0",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_opened_outputs_close_to_themselves_in_their_order(generator, kind, dtype):
    parsed = Kind.parse(kind)
    inside = parsed.from_line(torch.randn(200, generator=generator, dtype=dtype))
    y = parsed.round(torch.cat([inside, torch.tensor(parsed.atoms * 5, dtype=dtype)])).sort().values
    share = torch.rand(len(y), generator=generator, dtype=torch.float64)
    points = parsed.open(y, share)
    torch.testing.assert_close(parsed.close(points), y, rtol=1e-6, atol=1e-6)
    assert bool((points[1:][y.diff() > 0] > points[:-1][y.diff() > 0]).all())
    low, high = parsed.cell(y)
    assert bool(((low <= points) & (points <= high)).all())
    atoms = torch.isin(y, torch.tensor(parsed.atoms, dtype=dtype))
    torch.testing.assert_close((high - low)[atoms], torch.ones_like(y[atoms]))
    if not parsed.step:
        assert bool((low == high)[~atoms].all())
    first, last = parsed.opened
    assert bool(((points >= first) & (points <= last)).all())


def test_a_chain_is_a_flow_of_the_opened_outputs(generator, chain):
    x, y = _rows(generator, 60)
    flow = ChainFlow(chain)
    lc.check_flow(flow, x, dequantize(y, KINDS, generator)).require()
    z = 2 * torch.randn(60, 4, generator=generator, dtype=torch.float64)  # beyond most data
    torch.testing.assert_close(flow.encode(flow.decode(z, x), x)[0], z, rtol=1e-4, atol=1e-4)
    assert bool(flow.support.check(flow.decode(z, x)).all())
    far = flow.decode(5 * z, x)
    assert bool(torch.isfinite(far).all())
    assert bool(torch.isfinite(flow(x).log_prob(far)).all())


def test_probabilities_of_the_opened_chain_are_those_of_the_chain(generator, chain):
    x, y = _rows(generator, 60)
    found = GridModel(ChainFlow(chain), KINDS)(x).estimate(y)
    torch.testing.assert_close(found.value, chain(x).log_prob(y), atol=0.01, rtol=0)
    one = ChainModel(chain.laws[:1], chain.means[:1], chain.scales[:1], 1)
    exact = GridModel(ChainFlow(one), KINDS[:1])(x).log_prob(y[:, :1])
    torch.testing.assert_close(exact, one(x).log_prob(y[:, :1]), rtol=1e-6, atol=1e-8)
    # A value that no output has lies in the gap of the atom, and has no probability all the same.
    nowhere = GridModel(ChainFlow(one), KINDS[:1])(x[:1]).log_prob(torch.tensor([[-0.5]]).double())
    assert bool(torch.isneginf(nowhere).all())


def test_latents_of_draws_are_normal_and_those_of_a_wrong_chain_are_not(generator, chain):
    x, _ = _rows(generator, 2000)
    y = chain(x).sample((), generator)
    right = ChainFlow(chain)(x).latent(dequantize(y, KINDS, generator))
    limit = uniform_limit(len(x), failure_rate=1e-7)
    assert all(distance_to_uniform(Normal(0.0, 1.0).cdf(column)) < limit for column in right.T)
    laws = [OutputLaw(law.kind, law.chances, law.flow) for law in chain.laws]
    never = AtomChance(torch.zeros(1).double(), torch.tensor(-4.0).double())
    laws[0] = OutputLaw(KINDS[0], [never], laws[0].flow)
    wrong = ChainFlow(ChainModel(laws, chain.means, chain.scales, 1))
    z = wrong(x).latent(dequantize(y, KINDS, generator))
    assert distance_to_uniform(Normal(0.0, 1.0).cdf(z[:, 0])) > limit


def test_draws_of_the_flow_are_those_of_the_chain(generator, chain):
    x, _ = _rows(generator, 500)
    draws = close(ChainFlow(chain)(x).sample((20,), generator), KINDS)
    others = chain(x).sample((20,), generator)
    # 10,000 draws each: a share is off by 0.01 with probability below 1e-4 for each of five.
    for j, kind in enumerate(map(Kind.parse, KINDS)):
        for atom in kind.atoms:
            ours, theirs = ((values[..., j] == atom).double().mean() for values in (draws, others))
            assert abs(float(ours - theirs)) < 0.03
        assert bool(
            (kind.contains(draws[..., j]) | torch.isin(draws[..., j], torch.tensor(kind.atoms))).all()
        )


def test_a_recalibrated_chain_is_saved_and_loaded(tmp_path, generator, chain):
    x, y = _rows(generator, 100)
    model = lc.recalibrate(ChainFlow(chain), x, dequantize(y, KINDS, generator))
    lc.save(GridModel(model, KINDS), tmp_path / "model")
    again = lc.load(tmp_path / "model")
    torch.testing.assert_close(again(x).log_prob(y), GridModel(model, KINDS)(x).log_prob(y))
