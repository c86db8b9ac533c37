import math
import warnings

import pytest
import torch
from scipy.stats import norm

from latentcal.base import student_t
from latentcal.events import Box, Payoff, best_action, expected_utility
from latentcal.events.integration import InfiniteVarianceWarning, tail_index
from latentcal.flows import LinearGaussianFlow

FLOW = LinearGaussianFlow(torch.ones(1, 1).double(), torch.zeros(1).double(), torch.ones(1, 1).double())
X = torch.tensor([[-3.0], [0.0], [4.0]], dtype=torch.float64)
UTILITIES = {
    "sell": Payoff(Box(0, 2), inside=10, outside=-1),
    "keep": 1.0,
    "bet": lambda y, x: y[..., 0] * 0.5,
}


def exact():
    inside = torch.from_numpy(norm.cdf(2 - X[:, 0]) - norm.cdf(-X[:, 0]))
    return torch.stack([11 * inside - 1, torch.ones(3).double(), X[:, 0] / 2], 1)


@pytest.mark.parametrize("method", ["qmc", "sampling", None])
def test_the_expected_utility_of_each_action_is_within_four_errors(method, generator):
    value, error, _ = expected_utility(FLOW, X, UTILITIES, method=method, generator=generator)
    assert value.shape == error.shape == (3, 3)
    assert ((value - exact()).abs() <= 4 * error + 1e-12).all()
    assert (error < 0.1).all()


def test_payoffs_of_boxes_go_through_the_grid(generator):
    boxes = {name: UTILITIES[name] for name in ("sell", "keep")}
    value, error, method = expected_utility(FLOW, X, boxes, generator=generator)
    assert method == "quadrature"
    torch.testing.assert_close(value, exact()[:, :2], rtol=0, atol=1e-5)
    assert (error[:, 1] == 0).all()
    with pytest.raises(ValueError, match="A grid needs payoffs of boxes"):
        expected_utility(FLOW, X, UTILITIES, method="quadrature")


def test_the_best_action_has_the_highest_expected_utility(generator):
    assert best_action(FLOW, X, UTILITIES, generator=generator) == ["keep", "sell", "bet"]


def test_a_box_far_wider_than_the_prediction_is_worth_what_it_is(generator):
    """P(Y > 2) = 0.0228 at x = 0, so insuring gains 101 * 0.0228 - 1 = 1.3."""
    utilities = {"insure": Payoff(Box(2, 1e4), inside=100, outside=-1), "no": 0.0}
    assert best_action(FLOW, X[1:2], utilities, generator=generator) == ["insure"]


def test_a_payoff_on_a_region_that_no_point_hits_is_not_certain(generator):
    far = {"far": Payoff(Box(50, 60), inside=1e6)}
    value, error, _ = expected_utility(FLOW, X, far, method="qmc", samples=1024, generator=generator)
    assert (value == 0).all()
    assert (error == 1e6 / 1024).all()


def test_a_wrong_utility_says_so():
    with pytest.raises(ValueError, match="samples must be at least 2"):
        expected_utility(FLOW, X, UTILITIES, samples=1)
    with pytest.raises(ValueError, match="at least one action"):
        expected_utility(FLOW, X, {})
    with pytest.raises(TypeError, match="a Payoff, a number or a function"):
        expected_utility(FLOW, X, {"a": "much"})
    with pytest.raises(ValueError, match="one finite number for each of the points"):
        expected_utility(FLOW, X, {"a": lambda y, x: y})


def square(y, x):
    return y[..., 0] ** 2


HEAVY = FLOW.with_base(student_t(1, 3.0))
ZEROS = torch.zeros(40, 1, dtype=torch.float64)
LIGHT = {  # flow, utility, expected value
    "y^2, normal": (FLOW, square, 1.0),
    "exp y, normal": (FLOW, lambda y, x: y[..., 0].exp(), math.exp(0.5)),
    "|y|, t(3)": (HEAVY, lambda y, x: y[..., 0].abs(), 2 * math.sqrt(3) / math.pi),
    "rarely positive": (FLOW, lambda y, x: (y[..., 0] - 2).clamp(min=0), norm.pdf(2) - 2 * norm.sf(2)),
}


def test_the_error_of_a_utility_without_variance_is_infinite_and_a_warning_says_so(generator):
    """E[y^2] = 3 under t(3), whose square has a tail index of 2/3: an error from the draws is too small."""
    utilities = {"square": square, "mean": lambda y, x: y[..., 0], "none": 0.0}
    with pytest.warns(InfiniteVarianceWarning, match="utility of 'square' seems to have infinite variance"):
        value, error, _ = expected_utility(HEAVY, ZEROS, utilities, method="sampling", generator=generator)
    # Each of 40 rows is found with probability 0.997: fewer than 38 in one seed of 5,000.
    assert int(error[:, 0].isinf().sum()) >= 38
    assert error[:, 1:].isfinite().all()
    assert value.isfinite().all()
    with pytest.warns(InfiniteVarianceWarning):
        best_action(HEAVY, ZEROS[:1], utilities, generator=generator)


@pytest.mark.parametrize("name", LIGHT)
def test_two_errors_hold_the_truth_where_the_variance_is_finite(name, generator):
    flow, utility, truth = LIGHT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value, error, _ = expected_utility(
            flow, ZEROS, {"a": utility}, method="sampling", generator=generator
        )
    # 95 % of 40 rows: fewer than 32 in one seed of 5,000.
    assert int(((value - truth).abs() <= 2 * error).sum()) >= 32


def test_the_tail_index_is_that_of_the_law():
    u = (torch.arange(2**14, dtype=torch.float64) + 0.5) / 2**14
    for index in (0.25, 0.5, 0.8):
        pareto = u ** (-index)
        assert float(tail_index(pareto)) == pytest.approx(index, abs=0.05)
        assert float(tail_index(1e3 - 1e6 * pareto)) == pytest.approx(index, abs=0.05)  # other units
    assert float(tail_index(-torch.log(u))) == pytest.approx(0, abs=0.05)
    assert float(tail_index(u)) < -0.5
    assert float(tail_index(torch.zeros(2**14))) == -math.inf
    assert float(tail_index(u[:300])) == -math.inf  # too few
    assert torch.isfinite(tail_index(torch.randn(2**14, generator=torch.Generator().manual_seed(0)).round()))
