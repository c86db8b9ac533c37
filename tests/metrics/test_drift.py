"""drift_test: a stated level for rows that depend on each other, and power against laws that change."""

import pytest
import torch

from latentcal.metrics import drift_test


def draw_pit(repetitions: int, n: int, rho: float) -> torch.Tensor:
    """PIT values (repetitions, n) of a stationary autoregression."""
    noise = torch.randn(repetitions, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    values = noise.clone()
    for t in range(1, n):
        values[:, t] = rho * values[:, t - 1] + (1 - rho**2) ** 0.5 * noise[:, t]
    return torch.special.ndtr(values)


@pytest.mark.parametrize(("n", "rho"), [(200, 0.0), (1000, 0.0), (1000, 0.6)])
def test_values_of_one_law_are_called_drifting_no_more_often_than_stated(n, rho):
    # 27 of 300 or more at a true rate of 5 %: three times in 1,000 seeds. CUSUM tests stay below their level.
    rejected = sum(drift_test(u).p_value < 0.05 for u in draw_pit(300, n, rho))
    assert rejected < 27


def test_dependence_alone_would_be_taken_for_drift_without_the_long_run_variance():
    """The control: with the variance of independent values a slow series is rejected most of the time."""
    shuffled = sum(
        drift_test(u[torch.randperm(1000, generator=torch.Generator().manual_seed(i))]).p_value < 0.05
        for i, u in enumerate(draw_pit(50, 1000, 0.6))
    )
    assert shuffled < 10
    slow = draw_pit(50, 1000, 0.6)
    sums = (torch.special.ndtri(slow) - torch.special.ndtri(slow).mean(1, keepdim=True)).cumsum(1)
    naive = (sums.abs().amax(1) / 1000**0.5 > 1.36).double().mean()  # 1.36: the 95 % quantile of a bridge
    assert naive > 0.3


@pytest.mark.parametrize("kind", ["level", "spread"])
def test_a_law_that_changes_is_found_and_named(kind):
    u = draw_pit(1, 600, 0.0)[0]
    changed = u.clone()
    changed[300:] = u[300:] ** 2 if kind == "level" else 0.5 + (u[300:] - 0.5) * 0.5
    test = drift_test(changed)
    assert drift_test(u).p_value > 0.05
    assert test.p_value < 0.001
    assert getattr(test, kind) == pytest.approx(test.p_value / 2, rel=1e-6)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="at least 10 PIT values"):
        drift_test(torch.rand(5))
    with pytest.raises(ValueError, match="All PIT values are equal"):
        drift_test(torch.full((20,), 0.5))


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("kind", ["ascending", "noisy ascent", "steps"])
def test_a_large_drift_is_not_taken_for_none(n, kind):
    """The long-run variance swallowed it: p was above 0.3 for a drift of 10 standard deviations."""
    noise = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    time = torch.linspace(-0.5, 0.5, n, dtype=torch.float64)
    drifting = {"ascending": 30 * time, "noisy ascent": 10 * time, "steps": 10 * (time > 0)}[kind] + noise
    test = drift_test(drifting.argsort().argsort() / n)
    assert test.p_value < 0.01 or test.undecided
    if kind == "ascending":
        assert test.undecided
        assert "drift cannot be distinguished from dependence" in str(test)


def test_a_first_autocorrelation_beyond_nine_tenths_is_undecided_whatever_p_is():
    halves = drift_test(torch.where(torch.arange(3000) < 1500, 0.1, 0.9))
    assert halves.first > 0.9
    assert halves.p_value < 0.01
    assert halves.undecided
    alternating = drift_test(torch.where(torch.arange(100) % 2 == 0, 0.1, 0.8))
    assert alternating.first < -0.9
    assert alternating.undecided


@pytest.mark.parametrize(("n", "rho"), [(200, 0.0), (1000, 0.0), (1000, 0.6)])
def test_values_of_one_law_are_rarely_undecided(n, rho):
    tests = [drift_test(u) for u in draw_pit(100, n, rho)]
    assert sum(test.undecided for test in tests) <= 2
    assert sum("no drift is seen" in str(test) for test in tests) > 90


def test_values_of_equal_spread_are_judged_by_their_level():
    """Their spread was taken for equal PIT values, and refused."""
    u = torch.where(torch.rand(100, generator=torch.Generator().manual_seed(0)) < 0.5, 0.25, 0.75)
    test = drift_test(u)
    assert test.spread == pytest.approx(1.0)
    assert 0.01 < test.level <= 1
    assert not test.undecided
    assert drift_test(u.sort().values).first > 0.9
