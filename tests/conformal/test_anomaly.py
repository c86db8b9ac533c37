"""P-values of new observations are valid whatever the model's errors."""

import math

import pytest
import torch
from conformal_toys import Skewed, data, mixture

import same
from latentcal.conformal import anomaly_pvalue, conformal_region
from latentcal.fingerprint import CalibrationReuseWarning
from latentcal.radius import StackedRadius
from latentcal.recalibration import recalibrate
from toys import scaled_gaussian

SCORES = ["latent", "density"]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("randomize", [False, True])
def test_false_alarms_are_as_rare_as_stated(score, randomize, generator):
    n, repetitions, fresh, rates = 49, 400, 100, torch.tensor([0.01, 0.05, 0.1, 0.5]).double()
    alarms = torch.empty(repetitions, len(rates), dtype=torch.float64)
    for i in range(repetitions):
        x, y = data(n + fresh, 2, generator)
        p = anomaly_pvalue(
            Skewed(2),
            x[n:],
            y[n:],
            calibration=(x[:n], y[:n]),
            score=score,
            randomize=randomize,
            generator=generator,
        )
        alarms[i] = (p[:, None] <= rates + 1e-12).double().mean(0)
    noise = 4 * alarms.std(0) / math.sqrt(repetitions) + 1e-12  # fails with probability 6e-5 a rate
    mean = alarms.mean(0)
    expected = rates if randomize else torch.floor(rates * (n + 1) + 1e-9) / (n + 1)
    assert bool(((mean - expected).abs() <= noise).all())
    assert noise.max() < 0.02


def test_p_values_of_a_model_that_is_trusted_are_not_valid(generator):
    """Control: ranks among draws of an overconfident model raise too many alarms."""
    x, y = data(2000, 2, generator)
    draws = Skewed(2)(x[:1000]).sample(generator=generator)
    p = anomaly_pvalue(Skewed(2), x[1000:], y[1000:], calibration=(x[:1000], draws))
    assert float((p <= 0.05).double().mean()) > 0.2


def test_anomalies_are_found(generator):
    x, y = data(999, 2, generator)
    for score in SCORES:
        p = anomaly_pvalue(Skewed(2), x[:5], y[:5] + 1e4, calibration=(x, y), score=score)
        assert p.tolist() == pytest.approx([0.001] * 5)
    y = mixture(torch.zeros(500, 2)).sample()
    between, mode = torch.zeros(2), torch.ones(2)
    p = anomaly_pvalue(
        lambda x: mixture(torch.zeros(2)),
        None,
        torch.stack([between, mode]),
        calibration=(None, y),
        score="density",
    )
    assert p[0] < 0.1 < 0.9 < p[1]  # a hole in the middle, which a distance from the centre would not find


def test_the_p_value_counts_scores_that_are_as_large():
    flow = scaled_gaussian(1, 1.0)
    calibration = (None, torch.tensor([[1.0], [2.0], [-2.0], [3.0]]).double())
    y = torch.tensor([[0.0], [1.0], [1.5], [2.0], [-3.0], [4.0]]).double()
    p = anomaly_pvalue(flow, None, y, calibration=calibration)
    assert p.dtype == torch.float64
    assert p.tolist() == pytest.approx([1.0, 1.0, 0.8, 0.8, 0.4, 0.2])


def test_randomised_p_values_of_tied_scores_fill_the_interval(generator):
    flow = scaled_gaussian(1, 1.0)
    calibration = (None, torch.tensor([[1.0], [2.0], [-2.0], [3.0]]).double())
    y = torch.full((1000, 1), 2.0).double()
    p = anomaly_pvalue(flow, None, y, calibration=calibration, randomize=True, generator=generator)
    assert 0.2 < float(p.min()) < 0.21
    assert 0.79 < float(p.max()) < 0.8


def test_a_region_holds_what_has_a_larger_p_value(generator):
    x, y = data(300, 2, generator)
    for rows in (slice(99), slice(99, 300)):  # calibration rows, one of them on the boundary, and others
        p = anomaly_pvalue(Skewed(2), x[rows], y[rows], calibration=(x[:99], y[:99]))
        for coverage in (0.5, 0.9):
            region = conformal_region(Skewed(2), x[:99], y[:99], coverage=coverage)
            assert same.decided(region.contains(y[rows], x[rows]), p > 1 - coverage + 1e-9)


def test_samples_in_front_broadcast(generator):
    x, y = data(60, 2, generator)
    many = Skewed(2)(x[50:]).sample((7,), generator=generator)
    p = anomaly_pvalue(Skewed(2), x[50:], many, calibration=(x[:50], y[:50]))
    assert p.shape == (7, 10)
    alone = anomaly_pvalue(Skewed(2), x[50:], many[3], calibration=(x[:50], y[:50]))
    torch.testing.assert_close(p[3], alone)


def test_rows_of_the_recalibration_are_recognised(generator):
    x, y = data(200, 2, generator)
    model = recalibrate(Skewed(2), x[:100], y[:100], fit=StackedRadius.fit)
    with pytest.warns(CalibrationReuseWarning, match="About 100%") as caught:
        anomaly_pvalue(model, x[100:], y[100:], calibration=(x[:100], y[:100]), score="density")
    assert caught[0].filename == __file__
    anomaly_pvalue(model, x[:100], y[:100], calibration=(x[100:], y[100:]), score="density")
