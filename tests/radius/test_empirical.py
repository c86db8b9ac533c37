import math

import pytest
import torch

import same
from latentcal.radius import BallRadius, Chi, EmpiricalRadius, guarantee


def conformal_quantile(radii: torch.Tensor, numerator: int, denominator: int) -> float:
    """The ceil(q (n + 1))-th smallest radius at q = numerator / denominator, in whole numbers."""
    rank = -(-numerator * (radii.numel() + 1) // denominator)
    return sorted(radii.tolist())[rank - 1] if rank <= radii.numel() else math.inf


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 19, 99, 100, 199, 999, 1999])
def test_the_region_is_the_split_conformal_set_at_all_levels(n, generator):
    radii, fresh = Chi(3).sample((n,), generator), Chi(3).sample((10_000,), generator)
    law = EmpiricalRadius.fit(radii)
    levels = torch.arange(1, 101, dtype=torch.float64) / 100
    expected = torch.tensor([conformal_quantile(radii, k, 100) for k in range(1, 101)], dtype=torch.float64)
    assert same.copied(law.icdf(levels), expected)
    assert same.decided(fresh <= law.icdf(levels)[:, None], fresh <= expected[:, None])


def test_a_level_times_n_plus_1_that_is_whole_up_to_rounding_is_whole():
    law = EmpiricalRadius(torch.arange(1.0, 100.0))
    assert 0.55 * 100 > 55  # what makes it hard
    assert law.icdf(torch.tensor(0.55, dtype=torch.float64)) == 55
    assert law.icdf(torch.tensor(0.55 + 1e-6, dtype=torch.float64)) == 56
    assert law.icdf(torch.tensor(0.55, dtype=torch.float32)) == 55  # 0.5500000119 as float64
    assert law.icdf(torch.tensor(0.5501, dtype=torch.float32)) == 56
    assert law.icdf_log_cdf(torch.tensor(0.55).log()) == 55
    assert law.icdf_log_sf(torch.tensor(0.45).log()) == 55
    for n in (999, 10**5 - 1):
        law = EmpiricalRadius(torch.arange(1.0, n + 1.0, dtype=torch.float64))
        k = torch.arange(1, n + 1)
        assert same.copied(law.icdf(k / torch.tensor(n + 1.0, dtype=torch.float64)), k.double())


def test_beyond_the_largest_radius_lies_infinity_and_at_0_lies_0():
    law = EmpiricalRadius(torch.tensor([3.0, 1.0, 2.0]))
    u = torch.tensor([0.0, 1e-12, 0.25, 0.75, 0.76, 1.0], dtype=torch.float64)
    assert law.icdf(u).tolist() == [0, 1, 1, 3, math.inf, math.inf]
    assert law.icdf_log_cdf(torch.log(u)).tolist() == law.icdf(u).tolist()
    assert law.icdf_log_sf(torch.log1p(-u)).tolist() == law.icdf(u).tolist()


def test_the_distribution_function_counts_radii_over_n_plus_1():
    law = EmpiricalRadius(torch.tensor([3.0, 1.0, 2.0]))
    r = torch.tensor([[0.0, 0.99, 1.0], [1.5, 3.0, math.inf]], dtype=torch.float32)
    assert law.cdf(r).dtype == law.log_cdf(r).dtype == law.icdf(torch.rand(3)).dtype == torch.float64
    assert law.cdf(r).tolist() == [[0, 0, 0.25], [0.25, 0.75, 0.75]]
    torch.testing.assert_close(
        law.log_cdf(r).exp() + law.log_sf(r).exp(), torch.ones(2, 3, dtype=torch.float64)
    )


def test_ties_and_zeros_are_counted_and_not_warned_of():
    law = EmpiricalRadius.fit(torch.tensor([0.0, 2.0, 2.0, 2.0]))
    assert law.cdf(torch.tensor([0.0, 1.9, 2.0])).tolist() == pytest.approx([0.2, 0.2, 0.8])
    assert law.icdf(torch.tensor([0.2, 0.4, 0.8])).tolist() == [0, 2, 2]


@pytest.mark.parametrize("n", [1, 2, 99, 1000])
def test_lambda_is_0(n, generator):
    radii = Chi(2).sample((n,), generator)
    assert guarantee(EmpiricalRadius.fit(radii), radii).lambda_ == pytest.approx(0, abs=1e-9)


def test_there_is_no_density_and_no_sampling():
    law = EmpiricalRadius.fit(torch.tensor([0.5, 1.0]), reference=BallRadius(1))
    for name in ("log_prob", "log_radial_density"):
        arguments = (torch.ones(1),) if name == "log_prob" else (torch.ones(1), 2)
        with pytest.raises(
            NotImplementedError, match=r"step function and has no density.*StackedRadius\.fit"
        ):
            getattr(law, name)(*arguments)
    for name in ("sample", "rsample"):
        with pytest.raises(NotImplementedError, match=r"cannot be sampled.*StackedRadius\.fit"):
            getattr(law, name)((3,))


def test_weights_are_refused():
    with pytest.raises(ValueError, match=r"does not support weights.*StackedRadius"):
        EmpiricalRadius.fit(torch.ones(2), weights=torch.ones(2))


@pytest.mark.parametrize(
    ("radii", "message"),
    [
        ([], "calibration set is empty"),
        ([1.0, math.nan], "1 of 2 radii are NaN"),
        ([math.inf, 1.0], "1 of 2 radii are infinite"),
        ([-1.0, 1.0], "1 of 2 radii are negative"),
    ],
)
def test_what_is_no_norm_is_refused(radii, message):
    with pytest.raises(ValueError, match=message):
        EmpiricalRadius.fit(torch.tensor(radii))


def test_what_is_no_probability_is_refused():
    for u in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
            EmpiricalRadius(torch.ones(1)).icdf(torch.tensor([u]))
