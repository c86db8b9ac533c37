"""Which rows of a table do what: weights in every step, and what becomes of few calibration rows."""

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

import latentcal as lc
import same
from latentcal.estimator import FewCalibrationRowsWarning, FlowRegressor, TablePredictor
from latentcal.estimator.harm import HeldOutChange


def rows(n, seed=0, slope=2.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, slope * x[:, :1] + random.normal(size=(n, 1)) * [[1.0, 0.5]]


def regressor(**options):
    return FlowRegressor("linear_gaussian", random_state=0, **{"recalibration": "scaled", **options})


def test_rows_without_weight_do_not_train_stop_or_calibrate(monkeypatch):
    monkeypatch.setattr(HeldOutChange, "harms", False)
    x, y = rows(300)
    odd = (np.arange(300) % 2).astype(float)
    y = np.where(odd[:, None] > 0, y, y + 50 * x[:, 1:])  # other rows follow another law
    options = {"flow_options": {"penalties": [1e-3]}}
    parts = {
        name: (*rows(100, seed), np.repeat([0.0, 1.0], 50))
        for seed, name in ((1, "validation"), (2, "calibration"))
    }
    weighted = regressor(**options).fit(x, y, **parts, sample_weight=odd)
    counted = {name: [values[50:] for values in part[:2]] for name, part in parts.items()}
    alone = regressor(**options).fit(x[odd > 0], y[odd > 0], **counted)
    np.testing.assert_allclose(weighted.predict(x), alone.predict(x), rtol=1e-6, atol=1e-6)
    equal = regressor(**options).fit(x, y, **{name: part[:2] for name, part in parts.items()})
    assert np.abs(equal.predict(x) - alone.predict(x)).mean() > 1  # control
    assert weighted.model_.recalibration.effective_n == pytest.approx(50)
    assert equal.model_.recalibration.effective_n == pytest.approx(100)


@pytest.mark.parametrize("flow", ["convex_potential", "flow_matching"])
def test_weights_are_split_with_the_rows(flow, monkeypatch):
    monkeypatch.setattr(HeldOutChange, "harms", False)
    x, y = rows(200)
    small = {"convex_potential": {"hidden": 8}, "flow_matching": {"hidden": 8, "layers": 1, "steps": 4}}[flow]
    estimator = FlowRegressor(
        flow, flow_options=small, max_epochs=2, recalibration="scaled", random_state=0
    ).fit(x, y, sample_weight=np.linspace(0.5, 1.5, 200))
    assert estimator.model_.recalibration.effective_n < 30  # of 30 rows
    assert np.isfinite(estimator.predict(x)).all()


def test_recalibration_takes_weights_and_regions_do_not(monkeypatch):
    monkeypatch.setattr(HeldOutChange, "harms", False)
    estimator = regressor().fit(*rows(300))
    x, y = rows(80, 3)
    weights = np.linspace(0.1, 1, 80)
    weighted, equal = (
        regressor().fit(*rows(300)).recalibrate(x, y, sample_weight=each) for each in (weights, None)
    )
    expected = lc.recalibrate(
        estimator.base_model_,
        *map(torch.tensor, (x, y)),
        fit=lc.radius.ScaledRadius.fit,
        weights=torch.tensor(weights),
    )
    scales = [model.base.radius.scale for model in (expected, weighted.model_, equal.model_)]
    assert scales[0] == pytest.approx(scales[1])
    assert scales[0] != pytest.approx(scales[2])
    bounds = [each.predict_region(x[:3]).bounds() for each in (weighted, equal)]
    np.testing.assert_allclose(bounds[0], bounds[1])


def test_wrong_weights_are_refused():
    x, y = rows(200)
    with pytest.raises(ValueError, match="weights must be"):
        regressor().fit(x, y, sample_weight=np.ones(10))
    with pytest.raises(ValueError, match="not negative"):
        regressor().fit(x, y, calibration=(x, y, -np.ones(200)))
    with pytest.raises(ValueError, match="weights must be"):
        regressor().fit(x, y).recalibrate(x, y, sample_weight=np.ones(3))


def test_a_model_with_few_calibration_rows_stays_as_it_was_trained(tmp_path):
    with pytest.warns(FewCalibrationRowsWarning, match=r"at least 20 calibration rows, got 14: the model"):
        estimator = regressor().fit(*rows(93))
    assert estimator.model_ is estimator.base_model_
    assert estimator.calibration_ == "left as trained: 14 calibration rows, fewer than 20"
    # Conformal regions need no law: 14 rows reach 14 / 15 of coverage.
    assert np.isfinite(estimator.predict_region(rows(5, 1)[0], 0.8).bounds()).all()
    estimator.save(tmp_path / "model")
    for kind in (FlowRegressor, TablePredictor):
        again = kind.load(tmp_path / "model")
        assert again.calibration_ == estimator.calibration_
        assert same.copied(again._norms, estimator._norms)
    again.recalibrate(*rows(40, 2))
    assert again.calibration_.startswith("recalibrated on 40 rows: NLL -")
    assert again.model_.recalibration.n == 40


def test_twenty_calibration_rows_recalibrate_and_fewer_are_refused_later():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator = regressor().fit(*rows(200), calibration=rows(20, 1))
    assert estimator.calibration_.startswith("recalibrated on 20 rows: NLL -")
    with pytest.warns(FewCalibrationRowsWarning):
        assert regressor().fit(*rows(200), calibration=rows(19, 1)).model_.recalibration is None
    with pytest.raises(ValueError, match="Recalibration needs at least 20 rows, got 19"):
        estimator.recalibrate(*rows(19, 1))
    assert estimator.calibration_.startswith("recalibrated on 20 rows: NLL -")
    assert regressor(recalibration=None).fit(*rows(50)).calibration_ == "left as trained"
