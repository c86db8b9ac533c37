import copy
import math

import numpy as np
import pytest
import torch

from latentcal.radius import Chi
from latentcal.radius.tabulated import DensityTable, TabulatedLaw


class TabulatedChi(TabulatedLaw):
    """Chi(dim), known exactly, as if it were expensive; all masses times ``factor``."""

    def __init__(self, dim: int, upper: float = math.inf, factor: float = 1.0) -> None:
        super().__init__()
        self.exact, self.upper, self.log_factor = Chi(dim), upper, math.log(factor)
        self.evaluations = 0

    def _log_density(self, t: torch.Tensor) -> torch.Tensor:
        self.evaluations += t.numel()
        return self.exact.log_prob(t**3) + math.log(3) + 2 * torch.log(t) + self.log_factor

    def _log_mass_below(self, t: torch.Tensor) -> torch.Tensor:
        return self.exact.log_cdf(t**3) + self.log_factor

    def _log_mass_above(self, t: torch.Tensor) -> torch.Tensor:
        return self.exact.log_sf(t**3) + self.log_factor

    def _span(self) -> tuple[float, float]:
        ends = self.exact.icdf_log_cdf(self._scalar(-60.0)), self.exact.icdf_log_sf(self._scalar(-60.0))
        return float(ends[0]) ** (1 / 3), float(ends[1]) ** (1 / 3)


def wide_range(law: Chi) -> torch.Tensor:
    """Radii from log F = -5000 to log(1 - F) = -5000: far beyond the table on both sides."""
    v = -torch.logspace(-1, math.log10(5000), 60, dtype=torch.float64)
    r = torch.cat([law.icdf_log_cdf(v), law.icdf_log_sf(v)])
    return r[r > 1e-250]


@pytest.mark.parametrize("dim", [1, 2, 16, 196608])
def test_the_table_agrees_with_the_exact_law_inside_and_beyond(dim):
    exact, law = Chi(dim), TabulatedChi(dim)
    r = wide_range(exact)
    for name in ("log_prob", "log_cdf", "log_sf"):
        expected = getattr(exact, name)(r)
        torch.testing.assert_close(getattr(law, name)(r), expected, rtol=1e-9, atol=1e-9)
    v = -torch.logspace(-3, 2.5, 30, dtype=torch.float64)
    torch.testing.assert_close(law.icdf_log_cdf(v), exact.icdf_log_cdf(v), rtol=1e-9, atol=0)
    torch.testing.assert_close(law.icdf_log_sf(v), exact.icdf_log_sf(v), rtol=1e-9, atol=0)


def test_the_law_is_normalised_whatever_its_density_sums_to():
    r = wide_range(Chi(3))
    plain, inflated = TabulatedChi(3), TabulatedChi(3, factor=7.5)
    assert inflated.table.log_total == pytest.approx(math.log(7.5), abs=1e-9)
    for name in ("log_prob", "log_cdf", "log_sf"):
        torch.testing.assert_close(
            getattr(inflated, name)(r), getattr(plain, name)(r), rtol=1e-10, atol=1e-10
        )


def test_a_finite_end_cuts_the_law_off_and_renormalises_it():
    law, exact = TabulatedChi(3, upper=1.0), Chi(3)
    log_share = exact.log_cdf(torch.tensor(1.0))
    r = torch.linspace(0.01, 1, 50, dtype=torch.float64)
    torch.testing.assert_close(law.log_prob(r), exact.log_prob(r) - log_share, rtol=0, atol=1e-9)
    torch.testing.assert_close(law.cdf(r), torch.exp(exact.log_cdf(r) - log_share), rtol=1e-9, atol=0)
    assert law.log_prob(torch.tensor([1.0001])) == -math.inf
    near_end = 1 - torch.logspace(-12, -3, 10, dtype=torch.float64)
    density = torch.exp(exact.log_prob(torch.tensor(1.0).double()) - log_share)
    torch.testing.assert_close(law.log_sf(near_end).exp(), density * (1 - near_end), rtol=2e-3, atol=0)


class FromZero(TabulatedLaw):
    """exp(-t) on 0 <= t <= 1: a table that starts at 0, where nobody can be asked for the mass below."""

    upper = 1.0

    def _log_density(self, t: torch.Tensor) -> torch.Tensor:
        return -t

    def _span(self) -> tuple[float, float]:
        return 0.0, 1.0


def test_a_table_that_starts_at_0_is_exact_down_to_the_smallest_radii():
    law, total = FromZero(), -math.expm1(-1.0)
    small = torch.logspace(-60, -1, 30, dtype=torch.float64)
    t = torch.cat([small, torch.linspace(0.1, 0.999, 30, dtype=torch.float64)])
    torch.testing.assert_close(law.log_cdf(t**3), torch.log(-torch.expm1(-t) / total), rtol=0, atol=1e-9)
    above = (torch.exp(-t) - math.exp(-1)) / total
    torch.testing.assert_close(law.log_sf(t**3).exp(), above, rtol=1e-9, atol=0)
    density = torch.exp(-t) / total / (3 * t**2)
    torch.testing.assert_close(law.log_prob(t**3), torch.log(density), rtol=1e-9, atol=1e-9)
    log_u = torch.log(-torch.expm1(-t) / total)
    torch.testing.assert_close(law.icdf_log_cdf(log_u), t**3, rtol=1e-8, atol=0)
    assert law.table.touches_low
    assert law.cdf(torch.zeros(1)) == 0


def test_a_table_of_low_tolerance_still_integrates_to_one():
    def log_density(t: torch.Tensor) -> torch.Tensor:
        return torch.sin(250 * t) - (t - 1) ** 2

    table = DensityTable.of(
        log_density, 0.1, 2.0, log_below=-8.0, log_above=-12.0, breaks=torch.empty(0).double(), tolerance=0.1
    )
    t = torch.linspace(0.1, 2.0, 4001, dtype=torch.float64)
    assert 1e-4 < (table.log_density(t) + table.log_total - log_density(t)).abs().max() < 0.1
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(20))
    low, width = table.edges[:-1, None], table.edges.diff()[:, None]
    points = low + width * (nodes + 1) / 2
    inside = (table.log_density(points.reshape(-1)).reshape(points.shape).exp() * weights * width / 2).sum()
    outside = (math.exp(-8) + math.exp(-12)) / math.exp(table.log_total)
    assert inside.item() + outside == pytest.approx(1, abs=1e-10)
    log_cdf, log_sf = table.log_tails(t[[0, -1]])
    assert log_cdf[0].item() == pytest.approx(-8 - table.log_total, abs=1e-12)
    assert log_sf[1].item() == pytest.approx(-12 - table.log_total, abs=1e-12)


def kinked(t: torch.Tensor) -> torch.Tensor:
    return -3 * (t - 1).abs()


@pytest.mark.parametrize("told", [True, False])
def test_a_kink_is_met_exactly_told_or_not(told):
    log_below = log_above = math.log(math.exp(-3 * 0.9) / 3)
    breaks = torch.tensor([1.0] if told else []).double()
    low, high = 0.1, 1.9
    table = DensityTable.of(kinked, low, high, log_below=log_below, log_above=log_above, breaks=breaks)
    t = torch.linspace(low, high, 1001, dtype=torch.float64)
    torch.testing.assert_close(table.log_density(t), kinked(t) - math.log(2 / 3), rtol=0, atol=1e-9)
    expected = torch.where(t < 1, torch.exp(3 * (t - 1)) / 2, 1 - torch.exp(-3 * (t - 1)) / 2)
    torch.testing.assert_close(table.log_tails(t)[0].exp(), expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(table.quantile(*table.log_tails(t)), t, rtol=1e-9, atol=0)
    assert table.edges.numel() < (80 if told else 200)


def test_a_spike_of_relative_width_1e_5_is_resolved():
    law = DensityTable.of(
        lambda t: -0.5 * ((t - 1) / 1e-5) ** 2 - math.log(1e-5 * math.sqrt(2 * math.pi)),
        0.5,
        1.5,
        log_below=-math.inf,
        log_above=-math.inf,
        breaks=torch.tensor([1.0]).double(),
    )
    assert law.log_total == pytest.approx(0, abs=1e-8)
    assert law.edges.numel() < 500
    w = torch.linspace(-5, 5, 11, dtype=torch.float64)
    torch.testing.assert_close(
        law.log_tails(1 + 1e-5 * w)[0], torch.special.log_ndtr(w), rtol=1e-7, atol=1e-9
    )


def test_the_exact_law_is_asked_once_and_not_again_for_radii_inside():
    law = TabulatedChi(4)
    r = Chi(4).icdf(torch.linspace(1e-6, 1 - 1e-6, 1000, dtype=torch.float64))
    law.log_prob(r)
    first = law.evaluations
    assert 0 < first < 20_000
    law.log_prob(r)
    law.cdf(r)
    law.icdf(torch.rand(1000))
    assert law.evaluations == first


def test_many_radii_get_the_answers_of_few():
    law = TabulatedChi(4)
    r = torch.linspace(0, 30, 100_001, dtype=torch.float64)
    for function in (law.log_prob, law.log_cdf, law.log_sf):
        torch.testing.assert_close(function(r)[::1000], function(r[::1000]), rtol=1e-12, atol=1e-14)


def test_the_table_is_no_part_of_the_state_and_is_copied_with_the_law():
    law = TabulatedChi(4)
    r = torch.linspace(0.1, 5, 50)
    before = law.log_prob(r)
    assert law.state_dict() == {}
    torch.testing.assert_close(copy.deepcopy(law).log_prob(r), before)


def test_the_gradient_is_finite_from_the_origin_to_far_beyond_the_table():
    law = TabulatedChi(2)
    r = torch.tensor([0.0, 1e-200, 1e-3, 1.5, 100.0, 1e6], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(law.log_prob(r).sum(), r)
    assert not slope.isnan().any()
    torch.testing.assert_close(slope[2:], 1 / r[2:] - r[2:], rtol=1e-6, atol=0)
