import pytest
import torch
from torch.distributions import Normal, Poisson

import latentcal as lc
import same
from latentcal.flows import LinearGaussianFlow, Supported
from latentcal.outputs import AtomChance, ChainModel, OutputLaw, fit_mixed
from uniformity import distance_to_uniform, uniform_limit

KINDS = ["positive + 0", "real"]


def _hurdle(generator, n=1500):
    """Rain that is 0 or log-normal, and a second output that depends on whether it rained, and how much."""
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    p = torch.sigmoid(0.5 + 1.5 * x[:, 0])
    wet = torch.rand(n, generator=generator, dtype=torch.float64) < p
    log_rain = 0.3 * x[:, 1] + 0.7 * torch.randn(n, generator=generator, dtype=torch.float64)
    rain = torch.where(wet, log_rain.exp(), 0.0)
    centre = torch.where(wet, 0.5 * log_rain, -1.0)
    level = centre + 0.4 * torch.randn(n, generator=generator, dtype=torch.float64)
    truth = torch.where(
        wet, p.log() + Normal(0.3 * x[:, 1], 0.7).log_prob(log_rain) - log_rain, (1 - p).log()
    )
    return x, torch.stack([rain, level], 1), truth + Normal(centre, 0.4).log_prob(level)


def _linear(features, line):
    return LinearGaussianFlow.fit(features, line)


def _standard():
    return LinearGaussianFlow(None, torch.zeros(1).double(), torch.eye(1).double())


def _chance(log_odds):
    return AtomChance(torch.zeros(0).double(), torch.tensor(log_odds).double())


def test_a_true_chain_comes_close_to_the_truth_and_its_pit_is_uniform(generator):
    x, y, _ = _hurdle(generator)
    x_test, y_test, truth = _hurdle(generator)
    model = fit_mixed(_linear, x, y, KINDS, boosted=False)
    difference = truth - model(x_test).log_prob(y_test)
    # 13 parameters cost about 13 / 2n = 0.004 nats; 0.02 is beyond five standard errors of the paired mean.
    assert float(difference.mean()) < 0.02
    u = model(x_test).pit(y_test, generator)
    assert u.shape == y_test.shape
    limit = uniform_limit(len(u)) + 0.02  # the fitted law is not the true one
    assert all(distance_to_uniform(column) < limit for column in u.T)
    # Control: a probability of rain that does not look at x is told, by its likelihood and where x is high.
    blind = fit_mixed(_linear, x, y, KINDS, boosted=False)
    blind.laws[0].chances[0] = _constant(blind.laws[0].chances[0], float((y[:, 0] == 0).double().mean()))
    assert float((truth - blind(x_test).log_prob(y_test)).mean()) > 0.1
    high = x_test[:, 0] > 0.5
    assert distance_to_uniform(blind(x_test).pit(y_test, generator)[high, 0]) > uniform_limit(int(high.sum()))


def _constant(chance, share):
    return AtomChance(torch.zeros_like(chance.weight), torch.tensor(share).double().logit())


def test_draws_have_the_pattern_of_zeros_and_the_moments_of_the_data(generator):
    x, y, _ = _hurdle(generator)
    model = fit_mixed(_linear, x, y, KINDS, boosted=False)
    draws = model(x).sample((20,), generator)
    assert draws.shape == (20, 1500, 2)
    assert bool((draws[..., 0] >= 0).all())
    dry = draws[..., 0] == 0
    # Shares of 1,500 rows agree within six standard errors of a share, 0.013.
    assert abs(float(dry.double().mean() - (y[:, 0] == 0).double().mean())) < 0.08
    assert abs(float(draws[..., 1][dry].mean()) + 1) < 0.1
    assert abs(float(draws[..., 1][~dry].mean() - y[y[:, 0] > 0, 1].mean())) < 0.15


def test_atoms_grids_and_densities_add_up_to_one():
    """Against the mixed measure: sums over atoms and cells, integrals beside them."""
    shares = OutputLaw("unit + 0 + 1", [_chance(-0.5), _chance(-1.0)], Supported(_standard(), ["unit"]))
    counts = OutputLaw("count", [], Supported(_standard(), ["count"]))
    grid = torch.linspace(0, 1, 20_001).double()[1:-1]
    density = shares.log_prob(grid, None).exp()
    atoms = shares.log_prob(torch.tensor([0.0, 1.0]).double(), None).exp()
    torch.testing.assert_close(density.mean() + atoms.sum(), torch.tensor(1.0).double(), rtol=1e-3, atol=0)
    expected = torch.sigmoid(torch.tensor([-0.5, -1.0]).double())
    torch.testing.assert_close(atoms, torch.stack([expected[0], (1 - expected[0]) * expected[1]]))
    total = counts.log_prob(torch.arange(60.0).double(), None).exp().sum()
    torch.testing.assert_close(total, torch.tensor(1.0).double())
    assert bool(torch.isneginf(counts.log_prob(torch.tensor([0.5, -1.0]).double(), None)).all())
    below, up_to = shares.bounds_of_cdf(torch.tensor([0.0, 0.5, 1.0]).double(), None)
    torch.testing.assert_close(up_to[[0, 2]], torch.stack([atoms[0], atoms.new_tensor(1.0)]))
    torch.testing.assert_close(below[1], up_to[1])
    torch.testing.assert_close(below[1], atoms[0] + (1 - atoms.sum()) / 2)
    torch.testing.assert_close(up_to[2] - below[2], atoms[1])


def test_counts_that_go_together_are_learned(generator):
    """The second count is Poisson around the first; a chain of independent counts would lose 0.2 nats."""
    n = 3000
    first = torch.poisson(torch.full((n,), 4.0), generator=generator)
    second = torch.poisson(0.5 + first, generator=generator)
    y = torch.stack([first, second], 1)
    truth = Poisson(4.0).log_prob(first) + Poisson(0.5 + first).log_prob(second)
    joint = fit_mixed(_linear, None, y, ["count", "count"])
    alone = [fit_mixed(_linear, None, y[:, [j]], ["count"]) for j in (0, 1)]
    loss = float((truth - joint(None).log_prob(y)).mean())
    independent = float((truth - sum(m(None).log_prob(y[:, [j]]) for j, m in enumerate(alone))).mean())
    assert loss < 0.03
    assert independent > loss + 0.1
    draws = joint(None).sample((4000,), generator)
    assert same.copied(draws, draws.round())
    assert float(torch.corrcoef(draws.T)[0, 1]) == pytest.approx(float(torch.corrcoef(y.T)[0, 1]), abs=0.1)


def test_chances_are_chosen_by_rows_held_out_and_recalibrated(generator):
    x = torch.rand(2000, 2, generator=generator, dtype=torch.float64) * 4 - 2
    uniform = torch.rand(2000, generator=generator, dtype=torch.float64)
    line, ring = 1.5 * x[:, 0], 4 * ((x[:, 0] * x[:, 1] > 0).double() - 0.5)
    for log_odds, boosted, trees in ((line, False, False), (0 * line, None, False), (ring, None, True)):
        if trees:
            pytest.importorskip("sklearn")
        chance = AtomChance.fit(x, uniform < torch.sigmoid(log_odds), boosted=boosted)
        assert (chance.trees is not None) == trees
        error = (torch.sigmoid(chance(x)) - torch.sigmoid(log_odds)).abs().mean()
        assert float(error) < (0.1 if trees else 0.04)
        assert 0.3 < chance.slope <= 2
    assert AtomChance.fit(x[:30], uniform[:30] < 0.1).weight.abs().sum() == 0  # too few to look at x
    always = AtomChance.fit(None, torch.ones(50, dtype=torch.bool))
    assert 0.98 < float(torch.sigmoid(always(None))) < 1


def test_flows_are_recalibrated_by_the_rows_beside_the_atoms(generator):
    x, y, _ = _hurdle(generator)

    def narrow(features, line):
        flow = LinearGaussianFlow.fit(features, line)
        return LinearGaussianFlow(flow.weight, flow.bias, 0.5 * flow.scale_tril)

    x_test, y_test, truth = _hurdle(generator)
    loss = {}
    for name, options in {
        "never": {},
        "radial": {"calibration": (x, y), "calibrate": lc.recalibrate},
    }.items():
        model = fit_mixed(narrow, x, y, KINDS, boosted=False, **options)
        loss[name] = float((truth - model(x_test).log_prob(y_test)).mean())
    assert model.laws[0].flow.recalibration.n == int((y[:, 0] > 0).sum())
    assert loss["radial"] < 0.05 < 0.5 < loss["never"]


def test_a_chain_is_saved_and_loaded(tmp_path, generator):
    pytest.importorskip("sklearn")
    x, y, _ = _hurdle(generator, 400)
    model = fit_mixed(_linear, x, y, KINDS, boosted=True)
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    assert same.repeated(loaded(x).log_prob(y), model(x).log_prob(y))
    draws = [m(x[:5]).sample((3,), torch.Generator().manual_seed(1)) for m in (model, loaded)]
    assert same.drawn(*draws)


def test_leading_dims_and_predictors_go_together(generator):
    x, y, _ = _hurdle(generator, 300)
    model = fit_mixed(_linear, x, y, KINDS, boosted=False)
    draws = model(x[:6]).sample((4,), generator)
    together = model(x[:6]).log_prob(draws)
    assert together.shape == (4, 6)
    torch.testing.assert_close(model(x[2]).log_prob(draws[:, 2]), together[:, 2])
    rain = lc.probability(model, x[:6], lambda y, x: y[..., 0] > 0, samples=500)
    assert rain.value.shape == (6,)
    assert lc.marginal_pit(model(x), y, generator=generator).shape == (300, 2)
    assert bool(torch.isfinite(lc.metrics.energy_score(model(x).sample((10,), generator), y)).all())


def test_whole_numbers_as_features_do_not_round_the_outputs(generator):
    x = torch.randint(5, (200, 1), generator=generator)
    y = torch.randn(200, 2, generator=generator, dtype=torch.float64).cumsum(1) + x
    whole, real = (fit_mixed(_linear, features, y, ["real", "real"]) for features in (x, x.float()))
    torch.testing.assert_close(whole(x).log_prob(y), real(x.float()).log_prob(y))


def test_what_does_not_fit_is_refused(generator):
    x, y, _ = _hurdle(generator, 100)
    with pytest.raises(ValueError, match="y has 2 outputs, got 1 kinds"):
        fit_mixed(_linear, x, y, ["real"])
    with pytest.raises(ValueError, match="values are not of kind positive, for example"):
        fit_mixed(_linear, x, y, ["positive", "real"])
    with pytest.raises(ValueError, match="rows outside its atoms"):
        fit_mixed(_linear, x, torch.zeros(100, 1), ["positive + 0"])
    with pytest.raises(ValueError, match="1 atoms and needs as many chances"):
        OutputLaw("positive + 0", [], _standard())
    with pytest.raises(ValueError, match="takes 0 features"):
        ChainModel([OutputLaw("real", [], _standard())], torch.zeros(1), torch.ones(1))(x)
