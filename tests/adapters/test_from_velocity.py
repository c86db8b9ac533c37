import math

import pytest
import torch
from torch import distributions as td
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_velocity
from latentcal.flows import FlowMatching

pytest.importorskip("torchdiffeq")

SPREAD = torch.tensor([0.5, 3.0], dtype=torch.float64)


def gaussian_path(t, q, x=None):
    """The field whose points move along t m + sigma_t z, from N(0, I) to N(m, s^2) with m = 2 x."""
    t = t[:, None]
    mean = torch.zeros_like(q) if x is None else 2 * x[:, :2]
    variance = (1 - t) ** 2 + t**2 * SPREAD.to(q) ** 2
    slope = (t * SPREAD.to(q) ** 2 - (1 - t)) / variance
    return slope * (q - t * mean) + mean


def backward_path(t, q, x=None):
    """The same path in the other direction of time."""
    return -gaussian_path(1 - t, q, x)


@pytest.mark.parametrize(("field", "data_at"), [(gaussian_path, 1), (backward_path, 0)])
def test_a_known_field_gives_its_known_flow_in_both_directions_of_time(field, data_at):
    flow = from_velocity(field, 2, data_at=data_at)
    x = torch.randn(30, 3, dtype=torch.float64)
    truth = td.Independent(td.Normal(2 * x[:, :2], SPREAD), 1)
    y = truth.sample((4,))
    torch.testing.assert_close(flow(x).log_prob(y), truth.log_prob(y), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(flow.latent(y, x), (y - 2 * x[:, :2]) / SPREAD, rtol=1e-5, atol=1e-5)
    lc.testing.check_flow_contract(flow, x, y[0], points=3, tolerance=1e-4)


def test_the_wrong_direction_of_time_gives_another_density():
    y = SPREAD * torch.randn(30, 2, dtype=torch.float64)
    right, wrong = (from_velocity(gaussian_path, 2, data_at=at)().log_prob(y) for at in (1, 0))
    assert float((right - wrong).abs().max()) > 1


def test_a_linear_field_has_the_matrix_exponential_as_its_flow():
    matrix = torch.tensor([[0.3, -1.0], [0.7, -0.2]], dtype=torch.float64)
    base = td.MultivariateNormal(
        torch.ones(2).double(), scale_tril=torch.eye(2).double() + 0.5 * matrix.tril(-1)
    )
    flow = from_velocity(lambda t, q: q @ matrix.T, 2, data_at=2.0, noise_at=0.5, base=base)
    step = torch.matrix_exp(1.5 * matrix)
    truth = td.MultivariateNormal(step @ base.loc, step @ base.covariance_matrix @ step.T)
    y = truth.sample((20,))
    torch.testing.assert_close(flow().log_prob(y), truth.log_prob(y), rtol=1e-5, atol=1e-5)


def euler_with_one_probe(field, y, steps=20):
    """What is quick and common: Euler's steps from data at 1 to noise at 0, the trace by one random probe."""
    probe = 2.0 * torch.randint(0, 2, y.shape).to(y) - 1
    q, log_abs_det = y, torch.zeros(len(y)).to(y)
    for step in range(steps):
        q = q.detach().requires_grad_()
        v = field(torch.full((len(y),), 1 - step / steps).to(y), q)
        (along,) = torch.autograd.grad(v, q, probe)
        q, log_abs_det = q - v / steps, log_abs_det - (along * probe).sum(-1) / steps
    return q.detach(), log_abs_det


def test_latents_and_densities_are_exact_where_euler_and_one_probe_are_not():
    matrix = torch.tensor([[0.3, -1.0], [0.7, -0.2]], dtype=torch.float64)

    def field(t, q):
        return q @ matrix.T

    y = torch.randn(50, 2, dtype=torch.float64)
    exact = y @ torch.matrix_exp(-matrix).T, -matrix.trace().expand(50)
    ours, naive = from_velocity(field, 2, data_at=1).encode(y), euler_with_one_probe(field, y)
    for right, value, wrong in zip(exact, ours, naive, strict=True):
        torch.testing.assert_close(value, right, rtol=0, atol=1e-5)
        assert float((wrong - right).abs().mean()) > 0.01
    assert float((naive[1] - exact[1]).abs().min()) > 0.1  # nats, at every single point


def only_within(t, q):
    """A field that is defined for times in [0.25, 1] alone, as those of score models are."""
    return torch.where(((t >= 0.25) & (t <= 1.0))[:, None], -q, torch.nan)


@pytest.mark.parametrize(("data_at", "noise_at"), [(0.25, 1.0), (1.0, 0.25)])
def test_a_field_need_not_be_defined_beyond_the_times_of_data_and_noise(data_at, noise_at):
    flow = from_velocity(only_within, 2, data_at=data_at, noise_at=noise_at)
    y = 3 * torch.randn(20, 2)
    z, log_abs_det = flow.encode(y)
    shrinks = data_at - noise_at
    torch.testing.assert_close(z, y * math.exp(shrinks), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_abs_det, torch.full((20,), 2 * shrinks), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(flow.decode(z), y, rtol=1e-4, atol=1e-4)


def test_a_field_without_a_solution_is_said_to_have_none():
    flow = from_velocity(lambda t, q: q * torch.nan, 2, data_at=1)
    with pytest.raises(ArithmeticError, match="too steep, or not finite"):
        flow().log_prob(torch.ones(3, 2))


def test_the_density_is_that_of_our_own_flow_matching():
    torch.manual_seed(0)
    own = FlowMatching(2, 3, hidden=16, layers=2)
    v = own.velocity
    flow = from_velocity(lambda t, q, x: v(t, q, v.context_of(x))[0], 2, data_at=1)
    assert len(list(flow.parameters())) == len(list(v.parameters()))
    x, y = torch.randn(20, 3), torch.randn(3, 20, 2)
    with torch.no_grad():
        torch.testing.assert_close(flow(x).log_prob(y), own(x).log_prob(y), rtol=1e-4, atol=1e-4)
        z = own.latent(y, x)
        torch.testing.assert_close(flow.latent(y, x), z, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(flow.decode(z, x), own.decode(z, x), rtol=1e-4, atol=1e-4)
    lc.testing.check_flow_contract(flow, x, y[0], points=3)


class Network(nn.Module):
    """As torchcfm's: v(t, y, x) of rows, here with dropout."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Dropout(dropout), nn.Linear(16, 2))

    def forward(self, t, y, x):
        return self.layers(torch.cat([y, x, t[:, None]], -1))


def test_the_density_is_that_of_zuko_s_free_form_transform():
    zuko = pytest.importorskip("zuko")
    network = Network()
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    transform = zuko.transforms.FreeFormJacobianTransform(
        f=lambda t, q: network(t.expand(len(q)), q, x), t0=1.0, t1=0.0, phi=network.parameters(), exact=True
    )
    with torch.no_grad():
        z, log_abs_det = from_velocity(network, 2, data_at=1).encode(y, x)
        expected, expected_det = transform.call_and_ladj(y)
    torch.testing.assert_close(z, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(log_abs_det, expected_det, rtol=1e-3, atol=1e-3)


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    network = Network(dropout=0.5).train()
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    t = torch.zeros(10)
    assert same.different(network(t, y, x), network(t, y, x))  # control: it is random
    flow = from_velocity(network, 2, data_at=1)
    with torch.no_grad():
        z, _ = flow.encode(y, x)
        assert same.repeated(flow.encode(y, x)[0], z)
        assert float((flow.decode(z, x) - y).abs().max()) < 1e-3
    assert all(module.training for module in network.modules())


def test_gradients_of_the_density_reach_the_network():
    network = Network().double()
    flow = from_velocity(network, 2, data_at=1, steps=10)
    x, y = torch.randn(4, 3).double(), torch.randn(4, 2).double()
    weight = network.layers[0].weight
    (slope,) = torch.autograd.grad(flow(x).log_prob(y).sum(), weight)
    with torch.no_grad():
        values = []
        for move in (1e-5, -2e-5):
            weight[0, 0] += move
            values.append(float(flow(x).log_prob(y).sum()))
    assert float(slope[0, 0]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


def test_fewer_steps_cost_accuracy():
    y = SPREAD * torch.randn(30, 2, dtype=torch.float64)
    exact = from_velocity(gaussian_path, 2, data_at=1).latent(y)
    errors = [
        float((from_velocity(gaussian_path, 2, data_at=1, **options).latent(y) - exact).abs().max())
        for options in ({"steps": 40}, {"steps": 4}, {"steps": 4, "solver": "euler"})
    ]
    assert 0 < errors[0] < errors[1] < errors[2]


def test_no_rows_are_no_trouble():
    flow = from_velocity(gaussian_path, 2, data_at=1)
    assert flow().log_prob(torch.zeros(0, 2)).shape == (0,)


def test_settings_without_sense_are_refused():
    with pytest.raises(TypeError, match="function v\\(t, y, x\\), got str"):
        from_velocity("v", 2, data_at=1)
    with pytest.raises(ValueError, match="both at t = 1"):
        from_velocity(gaussian_path, 2, data_at=1, noise_at=1)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        from_velocity(gaussian_path, 2, data_at=1, tolerance=0.0)
    with pytest.raises(ValueError, match=r"velocity must be a tensor of shape \(5, 2\), got \(5, 1\)"):
        from_velocity(lambda t, q: q[:, :1], 2, data_at=1).latent(torch.zeros(5, 2))
