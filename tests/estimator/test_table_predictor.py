"""TablePredictor answers as the FlowRegressor that was saved, and without scikit-learn."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import latentcal as lc
from latentcal.estimator import TablePredictor
from latentcal.estimator.storage import PARAMETERS

pytest.importorskip("sklearn")


def rows(n, seed):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "b"])
    noise = rng.normal(size=(n, 2))
    return X, pd.DataFrame({"u": X["a"] + noise[:, 0], "v": X["b"] + noise @ [0.5, 0.5]})


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """An estimator, and what its folder is without scikit-learn."""
    folder = tmp_path_factory.mktemp("predictor") / "model"
    estimator = lc.FlowRegressor("linear_gaussian", recalibration="scaled", draws=32, random_state=0)
    estimator.fit(*rows(200, 0)).save(folder)
    return estimator, TablePredictor.load(folder)


ASKED = {
    "predict": lambda model, X, Y: model.predict(X),
    "quantile": lambda model, X, Y: model.predict_quantile(X, 0.9),
    "quantiles": lambda model, X, Y: model.predict_quantile(X, [0.1, 0.9]),
    "sample": lambda model, X, Y: model.sample(X, 3),
    "log_prob": lambda model, X, Y: model.log_prob(X, Y),
    "inside": lambda model, X, Y: model.predict_region(X, 0.8).contains(Y),
    "bounds": lambda model, X, Y: np.stack(model.predict_region(X, 0.8).bounds(quick=True)),
    "probability": lambda model, X, Y: model.probability(X, ([-1, -1], [1, 1]), samples=256),
    "pvalue": lambda model, X, Y: model.anomaly_pvalue(X, Y),
}


@pytest.mark.parametrize("name", ASKED)
def test_it_answers_as_the_estimator(pair, name):
    X, Y = rows(20, 1)
    expected, found = (ASKED[name](model, X, Y) for model in pair)
    assert type(found) is type(expected)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-9, atol=1e-9)
    if isinstance(found, pd.DataFrame):
        pd.testing.assert_frame_equal(found, expected)


def test_the_report_is_that_of_the_estimator(pair):
    X, Y = rows(60, 1)
    reports = [model.diagnose(X, Y, generator=torch.Generator().manual_seed(0)) for model in pair]
    assert str(reports[0]) == str(reports[1])


def test_tensors_and_arrays_are_taken_as_tables_are(pair):
    X, _ = rows(20, 1)
    expected = pair[1].predict(X).to_numpy()
    for given in (X.to_numpy(), torch.tensor(X.to_numpy()), X.to_numpy().tolist()):
        np.testing.assert_allclose(np.asarray(pair[1].predict(given)), expected)


def test_mean_and_quantiles_come_together(pair):
    X, _ = rows(20, 1)
    for model in pair:
        for q in (0.3, [0.1, 0.5, 0.9]):
            mean, quantiles = model.predict_with_quantiles(X, q)
            np.testing.assert_allclose(mean, model.predict(X))
            np.testing.assert_allclose(quantiles, model.predict_quantile(X, q))
            assert type(quantiles) is type(model.predict_quantile(X, q))


def test_it_recalibrates_and_is_saved_as_the_estimator(pair, tmp_path):
    _, predictor = pair
    X, Y = rows(100, 2)
    predictor.save(tmp_path / "before")
    changed = TablePredictor.load(tmp_path / "before")
    changed.recalibration = "spline"
    changed.recalibrate(X, 3 * Y).save(tmp_path / "after")
    again = lc.FlowRegressor.load(tmp_path / "after")
    assert type(again.model_.recalibration.law) is lc.SplineRadius
    assert again.get_params()["recalibration"] == "spline"
    np.testing.assert_allclose(again.log_prob(X, Y), changed.log_prob(X, Y), rtol=1e-9)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda model, X, Y: model.predict(X[["b", "a"]]), r"X has the columns \['b', 'a'\]"),
        (lambda model, X, Y: model.predict(X.to_numpy()[:, :1]), r"X must be \(n, 2\)"),
        (lambda model, X, Y: model.predict(X[:0]), "at least one row"),
        (lambda model, X, Y: model.predict(X / 0), "NaN or infinite"),
        (lambda model, X, Y: model.log_prob(X, Y[["v", "u"]]), "in the same order"),
        (lambda model, X, Y: model.log_prob(X, Y[["u"]]), "y has 1 output"),
        (lambda model, X, Y: model.log_prob(X, Y[:5]), "must have the 20 rows of X"),
        (lambda model, X, Y: model.predict_quantile(X, 1e-4), "set draws=5000 or more"),
    ],
)
def test_other_rows_than_those_of_the_fit_are_refused(pair, ask, says):
    with pytest.raises(ValueError, match=says):
        ask(pair[1], *rows(20, 1))


def test_every_parameter_has_a_form_in_files():
    assert set(PARAMETERS) == set(lc.FlowRegressor().get_params())


def test_a_parameter_of_a_subclass_is_not_lost_in_silence(tmp_path):
    class WithName(lc.FlowRegressor):
        def __init__(self, flow="linear_gaussian", *, name="a"):
            super().__init__(flow, random_state=0)
            self.name = name

    estimator = WithName().fit(*rows(140, 0))
    with pytest.raises(TypeError, match=r"The parameters \['name'\] of WithName cannot be saved"):
        estimator.save(tmp_path / "model")


def test_predictions_do_without_scikit_learn(pair, tmp_path):
    pair[0].save(tmp_path / "model")
    script = f"""
import sys
sys.modules["sklearn"] = None
import numpy as np
from latentcal.estimator import TablePredictor
model = TablePredictor.load({str(tmp_path / "model")!r})
x = np.zeros((30, 2))
y = np.random.default_rng(0).normal(size=(30, 2))
assert model.predict(x).shape == (30, 2)
model.predict_region(x).contains(y)
model.diagnose(x, y)
model.recalibrate(x, y).save({str(tmp_path / "again")!r})
try:
    from latentcal.estimator import FlowRegressor
except ImportError as error:
    assert "latentcal[sklearn]" in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", script], check=True)
