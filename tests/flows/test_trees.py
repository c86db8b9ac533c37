import numpy as np
import pytest
import torch

import same
from latentcal.flows import TreeEnsemble

ensemble = pytest.importorskip("sklearn.ensemble")


def _rows(n=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    return x, np.stack([x[:, 0] * x[:, 1], np.abs(x[:, 2])], 1) + 0.1 * rng.normal(size=(n, 2))


def _near(thresholds, features):
    """Rows whose features are thresholds, and what float64 and float32 have beside them."""
    at = np.concatenate([thresholds, np.nextafter(thresholds, 1e9), thresholds + 1e-9, thresholds - 1e-9])
    rng = np.random.default_rng(1)
    return rng.choice(at, size=(2000, features))


def _boosting(y, **options):
    model = ensemble.HistGradientBoostingRegressor(max_iter=60, max_leaf_nodes=9, random_state=0, **options)
    return model.fit(_rows()[0], y)


@pytest.mark.parametrize("name", ["RandomForestRegressor", "ExtraTreesRegressor"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_trees_of_a_forest_answer_as_the_forest_does(name, outputs):
    x, y = _rows()
    forest = getattr(ensemble, name)(90, random_state=0).fit(x, y if outputs == 2 else y[:, 0])
    trees = TreeEnsemble.from_sklearn(forest)
    near = _near(np.concatenate([each.tree_.threshold for each in forest.estimators_[:5]]), 4)
    for points in (x, near):  # the second in several parts
        expected = forest.predict(points).reshape(len(points), -1)
        torch.testing.assert_close(trees(torch.from_numpy(points)), torch.from_numpy(expected))
    # Control: without the rounding of forests to float32 rows beside a threshold go the other way.
    parts = (trees.feature, trees.threshold, trees.left, trees.right, trees.value, trees.root, trees.target)
    double = TreeEnsemble(*parts, trees.level, 4)
    assert (trees.threshold.dtype, trees.value.dtype) == (torch.float32, torch.float32)
    assert float((double(torch.from_numpy(near)) - trees(torch.from_numpy(near))).abs().max()) > 0.01


def test_values_that_float32_cannot_hold_stay_float64():
    x, y = _rows()
    for size, kind in ((1.0, torch.float32), (1e60, torch.float64), (1e-60, torch.float64)):
        forest = ensemble.ExtraTreesRegressor(5, random_state=0).fit(x, size * y)
        trees = TreeEnsemble.from_sklearn(forest)
        assert trees.value.dtype == kind
        answers = torch.from_numpy(forest.predict(x)) / size
        torch.testing.assert_close(trees(torch.from_numpy(x)) / size, answers)


def test_trees_of_boosting_answer_as_the_models_do():
    x, y = _rows()
    models = [_boosting(column) for column in y.T]
    trees = TreeEnsemble.from_sklearn(*models)
    near = _near(np.concatenate([each[0].nodes["num_threshold"] for each in models[0]._predictors[:5]]), 4)
    for points in (x, near):
        expected = np.stack([model.predict(points) for model in models], 1)
        torch.testing.assert_close(trees(torch.from_numpy(points)), torch.from_numpy(expected))


def test_trees_take_leading_dims_and_stay_float64_in_a_model_that_is_cast():
    x, _ = _rows(60)
    trees = TreeEnsemble.from_sklearn(_boosting(_rows()[1][:, 0])).float()
    points = torch.from_numpy(x).reshape(5, 12, 4)
    assert trees(points).shape == (5, 12, 1)
    assert trees(points).dtype == torch.float64
    torch.testing.assert_close(trees(points[3, 7]), trees(points)[3, 7])
    assert same.decided(trees.left.dtype == torch.int32, True)


def _stump(**changes):
    whole = {"dtype": torch.int32}
    parts = {
        "feature": torch.tensor([1, 0, 0], **whole),
        "threshold": torch.tensor([0.5, 0.0, 0.0]).double(),
        "left": torch.tensor([1, 1, 2], **whole),
        "right": torch.tensor([2, 1, 2], **whole),
        "value": torch.tensor([[0.0], [-1.0], [2.0]]).double(),
        "root": torch.tensor([0], **whole),
        "target": torch.tensor([1], **whole),
        "level": torch.tensor([10.0, 20.0]).double(),
        "features": 2,
    }
    return TreeEnsemble(**{**parts, **changes})


def test_a_stump_sends_a_row_at_its_threshold_to_the_left():
    x = torch.tensor([[9.0, 0.5], [9.0, 0.6]])
    torch.testing.assert_close(_stump()(x), torch.tensor([[10.0, 19.0], [10.0, 22.0]]).double())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left": torch.tensor([0, 1, 2], dtype=torch.int32)}, "come after the node"),
        ({"right": torch.tensor([3, 1, 2], dtype=torch.int32)}, "right must lie between 0 and 2"),
        ({"feature": torch.tensor([2, 0, 0], dtype=torch.int32)}, "feature must lie between 0 and 1"),
        ({"target": torch.tensor([2], dtype=torch.int32)}, "target must lie between 0 and 1"),
        ({"left": torch.tensor([1, 1, 2])}, r"left must be \(3,\) and int32"),
        ({"threshold": torch.tensor([0.5, 0.0, torch.nan]).double()}, "threshold must be finite"),
    ],
)
def test_arrays_that_are_no_trees_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        _stump(**changes)


def test_models_that_are_no_trees_are_refused():
    linear = pytest.importorskip("sklearn.linear_model").LinearRegression()
    with pytest.raises(TypeError, match=r"one fitted RandomForestRegressor.*got \['LinearRegression'\]"):
        TreeEnsemble.from_sklearn(linear)
    with pytest.raises(ValueError, match="Pass a fitted forest"):
        TreeEnsemble.from_sklearn()
    labels = np.repeat(np.arange(3.0), 100)[:, None]
    model = ensemble.HistGradientBoostingRegressor(categorical_features=[0], max_iter=3)
    with pytest.raises(ValueError, match="split on categories"):
        TreeEnsemble.from_sklearn(model.fit(labels, np.sin(3 * labels[:, 0])))


def test_rows_of_another_width_are_refused():
    with pytest.raises(ValueError, match="needs 2 features"):
        _stump()(torch.zeros(3, 4))
