import copy
import math

import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import ConvexPotentialFlow, convex_potential, train_flow
from latentcal.flows.convex_derivatives import Context, softplus


def fresh(dim: int, features: int, dtype: torch.dtype, **options) -> ConvexPotentialFlow:
    torch.manual_seed(0)
    return ConvexPotentialFlow(dim, features, **options).to(dtype)


@pytest.fixture(scope="module")
def trained() -> tuple[ConvexPotentialFlow, torch.Tensor]:
    """A flow trained on the heteroscedastic arc until it is curved, and features to ask it about."""
    generator = torch.Generator().manual_seed(1)
    toy = lc.toy.heteroscedastic_arc()
    x, y = toy.sample(2000, generator)
    flow = fresh(2, x.shape[1], torch.float32, hidden=20)
    train_flow(flow, x, y, validation=toy.sample(500, generator), learning_rate=5e-3, max_epochs=60)
    return flow, toy.sample(1000, generator)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [0, 3])
@pytest.mark.parametrize("dim", [1, 2, 16])
def test_the_flow_keeps_its_promises(dim, features, dtype, generator):
    flow = fresh(dim, features, dtype, hidden=10, layers=3)
    x = torch.randn(50, features, generator=generator, dtype=dtype) if features else None
    y = 3 + 2 * torch.randn(50, dim, generator=generator, dtype=dtype)
    flow.initialize(x, y)
    lc.testing.check_flow_contract(flow, x, y)


def test_the_log_determinant_can_be_trained_by_first_order_autograd(generator):
    flow = fresh(2, 1, torch.float64, hidden=5)
    x, y = (torch.randn(20, k, generator=generator, dtype=torch.float64) for k in (1, 2))
    flow.encode(y, x)[1].sum().backward()
    weight = flow.potential.direct[0]
    slope, step = weight.grad[0, 0].clone(), 1e-6
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            weight[0, 0] += sign * step
            values.append(float(flow.encode(y, x)[1].sum()))
            weight[0, 0] -= sign * step
    assert float(slope) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-4), (torch.float64, 1e-8)])
def test_a_trained_flow_decodes_ten_thousand_points_far_into_the_tails(trained, generator, dtype, least):
    flow, x = trained
    flow, x = copy.deepcopy(flow).to(dtype), x.to(dtype)
    direction = torch.nn.functional.normalize(
        torch.randn(10, 1000, 2, generator=generator, dtype=dtype), dim=-1
    )
    farthest = 2 * float(lc.radius.Chi(2).icdf(torch.tensor(0.9999)))
    z = farthest * torch.rand(10, 1000, 1, generator=generator, dtype=dtype) * direction
    with torch.no_grad():
        y = flow.decode(z, x)
        again, _ = flow.encode(y, x)
    jacobian = torch.func.vmap(torch.func.jacrev(lambda y, x: flow.encode(y, x)[0]))(y[0], x)
    steepest = float(torch.linalg.matrix_norm(jacobian.detach(), 2).max())
    allowed = least + 8 * torch.finfo(dtype).eps * steepest * float(y.norm(dim=-1).max())
    assert float((again - z).norm(dim=-1).max()) <= allowed


def test_a_sample_does_not_depend_on_its_neighbours(trained, generator):
    flow, x = trained
    z = torch.randn(1000, 2, generator=generator)
    torch.testing.assert_close(flow.decode(z, x)[:7], flow.decode(z[:7], x[:7]), rtol=1e-4, atol=1e-5)


def test_decoding_takes_few_rounds_even_in_the_tails(trained, generator, monkeypatch):
    flow, x = copy.deepcopy(trained)
    rounds = []
    evaluate = flow.potential.value_and_derivatives
    monkeypatch.setattr(
        flow.potential, "value_and_derivatives", lambda *args: rounds.append(len(args[0])) or evaluate(*args)
    )
    for dtype in (torch.float32, torch.float64):
        rounds.clear()
        with torch.no_grad():
            flow.to(dtype).decode(5 * torch.randn(1000, 2, generator=generator, dtype=dtype), x.to(dtype))
        assert len(rounds) <= 40
        assert sum(rounds) <= 0.7 * len(rounds) * 1000  # points that arrived are not carried along


def test_points_that_rounding_keeps_from_coming_closer_have_arrived(generator):
    eps, rounds = torch.finfo(torch.float32).eps, []

    class Rough:
        """The potential |u|^2 / 2, with a gradient that is known to some digits only."""

        def value_and_derivatives(self, u, context):
            rounds.append(len(u))
            noise = 7 * eps * torch.randn(u.shape, generator=generator)
            return (u**2).sum(-1) / 2, u + noise, torch.eye(16).expand(len(u), 16, 16)

    goal = torch.randn(100, 16, generator=generator)
    u, missing, rounding = convex_potential._newton(
        Rough(), goal, Context((), (), ()), start=torch.zeros(100, 16)
    )
    assert len(rounds) <= 10
    assert float((u - goal).abs().max()) < 50 * eps
    assert 0 < float(missing.max()) < 100 * eps
    assert bool((missing <= 8 * rounding).all())


@pytest.mark.parametrize("seed", range(3))
def test_points_in_steep_bent_valleys_are_decoded(seed):
    torch.manual_seed(seed)
    flow = ConvexPotentialFlow(4, 0).double()
    with torch.no_grad():
        for weight in flow.potential.direct:
            weight.mul_(1000)
        z = flow.latent(torch.randn(400, 4, dtype=torch.float64))
        y = flow.decode(z)
        torch.testing.assert_close(flow.latent(y), z, rtol=1e-10, atol=1e-10)


def test_the_softplus_is_smooth_to_rounding():
    a = torch.linspace(-60, 60, 2401, dtype=torch.float64)
    torch.testing.assert_close(softplus(a), torch.logaddexp(a, torch.zeros_like(a)), rtol=1e-14, atol=0)


def test_no_points_are_decoded_to_no_points(trained):
    flow, x = trained
    assert flow.decode(torch.zeros(0, 2), x[:0]).shape == (0, 2)
    assert flow.decode(torch.zeros(3, 0, 2), x[:0]).shape == (3, 0, 2)


def test_the_latent_alone_is_that_of_encode(trained, generator):
    flow, x = trained
    y = torch.randn(5, 1000, 2, generator=generator)
    torch.testing.assert_close(flow.latent(y, x), flow.encode(y, x)[0])


def test_decoding_in_pieces_changes_nothing(trained, generator, monkeypatch):
    flow, x = trained
    z = torch.randn(3, 1000, 2, generator=generator)
    with torch.no_grad():
        whole = flow.decode(z, x)
        monkeypatch.setattr(convex_potential, "_HELD", 2 * flow.hidden * 700)
        torch.testing.assert_close(flow.decode(z, x), whole, rtol=1e-4, atol=1e-5)


def test_the_context_network_runs_once_for_each_x(trained, monkeypatch):
    flow, x = trained
    rows = []
    forward = flow.potential.context.forward
    monkeypatch.setattr(flow.potential.context, "forward", lambda x: rows.append(len(x)) or forward(x))
    with torch.no_grad():
        flow(x[:10]).sample((50,))
    assert rows == [10]


def test_points_that_cannot_be_decoded_are_reported(generator):
    flow = fresh(2, 0, torch.float32, hidden=5)
    with torch.no_grad():
        flow.potential.out.fill_(math.nan)
    with pytest.raises(RuntimeError, match="4 of 4 points could not be decoded"):
        flow.decode(torch.randn(4, 2, generator=generator))


def test_samples_carry_gradients_to_the_weights(generator):
    flow = fresh(2, 1, torch.float64, hidden=5)
    x = torch.randn(3, 1, generator=generator, dtype=torch.float64)
    z = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    weight, step = flow.potential.direct[1], 1e-6
    flow.decode(z, x).sum().backward()
    with torch.no_grad():
        values = []
        for sign in (1, -1):
            weight[0, 0] += sign * step
            values.append(float(flow.decode(z, x).sum()))
            weight[0, 0] -= sign * step
    assert float(weight.grad[0, 0]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5)


def test_training_learns_a_curved_density(trained, generator):
    flow, _ = trained
    toy = lc.toy.heteroscedastic_arc()
    x, y = toy.sample(1000, generator)
    truth = -float(toy.conditional(x).log_prob(y).mean())
    linear = lc.flows.LinearGaussianFlow.fit(x, y)  # control: what a straight model can do at best
    nll, control = (-float(model(x).log_prob(y).detach().mean()) for model in (flow, linear))
    assert truth < nll < truth + 0.5 * (control - truth)


def test_a_saved_flow_comes_back_with_its_weights(trained, tmp_path):
    flow, x = trained
    lc.save(flow, tmp_path / "flow")
    y = torch.zeros(len(x), 2)
    loaded = lc.load(tmp_path / "flow")
    for name, tensor in flow.state_dict().items():
        assert same.copied(loaded.state_dict()[name], tensor), name
    torch.testing.assert_close(loaded(x).log_prob(y), flow(x).log_prob(y))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"dim": 0}, "dim must be at least 1"), ({"hidden": 0}, "hidden must"), ({"layers": 0}, "layers must")],
)
def test_sizes_that_make_no_network_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ConvexPotentialFlow(**({"dim": 2, "features": 1} | arguments))


def test_missing_features_are_named():
    with pytest.raises(ValueError, match=r"needs 3 features: .*got None"):
        ConvexPotentialFlow(2, 3).encode(torch.zeros(1, 2))


def test_a_frozen_flow_still_carries_gradients_to_x(trained):
    flow, x = trained
    flow = copy.deepcopy(flow).requires_grad_(False)
    at = x[:5].clone().requires_grad_()
    (slope,) = torch.autograd.grad(flow(at).rsample((3,)).sum(), at)
    assert (slope != 0).any()
