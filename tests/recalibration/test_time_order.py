import math
from functools import partial

import pytest
import torch

import latentcal as lc
from latentcal.metrics import autocorrelation_test
from latentcal.radius import ConditionalRadius
from latentcal.radius.scaled import ScaledRadius
from latentcal.recalibration import AutocorrelationWarning, autocalibrate, latent_norms, recalibrate
from toys import scaled_gaussian

QUICK = [
    partial(recalibrate, fit=ScaledRadius.fit),
    partial(autocalibrate, rungs=["unchanged", "radial"], folds=2),
]


def _volatile(n, generator):
    """Outputs whose scale lasts: a slow Gaussian process in log scale."""
    level = torch.zeros(n, dtype=torch.float64)
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    for t in range(1, n):
        level[t] = 0.95 * level[t - 1] + math.sqrt(1 - 0.95**2) * noise[t]
    return torch.exp(0.6 * level)[:, None] * torch.randn(n, 2, generator=generator, dtype=torch.float64)


def test_rows_that_depend_on_the_ones_before_are_warned_of(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    with pytest.warns(
        AutocorrelationWarning, match=r"p = .* < 0\.001.*misses of a region come in runs"
    ) as caught:
        model = recalibrate(flow, None, y, fit=ScaledRadius.fit, order="time")
    assert caught[0].filename == __file__
    record = model.recalibration
    expected = autocorrelation_test(model.base.radius.cdf(latent_norms(flow, None, y)))
    assert record.autocorrelation == pytest.approx(expected.p_value, rel=1e-6, abs=0)
    assert record.autocorrelation < 1e-6
    assert record.effective_n == pytest.approx(expected.effective_n)
    assert record.effective_n < 400
    assert record.epsilon == pytest.approx((1 + record.lambda_) / (record.effective_n + 1))
    assert "effective n" in str(record)
    assert "time order  p = " in str(record)


def test_the_same_rows_shuffled_are_silent(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    shuffled = y[torch.randperm(800, generator=generator)]
    record = recalibrate(flow, None, shuffled, fit=ScaledRadius.fit, order="time").recalibration
    assert record.autocorrelation > 0.001
    plain = recalibrate(flow, None, shuffled, fit=ScaledRadius.fit).recalibration
    assert plain.autocorrelation is None
    assert plain.effective_n == 800


def test_weights_and_time_order_both_reduce_the_effective_number(generator):
    flow, y = scaled_gaussian(2, 1.0), _volatile(800, generator)
    weights = torch.rand(800, generator=generator, dtype=torch.float64)
    with pytest.warns(AutocorrelationWarning):
        record = recalibrate(flow, None, y, fit=ScaledRadius.fit, order="time", weights=weights).recalibration
    u = record.law.cdf(latent_norms(flow, None, y))
    share = float(weights.sum() ** 2 / (weights**2).sum()) / 800
    assert record.effective_n == pytest.approx(share * autocorrelation_test(u).effective_n)


def test_another_order_is_refused(generator):
    with pytest.raises(ValueError, match="order must be 'time' or None, got 'random'"):
        recalibrate(scaled_gaussian(2, 1.0), None, _volatile(20, generator), order="random")


def test_only_rows_in_time_order_are_tested_for_autocorrelation(generator):
    x = torch.randn(80, 1, generator=generator, dtype=torch.float64)
    y = torch.randn(80, 2, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(2, 1.0)
    for order, tested in ((None, False), ("time", True)):
        record = recalibrate(flow, x, y, fit=ConditionalRadius.fit, order=order).recalibration
        assert (record.autocorrelation is not None) == tested


def test_the_effective_number_is_that_of_all_rows_also_where_some_are_held_out(generator):
    """Independent rows count in full; it was the number of rows that are held out, five of seven blocks."""
    y = torch.randn(420, 2, generator=generator, dtype=torch.float64) + torch.tensor([3.0, 0.0])
    record = autocalibrate(scaled_gaussian(2, 1.0), None, y, order="time").recalibration
    assert record.ladder.names[record.ladder.chosen] == "aligned, radial"
    assert record.n == 420
    assert record.ladder.n == 300
    assert record.autocorrelation > 0.001
    # 420 in 99 % of seeds: two autocorrelations within two standard errors.
    assert record.effective_n == pytest.approx(420)
    assert record.guarantee.n == pytest.approx(record.effective_n)


def _drifting(n, size, generator):
    """Outputs of two dimensions whose scale grows by a factor of exp(size)."""
    scale = torch.exp(size * torch.linspace(0, 1, n, dtype=torch.float64))
    return scale[:, None] * torch.randn(n, 2, generator=generator, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore::latentcal.recalibration.AutocorrelationWarning")
@pytest.mark.parametrize("repair", QUICK)
@pytest.mark.parametrize(
    ("size", "why"), [(1.5, "the rows drift"), (20.0, "drift cannot be distinguished from dependence")]
)
def test_nothing_is_said_about_coverage_where_rows_drift(repair, size, why, generator):
    """epsilon was printed all the same."""
    record = repair(
        scaled_gaussian(2, 1.0), None, _drifting(700, size, generator), order="time"
    ).recalibration
    assert record.guarantee is None
    assert why in record.withheld
    assert f"epsilon     withheld: {why}" in str(record)
    assert f"{why}" in str(record).split("drift       p = ")[1].splitlines()[0]
    assert f"epsilon=<withheld: {why}" in repr(record)
    for text in (str(record), repr(record)):
        assert f"{record.epsilon:.4f}" not in text
        assert repr(record.epsilon) not in text
    assert record.drift_undecided == (size > 10)


@pytest.mark.parametrize("repair", QUICK)
def test_coverage_is_spoken_of_where_rows_do_not_drift(repair, generator):
    record = repair(scaled_gaussian(2, 1.0), None, _drifting(700, 0.0, generator), order="time").recalibration
    assert record.withheld == ""
    assert record.guarantee is not None
    assert not record.drift_undecided
    assert f"epsilon     {record.epsilon:.4f} (lambda" in str(record)
    assert f"epsilon={record.epsilon!r}" in repr(record)
    assert "no drift is seen" in str(record)


@pytest.mark.filterwarnings("ignore::latentcal.radius.DiscreteOutputWarning")
@pytest.mark.parametrize("repair", QUICK)
@pytest.mark.parametrize("n", [8, 40])
def test_norms_that_are_all_equal_can_be_recalibrated_in_time_order(repair, n):
    """They have no autocorrelation, which raised."""
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]], dtype=torch.float64).repeat(
        n // 4, 1
    )
    model = repair(scaled_gaussian(2, 1.0), None, y, order="time")
    record = model.recalibration
    assert bool(torch.isfinite(model(None).log_prob(y)).all())
    assert record.autocorrelation is None
    assert record.drift is None
    assert record.effective_n == n
    assert record.guarantee is None
    assert "cannot be tested for drift" in str(record)


def test_few_rows_in_time_order_promise_nothing(generator):
    y = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(2, 1.0)
    assert recalibrate(flow, None, y, order="time").recalibration.guarantee is None
    assert recalibrate(flow, None, y).recalibration.guarantee is not None


def test_what_is_withheld_is_withheld_from_a_file_too(tmp_path, generator):
    y = _drifting(700, 20.0, generator)
    with pytest.warns(AutocorrelationWarning):
        model = recalibrate(scaled_gaussian(2, 1.0), None, y, fit=ScaledRadius.fit, order="time")
    lc.save(model, tmp_path / "model")
    read = lc.load(tmp_path / "model").recalibration
    assert read.withheld == model.recalibration.withheld != ""
    assert read.guarantee is None
