import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import FlowMatching, train_flow

pytest.importorskip("torchdiffeq")


def fresh(dim: int, features: int, dtype: torch.dtype = torch.float32, **options) -> FlowMatching:
    torch.manual_seed(0)
    return FlowMatching(dim, features, **({"hidden": 16, "layers": 2} | options)).to(dtype)


@pytest.fixture(scope="module")
def trained() -> tuple[FlowMatching, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    toy = lc.toy.heteroscedastic_linear()
    x, y = toy.sample(2000, generator)
    flow = fresh(2, x.shape[1], hidden=32)
    options = {"learning_rate": 5e-3, "max_epochs": 60, "batch_size": 250}
    train_flow(flow, x, y, validation=toy.sample(500, generator), **options)
    return flow, *toy.sample(300, generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("dim", "features"), [(1, 2), (2, 0), (2, 2), pytest.param(16, 2, marks=pytest.mark.slow)]
)
def test_the_flow_keeps_its_promises(dim, features, dtype, generator):
    flow = fresh(dim, features, dtype)
    x = torch.randn(20, features, generator=generator, dtype=dtype) if features else None
    y = torch.randn(20, dim, generator=generator, dtype=dtype)
    lc.testing.check_flow_contract(flow, x, y, points=3, tolerance=1e-3)


def test_the_carried_tangents_give_the_jacobian_of_the_velocity(generator):
    flow = fresh(3, 1, torch.float64)
    t, q = torch.tensor(0.3, dtype=torch.float64), torch.randn(3, generator=generator, dtype=torch.float64)
    context = flow.velocity.context_of(torch.ones(1, dtype=torch.float64))
    _, moved = flow.velocity(t, q, context, torch.eye(3, dtype=torch.float64))
    jacobian = torch.autograd.functional.jacobian(lambda q: flow.velocity(t, q, context)[0], q)
    torch.testing.assert_close(moved, jacobian)


def test_a_trained_flow_comes_back_from_its_latent(trained):
    flow, x, y = trained
    assert float(flow.solver_error(y, x).max()) <= 1e-3


def test_fewer_steps_are_faster_and_say_what_they_cost(trained):
    flow, x, y = trained
    coarse = FlowMatching(2, x.shape[1], hidden=32, layers=2, steps=4)
    coarse.load_state_dict(flow.state_dict())
    assert float(coarse.solver_error(y, x).max()) > 3 * float(flow.solver_error(y, x).max())
    with torch.no_grad():
        gap = (coarse.latent(y, x) - flow.latent(y, x)).norm(dim=-1).max()
    assert float(gap) < 0.1


def test_training_without_solving_learns_the_density(trained):
    flow, x, y = trained
    toy = lc.toy.heteroscedastic_linear()
    truth = -float(toy.conditional(x).log_prob(y).mean())
    with torch.no_grad():
        nll, before = (-float(model(x).log_prob(y).mean()) for model in (flow, fresh(2, x.shape[1])))
    assert nll < truth + 0.25 * (before - truth)


def test_many_outputs_have_an_estimated_determinant_with_its_error(generator):
    flow = fresh(40, 0, torch.float64, probes=64)
    y = torch.randn(200, 40, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        estimate, error = flow.encode(y)[1], flow.log_abs_det_error(y)
        identity = 40**0.5 * torch.eye(40, dtype=torch.float64)
        exact = flow._solve(y, None, backward=True, tangents=identity)[1].mean(-1)
    # The same probes serve all points, so their errors are correlated: a bound for each, not for the mean.
    # Rademacher traces are sub-Gaussian; six standard errors fail with probability < 1e-6 (Student, 63 d.f.).
    assert float(((estimate - exact).abs() / error).max()) < 6
    assert float((estimate - exact).abs().max()) > 1e-6  # control: it is an estimate
    assert same.defined(fresh(2, 0).log_abs_det_error(torch.zeros(3, 2)), torch.zeros(3))


def test_the_density_is_a_function_also_where_the_trace_is_estimated(generator):
    flow = fresh(40, 0)
    y = torch.randn(3, 40, generator=generator)
    with torch.no_grad():
        assert same.repeated(flow().log_prob(y), flow().log_prob(y))


@pytest.mark.parametrize("options", [{"tolerance": 0.0}, {"steps": 0}, {"probes": 1}])
def test_settings_that_solve_nothing_are_refused(options):
    with pytest.raises(ValueError, match="tolerance must be positive, steps at least 1"):
        FlowMatching(2, 0, **options)
