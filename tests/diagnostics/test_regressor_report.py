"""FlowRegressor.diagnose speaks of the user's columns, and of before and after."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import NotFittedError

import latentcal as lc
from latentcal.diagnostics import diagnose
from latentcal.estimator import FlowRegressor

QUICK = {"samples": 20, "permutations": 399}


def household(n, seed):
    """Rent and heating, whose spread grows with the area; a linear model is wrong about it."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"area": rng.uniform(20, 90, n), "floor": rng.integers(0, 9, n).astype(float)})
    noise = rng.standard_t(3, (n, 2)) * (X["area"].to_numpy() / 50)[:, None] ** 2
    rent = 9 * X["area"] + 40 * noise[:, 0]
    return X, pd.DataFrame({"rent": rent, "heating <&>": rent / 10 + 5 * noise[:, 1]})


@pytest.fixture(scope="module")
def fitted():
    return FlowRegressor("linear_gaussian", random_state=0).fit(*household(1200, 0))


def test_the_report_has_the_names_of_the_columns_and_both_models(fitted, tmp_path):
    report = fitted.diagnose(*household(600, 1), samples=20)
    assert report.conditional.feature_names == ("area", "floor")
    assert [measure.name for measure in report.measured.marginals] == ["rent", "heating <&>"]
    assert "mostly on area" in report["PIT and x"].verdict
    assert report.faults[0] == "x-dependence"
    assert report.before["L-ECE"].value > 2 * report.measured["L-ECE"].value
    assert report.changes[0].high < 0  # NLL
    assert report.points.n == 180
    page = report.to_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "heating &lt;&amp;&gt;" in page


def test_before_is_the_model_before_recalibration_also_after_loading(fitted, tmp_path):
    X, Y = household(300, 2)
    x, y = (torch.tensor(part.to_numpy()) for part in (X, Y))
    before = fitted.base_model_(x).log_prob(y).detach().mean()
    fitted.save(tmp_path / "model")
    for estimator in (fitted, FlowRegressor.load(tmp_path / "model")):
        report = estimator.diagnose(X, Y, **QUICK)
        assert report.before["NLL"].value == pytest.approx(-float(before), rel=1e-9)
        assert report.measured["NLL"].value == pytest.approx(-fitted.score(X, Y), rel=1e-9)


def test_arrays_and_single_outputs_have_plain_names():
    X, Y = household(400, 3)
    estimator = FlowRegressor("linear_gaussian", recalibration=None, random_state=0)
    estimator.fit(X.to_numpy(), Y["rent"].to_numpy())
    X, Y = household(100, 4)
    report = estimator.diagnose(X.to_numpy(), Y["rent"].to_numpy(), **QUICK)
    assert report.conditional.feature_names == ("x[0]", "x[1]")
    assert [measure.name for measure in report.measured.marginals] == ["y"]
    assert report.before is None


def test_rows_of_the_training_are_warned_of_and_unfitted_estimators_told(fitted):
    X, Y = household(1200, 0)
    reuse = lc.recalibration.CalibrationReuseWarning
    with (
        pytest.warns(reuse, match="training rows of the flow"),
        pytest.warns(reuse, match="was recalibrated on"),
    ):
        fitted.diagnose(X, Y, **QUICK)
    with pytest.raises(NotFittedError):
        FlowRegressor().diagnose(X, Y)
    with pytest.raises(ValueError, match="fitted to"):
        fitted.diagnose(X, Y[["rent"]])


def test_tables_give_their_names_to_any_flow(fitted):
    X, Y = household(100, 5)
    report = diagnose(fitted.model_, X, Y, **QUICK)
    assert report.conditional.feature_names == ("area", "floor")
    assert "heating <&>" in str(report)
    other = diagnose(fitted.model_, X, Y, feature_names=["a", "b"], output_names=["c", "d"], **QUICK)
    assert other.measured.marginals[1].name == "d"
    with pytest.raises(ValueError, match="output_names must be 2 names"):
        diagnose(fitted.model_, X, Y, output_names="cd", **QUICK)
