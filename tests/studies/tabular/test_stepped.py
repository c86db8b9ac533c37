import pytest
import torch

from latentcal.checks import check_flow
from latentcal.flows import FlowMatching, LinearGaussianFlow, train_flow
from studies.tabular.sampling import SteppedFlow, sampler


@pytest.fixture(scope="module")
def flow():
    """A trained model of two outputs on a bent line."""
    source = torch.Generator().manual_seed(0)
    x = torch.randn(600, 1, generator=source)
    noise = torch.randn(600, 2, generator=source)
    y = torch.stack([noise[:, 0] + x[:, 0], noise[:, 0] ** 2 / 2 + 0.3 * noise[:, 1]], 1)
    flow = FlowMatching(2, 1, hidden=32, layers=2)
    train_flow(flow, x[:500], y[:500], validation=(x[500:], y[500:]), learning_rate=1e-2, max_epochs=100)
    return flow


@torch.no_grad()
def test_steps_give_what_the_adaptive_solver_gives(flow, generator):
    x, z = torch.randn(50, 1, generator=generator), torch.randn(20, 50, 2, generator=generator)
    quick = SteppedFlow(flow)
    y = flow.decode(z, x)
    torch.testing.assert_close(quick.decode(z, x), y, atol=2e-3, rtol=0)
    for own, exact in zip(quick.encode(y, x), flow.encode(y, x), strict=True):
        torch.testing.assert_close(own, exact, atol=5e-3, rtol=0)
    torch.testing.assert_close(quick.latent(y, x), flow.latent(y, x), atol=2e-3, rtol=0)


@torch.no_grad()
def test_more_steps_are_more_exact(flow, generator):
    x, y = torch.randn(200, 1, generator=generator), torch.randn(200, 2, generator=generator)
    exact = flow.encode(y, x)[1]
    errors = [float((SteppedFlow(flow, steps).encode(y, x)[1] - exact).abs().max()) for steps in (4, 8, 16)]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_it_is_a_flow(flow, generator):
    x, y = torch.randn(20, 1, generator=generator).double(), torch.randn(20, 2, generator=generator).double()
    quick = SteppedFlow(FlowMatching(2, 1, hidden=8, layers=2).double(), 32)
    assert check_flow(quick, x, y).passed


def test_only_flow_matching_is_stepped(flow):
    linear = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    assert sampler(linear) is linear
    assert isinstance(sampler(flow), SteppedFlow)


def test_an_odd_number_of_steps_is_refused(flow):
    with pytest.raises(ValueError, match="even"):
        SteppedFlow(flow, 7)
