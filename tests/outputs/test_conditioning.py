import math

import pytest
import torch
from torch.distributions import MultivariateNormal, StudentT

import latentcal as lc
import same
from latentcal.base import laplace, student_t
from latentcal.flows import (
    AutoregressiveFlow,
    ConvexPotentialFlow,
    LinearGaussianFlow,
    Standardized,
    Supported,
)
from latentcal.outputs import condition, interval_likelihood

NAN = math.nan
SCALE = torch.tensor([[1.0, 0.0, 0.0], [0.6, 0.8, 0.0], [0.3, -0.4, 1.2]]).double()
COVARIANCE = SCALE @ SCALE.T
Y = torch.tensor(
    [[0.3, NAN, 1.0], [NAN, NAN, 2.0], [1.0, 2.0, 3.0], [NAN, NAN, NAN], [6.0, NAN, NAN]]
).double()
FULL = torch.tensor(
    [[0.3, 0.5, 1.0], [0.1, 0.2, 2.0], [1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [6.0, 1.0, 1.0]]
).double()


def _normal():
    return LinearGaussianFlow(None, torch.zeros(3).double(), SCALE)


def _bounds(y):
    return torch.where(y.isnan(), -math.inf, y), torch.where(y.isnan(), math.inf, y)


def test_a_normal_law_is_conditioned_exactly(generator):
    rest = condition(_normal(), None, Y)
    assert rest.method == "exact"
    assert bool((rest.error == 0).all())
    for i, row in enumerate(Y):
        known, free = (~row.isnan()).nonzero().reshape(-1), row.isnan().nonzero().reshape(-1)
        if not len(free):
            continue
        gain = torch.linalg.solve(COVARIANCE[known][:, known], COVARIANCE[known][:, free])
        mean = row[known] @ gain
        left = COVARIANCE[free][:, free] - COVARIANCE[free][:, known] @ gain
        truth = MultivariateNormal(mean, left).log_prob(FULL[i, free])
        assert float(rest.log_prob(FULL)[i]) == pytest.approx(float(truth), abs=2e-4)
        draws = rest.sample((4000,), generator)[:, i]
        # Means and covariances of 4,000 draws: six standard errors, 1e-8 for each number.
        assert bool(
            ((draws[:, free].mean(0) - mean).abs() < 6 * left.diagonal().sqrt() / math.sqrt(4000)).all()
        )
        assert bool(((torch.cov(draws[:, free].T).reshape(left.shape) - left).abs() < 0.35).all())
        assert bool((draws[:, known] == row[known]).all())
    assert float(rest.log_prob(FULL)[2]) == 0


def test_heavy_tails_widen_what_is_left_where_the_known_output_is_far_out(generator):
    """Of Student's law the rest is wider by (df + q^2) / (df + 1), given one output at q."""
    flow = LinearGaussianFlow(None, torch.zeros(2).double(), torch.eye(2).double(), student_t(2, 5.0))
    y = torch.tensor([[0.0, NAN], [6.0, NAN]]).double()
    rest = condition(flow, None, y)
    grid = torch.linspace(-3, 3, 7).double()
    for i, known in enumerate((0.0, 6.0)):
        truth = StudentT(6.0, 0.0, math.sqrt((5 + known**2) / 6)).log_prob(grid)
        value = torch.stack([torch.tensor([[0.0, v], [6.0, v]]).double() for v in grid.tolist()])
        torch.testing.assert_close(rest.log_prob(value)[:, i], truth, atol=1e-3, rtol=0)
    draws = rest.sample((20_000,), generator)[..., 1]
    wide = draws.abs().median(0).values
    assert float(wide[1] / wide[0]) == pytest.approx(math.sqrt(41 / 5), rel=0.08)
    torch.testing.assert_close(rest.log_marginal, StudentT(5.0).log_prob(y[:, 0]), atol=1e-3, rtol=0)


def test_layers_on_single_outputs_do_not_matter():
    inner = Standardized(_normal(), torch.ones(3).double(), 2 * torch.ones(3).double())
    flow = Supported(inner.with_base(student_t(3, 4.0)), ["positive", "real", "unit"])
    y = torch.tensor([[0.3, NAN, 0.9], [NAN, NAN, 0.2], [2.0, 1.0, NAN]]).double()
    rest = condition(flow, None, y)
    assert rest.method == "exact"
    numbers = interval_likelihood(flow, None, *_bounds(y), kinds=flow.kinds, samples=2**13)
    assert bool(((rest.log_marginal - numbers.value).abs() < 6 * numbers.error + 1e-3).all())
    draws = rest.sample((2000,), torch.Generator().manual_seed(0))
    assert bool(flow.support.check(draws).all())


def test_known_outputs_outside_of_the_support_are_refused():
    flow = Supported(_normal(), ["positive", "real", "unit"])
    y = torch.tensor([[1.0, NAN, NAN], [-3.0, NAN, NAN]]).double()
    for model in (flow, ConditionalOnly(flow)):
        with pytest.raises(ValueError, match=r"1 of 2 rows have density 0 \(first row 1: \[-3.0"):
            condition(model, None, y)
    assert bool(torch.isfinite(condition(flow, None, y[:1]).log_marginal).all())


def test_triangular_flows_are_exact_where_the_known_outputs_come_first():
    pytest.importorskip("zuko")
    torch.manual_seed(1)
    flow = AutoregressiveFlow(3, 2, flows=1, hidden=16).double()
    x = torch.randn(2, 2).double()
    first = torch.tensor([[0.3, NAN, NAN], [0.5, -1.0, NAN]]).double()
    rest = condition(flow, x, first)
    assert rest.method == "exact"
    numbers = interval_likelihood(flow, x, *_bounds(first), samples=2**13)
    assert bool(((rest.log_marginal - numbers.value).abs() < 6 * numbers.error + 1e-3).all())
    last = condition(flow, x, torch.tensor([[NAN, 0.5, NAN], [NAN, NAN, 1.0]]).double())
    assert last.method == "importance"
    assert bool((last.error > 0).all())
    assert bool((last.effective > 100).all())
    # The mean of draws of the third output, by two routes: the exact ones, and those by importance.
    exact = rest.moments(4000, torch.Generator().manual_seed(0))[0][1, 2]
    other = condition(ConditionalOnly(flow), x, first)
    assert other.method == "importance"
    assert float(other.moments(4000, torch.Generator().manual_seed(0))[0][1, 2] - exact) == pytest.approx(
        0, abs=0.12
    )


class ConditionalOnly(lc.ConditionalFlow):
    """A flow that does not show what it is."""

    def __init__(self, flow):
        super().__init__(flow.base)
        self.inner = flow

    def encode(self, y, x=None):
        return self.inner.encode(y, x)

    def decode(self, z, x=None):
        return self.inner.decode(z, x)


def test_any_flow_is_conditioned_with_a_stated_error(generator):
    pytest.importorskip("zuko")
    hidden = ConditionalOnly(_normal())
    rest, exact = condition(hidden, None, Y), condition(_normal(), None, Y)
    assert rest.method == "importance"
    off = (rest.log_marginal - exact.log_marginal).abs()
    assert bool((off < 6 * rest.error + 1e-3).all())
    assert float(rest.error[0]) > 0
    draws = rest.sample((500,), generator)
    assert draws.shape == (500, 5, 3)
    assert bool(torch.isneginf(rest.log_prob(FULL + 1.0)[:3]).all())
    bend = ConvexPotentialFlow(2, 0, hidden=6)
    assert bool(torch.isfinite(condition(bend, None, [[0.5, NAN]], samples=64).log_marginal).all())
    other_norm = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2), laplace(2))
    assert condition(other_norm, None, [[0.5, NAN]]).method == "importance"


def test_recalibrated_models_and_those_that_depend_on_x_are_conditioned(generator):
    flow = LinearGaussianFlow(torch.ones(2, 1).double(), torch.zeros(2).double(), SCALE[:2, :2])
    x = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    y = flow(x).sample(generator=generator) * (1 + x.abs())
    y[::2, 1] = NAN
    complete = ~y.isnan().any(1)
    for model in (
        lc.recalibrate(flow, x[complete], y[complete]),
        lc.recalibrate(flow, x[complete], y[complete], fit=lc.ConditionalRadius.fit),
    ):
        rest = condition(model, x, y)
        assert rest.method == "exact"
        numbers = interval_likelihood(model, x, *_bounds(y))
        torch.testing.assert_close(rest.log_marginal, numbers.value, atol=0.1, rtol=0)
        draws = rest.sample((3,), generator)
        assert same.copied(draws[0][complete], y[complete])
        assert bool(torch.isfinite(rest.log_prob(draws)).all())
