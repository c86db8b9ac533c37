import numpy as np
import pytest
import torch

from latentcal.pit import latent_pit
from latentcal.radius.coverage import guarantee
from latentcal.radius.gamma_kde import GammaKDE
from latentcal.radius.reference import Chi
from latentcal.radius.scaled import ScaledRadius
from latentcal.radius.stacked import StackedRadius
from latentcal.recalibration import latent_norms, recalibrate
from latentcal.recalibration.record import EffectiveSizeWarning, effective_n_of
from latentcal.recalibration.shift import density_ratio
from toys import scaled_gaussian


def _shifted(n, shift, generator, features=3):
    """Outputs whose scale depends on a feature, which the flow N(0, I) does not know."""
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    x[:, 0] += shift
    return x, torch.exp(0.4 * x[:, :1]) * torch.randn(n, 2, generator=generator, dtype=torch.float64)


def test_weights_bring_coverage_back_where_the_features_shift(generator):
    # Standard errors: 0.002 of 20,000 test rows, about 0.007 of a calibration set with effective size 3,400,
    # 0.005 of both in the mean of three sets. The bound is four of them: failure rate 1e-4.
    flow, shift = scaled_gaussian(2, 1.0), 0.75
    x_test, y_test = _shifted(20_000, shift, generator)
    coverage = {"without": [], "known": [], "estimated": []}
    for _ in range(3):
        x, y = _shifted(6000, 0.0, generator)
        weights = {
            "without": None,
            "known": torch.exp(shift * x[:, 0] - shift**2 / 2),
            "estimated": density_ratio(x, x_test[:4000]),
        }
        for name, given in weights.items():
            model = recalibrate(flow, x, y, weights=given)
            coverage[name].append(float((latent_pit(model(x_test), y_test) <= 0.9).double().mean()))
    mean = {name: sum(values) / 3 for name, values in coverage.items()}
    assert mean["without"] < 0.85  # control
    assert mean["known"] == pytest.approx(0.9, abs=0.02)
    assert mean["estimated"] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize(
    ("fit", "tolerance"),
    [(GammaKDE.fit, 1e-9), (ScaledRadius.fit, 1e-3), (StackedRadius.fit, 1e-2)],
    ids=["gamma_kde", "scaled", "stacked"],
)
def test_weights_of_whole_numbers_count_like_repeated_rows(fit, tolerance, generator):
    # Copies of a row share a fold. Laws that shrink do so by the number of rows, which differs.
    x, y = _shifted(200, 0.0, generator)
    counts = torch.where(y.norm(dim=1) > y.norm(dim=1).median(), 4, 1)
    flow = scaled_gaussian(2, 1.0)
    weighted = recalibrate(flow, x, y, fit=fit, weights=counts)
    copies = torch.arange(len(y)).repeat_interleave(counts)
    copies = copies[torch.randperm(len(copies), generator=generator)]  # side by side they look ordered
    repeated = recalibrate(flow, x[copies], y[copies], fit=fit, discrete="ignore")
    r = torch.linspace(0.1, 5, 50, dtype=torch.float64)
    cdf, expected = (model.base.radius.cdf(r) for model in (weighted, repeated))
    torch.testing.assert_close(cdf, expected, rtol=0, atol=tolerance)
    plain = recalibrate(flow, x, y, fit=fit).base.radius.cdf(r)
    assert (plain - expected).abs().max() > 0.1  # control


def test_the_record_counts_points_by_their_weight(generator):
    x, y = _shifted(200, 0.0, generator)
    weights = torch.rand(200, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(2, 1.0)
    plain = recalibrate(flow, x, y, fit=ScaledRadius.fit).recalibration
    assert plain.effective_n == 200
    assert "effective n" not in str(plain)
    record = recalibrate(flow, x, y, fit=ScaledRadius.fit, weights=weights.numpy()).recalibration
    n = float(weights.sum() ** 2 / (weights**2).sum())
    assert record.effective_n == pytest.approx(n)
    assert f"effective n {n:,.1f} ({n / 200:.1%} of the points)" in str(record)
    radii, order = latent_norms(flow, x, y).sort()
    steps = n * weights[order].cumsum(0) / weights.sum()
    ends = torch.stack([steps, steps - n * weights[order] / weights.sum()])
    distance = ((n + 1) * record.law.cdf(radii) - ends).abs().max()
    assert record.lambda_ <= float(distance) + 1e-9  # a step of less than one point counts with its end alone
    assert record.lambda_ >= float(((n + 1) * record.law.cdf(radii) - steps).abs().max()) - 1e-9
    assert record.epsilon == pytest.approx((1 + record.lambda_) / (n + 1))


def test_the_bound_follows_the_weighted_distribution_function(generator):
    radii = Chi(2).sample((2000,), generator)
    weights = torch.exp(0.2 * radii)
    expected = radii.sort().values
    levels = weights[radii.argsort()].cumsum(0) / weights.sum()

    class Weighted(Chi):
        def cdf(self, r):
            return levels[torch.searchsorted(expected, r.contiguous(), right=True) - 1]

    assert guarantee(Weighted(2), radii, weights=weights).lambda_ < 3
    assert guarantee(Weighted(2), radii).lambda_ > 30  # control
    assert guarantee(Chi(2), radii, weights=torch.full((2000,), 7.0)).lambda_ == pytest.approx(
        guarantee(Chi(2), radii).lambda_
    )


def test_a_point_that_carries_everything_is_warned_of(generator):
    x, y = _shifted(100, 0.0, generator)
    flow = scaled_gaussian(2, 1.0)
    weights = torch.full((100,), 0.001)
    weights[0] = 10.0
    with pytest.warns(EffectiveSizeWarning, match=r"effective number of 1\.0 of 100") as caught:
        recalibrate(flow, x, y, fit=ScaledRadius.fit, weights=weights)
    assert caught[0].filename == __file__
    many = torch.cat([torch.ones(30), torch.full((970,), 1e-6)])
    x, y = _shifted(1000, 0.0, generator)
    with pytest.warns(EffectiveSizeWarning, match=r"effective number of 30\.0 of 1000"):
        recalibrate(flow, x, y, fit=ScaledRadius.fit, weights=many)
    recalibrate(flow, x[:10], y[:10], fit=ScaledRadius.fit, weights=np.ones(10))  # few, but not by weight


def test_few_rows_are_warned_of_only_where_the_weights_leave_fewer():
    even, uneven = torch.ones(10), torch.ones(10)
    even[0], uneven[0] = 1.8, 9.0
    assert 9 < effective_n_of(even, 10, None) < 9.9  # and no warning, which would be an error
    with pytest.warns(EffectiveSizeWarning, match="of 10 calibration points"):
        assert effective_n_of(uneven, 10, None) < 9
