"""Regions, probabilities and p-values of the estimator are those of its flow and its calibration rows."""

import numpy as np
import pytest
import torch

import latentcal as lc

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    x, y = lc.toy.heteroscedastic_linear().sample(1500, generator, torch.float64)
    return [(x[rows].numpy(), y[rows].numpy()) for rows in (slice(600), slice(600, 1000), slice(1000, None))]


@pytest.fixture(scope="module")
def fitted(data):
    train, calibration, _ = data
    estimator = lc.FlowRegressor("linear_gaussian", random_state=0)
    return estimator.fit(*train, calibration=calibration)


def test_the_region_is_the_conformal_one_of_the_calibration_rows(fitted, data):
    _, calibration, (X, Y) = data
    expected = lc.conformal_region(fitted.base_model_, *map(torch.from_numpy, calibration), coverage=0.8)
    region = fitted.predict_region(X, coverage=0.8)
    inside = region.contains(Y)
    assert inside.tolist() == expected.contains(torch.from_numpy(Y), torch.from_numpy(X)).tolist()
    # 500 new rows and the 400 of the calibration: a deviation of 0.027, so 0.12 is left in 1e-5 of cases.
    assert abs(inside.mean() - 0.8) < 0.12
    lower, upper = region.bounds()
    assert lower.shape == upper.shape == Y.shape
    assert ((lower - 1e-6 <= Y) & (upper + 1e-6 >= Y)).all(1)[inside].all()
    assert region.volume(samples=64).shape == (len(Y),)
    draws = region.sample(3)
    assert draws.shape == (3, *Y.shape)
    assert all(region.contains(draw).all() for draw in draws)


def test_several_levels_give_nested_regions(fitted, data):
    X, Y = data[2]
    inside = fitted.predict_region(X, coverage=[0.5, 0.9]).contains(Y)
    assert inside.shape == (2, len(Y))
    assert (inside[1] >= inside[0]).all()


def test_the_probability_of_a_box_is_that_of_the_model(fitted, data):
    X, _ = data[2]
    value, error = fitted.probability(X[:5], ([-1, -1], [1, 2]), return_error=True)
    expected = lc.probability(fitted.model_, torch.from_numpy(X[:5]), lc.events.Box([-1, -1], [1, 2]))
    assert np.allclose(value, expected.value.numpy(), atol=1e-6)
    assert (error < 1e-3).all()
    half = fitted.probability(X[:5], lc.events.HalfSpace([1.0, 0.0], 0.0))
    assert ((half > 0) & (half < 1)).all()
    np.testing.assert_allclose(fitted.probability(X[:5], lc.events.HalfSpace([1.0, 0.0], 0.0)), half)


def test_the_pvalue_is_the_conformal_one(fitted, data):
    _, calibration, (X, Y) = data
    pair = tuple(map(torch.from_numpy, calibration))
    expected = lc.anomaly_pvalue(
        fitted.base_model_, torch.from_numpy(X), torch.from_numpy(Y), calibration=pair
    )
    np.testing.assert_allclose(fitted.anomaly_pvalue(X, Y), expected.numpy())
    np.testing.assert_allclose(fitted.anomaly_pvalue(X, Y + 100), 1 / 401)


def test_regions_survive_saving_and_follow_a_recalibration(fitted, data, tmp_path):
    X, Y = data[2]
    fitted.save(tmp_path)
    again = lc.FlowRegressor.load(tmp_path)
    inside = fitted.predict_region(X).contains(Y)
    assert again.predict_region(X).contains(Y).tolist() == inside.tolist()
    wide = again.recalibrate(X[:200], 3 * Y[:200])
    assert wide.predict_region(X).contains(Y).mean() > inside.mean() + 0.05


def test_one_output_has_intervals(data):
    (X, Y), _, (X_new, Y_new) = data
    estimator = lc.FlowRegressor("linear_gaussian", random_state=0).fit(X, Y[:, 0])
    region = estimator.predict_region(X_new)
    lower, upper = region.bounds()
    assert ((Y_new[:, 0] >= lower[:, 0]) & (Y_new[:, 0] <= upper[:, 0])).tolist() == region.contains(
        Y_new[:, 0]
    ).tolist()


def test_without_calibration_rows_there_is_no_guarantee(data):
    (X, Y), *_ = data
    estimator = lc.FlowRegressor("linear_gaussian", recalibration=None, random_state=0).fit(X, Y)
    for ask in (lambda: estimator.predict_region(X), lambda: estimator.anomaly_pvalue(X, Y)):
        with pytest.raises(ValueError, match="Guarantees need calibration rows"):
            ask()
    assert estimator.probability(X[:1], ([-1, -1], [1, 1])).shape == (1,)


def test_calibration_on_the_training_rows_is_noticed(data):
    train, *_ = data
    with pytest.warns(lc.recalibration.CalibrationReuseWarning, match="training rows of the flow"):
        lc.FlowRegressor("linear_gaussian", random_state=0).fit(*train, calibration=train)


def test_columns_in_another_order_are_refused_and_any_array_is_taken(data):
    pd = pytest.importorskip("pandas")
    (X, Y), _, (X_new, Y_new) = data
    table = pd.DataFrame(Y, columns=["u", "v"])
    region = lc.FlowRegressor("linear_gaussian", random_state=0).fit(X, table).predict_region(X_new)
    new = pd.DataFrame(Y_new, columns=["u", "v"])
    assert region.contains(new).tolist() == region.contains(Y_new).tolist()
    assert region.contains(np.flip(np.flip(Y_new, 0), 0)).tolist() == region.contains(Y_new).tolist()
    with pytest.raises(ValueError, match=r"y has the columns \['v', 'u'\]"):
        region.contains(new[["v", "u"]])


def test_a_predicted_region_has_its_probability(fitted, data):
    X, _ = data[2]
    inside = fitted.probability(X[:3], fitted.predict_region(X[:3], coverage=0.8))
    assert (abs(inside - 0.8) < 0.1).all()
