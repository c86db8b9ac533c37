import math

import mpmath as mp
import pytest
import torch

import same
from latentcal._internal.numerics import (
    ascending,
    broadcast_leading,
    log1mexp,
    solve_increasing,
    with_own_slope,
    with_slope,
)


def _t(value):
    return torch.tensor(value, dtype=torch.float64)


def test_log1mexp_is_accurate_at_both_ends():
    v = [-1e-300, -1e-20, -1e-3, -0.5, -math.log(2), -0.8, -5.0, -40.0, -700.0]
    for value, point in zip(log1mexp(_t(v)).tolist(), v, strict=True):
        with mp.workdps(400):
            truth = mp.log(-mp.expm1(point))
        assert abs(value - truth) < 4e-15 * abs(truth)
    assert log1mexp(_t([0.0, -math.inf])).tolist() == [-math.inf, 0.0]


def test_a_value_with_a_slope_has_derivatives_of_any_order():
    x = _t([0.3, 1.0, 2.0]).requires_grad_()
    value = with_slope(x, torch.sin(x).detach(), torch.cos)
    assert same.repeated(value, torch.sin(x))
    for expected in (torch.cos(x), -torch.sin(x), -torch.cos(x)):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        torch.testing.assert_close(value, expected)


def test_a_slope_may_depend_on_the_value():
    x = _t([0.3, 1.0, 2.0]).requires_grad_()
    value = with_own_slope(x, torch.exp(x * x / 2).detach(), lambda x, value: x * value)  # y' = x y
    for factor in (x, 1 + x * x, 3 * x + x**3):
        (value,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        torch.testing.assert_close(value, factor * torch.exp(x * x / 2))


def test_a_value_with_a_slope_stays_plain_where_no_gradient_is_wanted():
    x, value = _t([1.0]), _t([2.0])
    assert not with_slope(x, value, torch.cos).requires_grad
    with torch.no_grad():
        assert not with_slope(x.requires_grad_(), value, torch.cos).requires_grad


def test_an_infinite_slope_does_not_touch_a_point_without_weight():
    x = _t([0.0, 4.0]).requires_grad_()
    root = with_slope(x, x.detach().sqrt(), lambda x: 0.5 / x.sqrt())
    (gradient,) = torch.autograd.grad((root * _t([0.0, 1.0])).sum(), x)
    assert gradient.tolist() == [0.0, 0.25]


FUNCTIONS = {
    "straight": (lambda x: 2 * x + 1, lambda x: torch.full_like(x, 2)),
    "exponential": (torch.exp, torch.exp),
    "steep": (lambda x: torch.sinh(3 * x), lambda x: 3 * torch.cosh(3 * x)),
    "flat in the middle": (lambda x: x**5, lambda x: 5 * x**4),
    "saturating": (lambda x: -torch.log1p(torch.exp(-50 * x)), lambda x: 50 * torch.sigmoid(-50 * x)),
}
ROOTS = _t([-3.0, -1.0, -0.2, -1e-3, 0.0, 0.1, 0.5, 0.7])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("start", [-20.0, 0.3, 50.0])
def test_an_increasing_function_is_inverted_from_any_start(name, start):
    value, slope = FUNCTIONS[name]
    found = solve_increasing(
        lambda x: (value(x), slope(x)), value(ROOTS), torch.full_like(ROOTS, start), resolution=1e-16
    )
    # A float64 target knows its root no better than its own rounding, divided by the slope.
    limit = 1e-14 * (1 + ROOTS.abs()) + 1e-14 * value(ROOTS).abs() / slope(ROOTS).clamp(min=1e-300)
    assert ((found - ROOTS).abs() <= limit).all(), found - ROOTS


def test_a_wrong_slope_costs_steps_but_not_the_answer():
    target = torch.exp(ROOTS)
    found = solve_increasing(
        lambda x: (torch.exp(x), torch.full_like(x, 1e-8)), target, torch.zeros_like(target), resolution=1e-16
    )
    torch.testing.assert_close(found, ROOTS, rtol=0, atol=1e-13)


def test_slopes_that_are_far_too_large_do_not_make_it_creep():
    found = solve_increasing(
        lambda x: (torch.exp(x), 1e9 * torch.exp(x)), torch.exp(ROOTS), ROOTS - 0.4, step=0.5
    )
    assert ((found - ROOTS).abs() < 0.5).all()


def test_a_jump_over_the_target_is_found():
    def step(x):
        return torch.where(x < 0.3, x - 50, x + 50), torch.full_like(x, 1e3)

    found = solve_increasing(step, _t([0.0, 1.0]), _t([7.0, -9.0]), step=0.5)
    torch.testing.assert_close(found, _t([0.3, 0.3]), rtol=1e-14, atol=0)


def test_a_good_start_is_confirmed_in_few_evaluations():
    evaluations = {"newton": 0, "halley": 0}

    def logarithm(kind):
        def function(x):
            evaluations[kind] += x.numel()
            return torch.log(x), 1 / x, *([-1 / x] if kind == "halley" else [])

        return function

    roots = torch.linspace(1, 9, 1000, dtype=torch.float64)
    for kind in evaluations:
        found = solve_increasing(logarithm(kind), torch.log(roots), roots * 1.01)
        torch.testing.assert_close(found, roots, rtol=1e-14, atol=0)
    assert evaluations["newton"] <= 4 * roots.numel()
    assert evaluations["halley"] <= 2.1 * roots.numel()  # where the bend is known a step is saved


def test_a_start_at_the_solution_is_kept():
    assert solve_increasing(lambda x: (x, torch.ones_like(x)), _t([0.7]), _t([0.7])).item() == 0.7


@pytest.mark.parametrize("function", [torch.tanh, lambda x: -x], ids=["never gets there", "decreasing"])
def test_a_function_that_does_not_cross_its_target_is_reported(function):
    with pytest.raises(RuntimeError, match="1 of 1 values could not be inverted"):
        solve_increasing(lambda x: (function(x), torch.ones_like(x)), _t([2.0]), _t([0.0]))


def test_leading_dimensions_are_broadcast_against_each_other():
    x, y = broadcast_leading(torch.zeros(7, 3), torch.zeros(100, 7, 2))
    assert x.shape == (100, 7, 3)
    assert y.shape == (100, 7, 2)
    x, y = broadcast_leading(torch.zeros(5, 1, 3), torch.zeros(7, 2))
    assert x.shape == (5, 7, 3)
    assert y.shape == (5, 7, 2)


def test_leading_dimensions_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"x \(7, 3\) and y \(8, 2\) do not broadcast"):
        broadcast_leading(torch.zeros(7, 3), torch.zeros(8, 2))


def test_sorting_by_numpy_is_sorting_by_torch(generator):
    values = torch.randn(5, 7, 3, generator=generator).round(decimals=1)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64):
        for dim in (0, 1, -1):
            each = (10 * values).to(dtype)
            assert same.copied(ascending(each, dim), each.sort(dim).values)
    values.requires_grad_()
    assert ascending(values).grad_fn is not None
