"""What cannot be used as an argument of the readers, splits and image loaders is an error that names it."""

import numpy as np
import pytest
import torch

import same
from latentcal import splits
from latentcal.tables import Preprocessing, load_csv

pytest.importorskip("pyarrow")

TABLE = {"a": [*range(20)], "price": [*range(20)]}
RULES = Preprocessing.fit(TABLE, "price")
X, Y = torch.arange(300.0).reshape(100, 3), torch.arange(200.0).reshape(100, 2)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,price\n" + "".join(f"{i},{i * i % 101}\n" for i in range(120)))
    return path


READING = {
    "targets": ([None, 3, [1], [None]], TypeError),
    "drop": ([None, 3, [1]], TypeError),
    "delimiter": ([",,", "", None, "\n", '"', 5, "é"], ValueError),
    "encoding": ([None, 5], TypeError),
    "decimal": ([";", "", 5], ValueError),
    "weights": ([3, [1]], TypeError),
    "min_rows": (["10", None], TypeError),
    "max_rows": (["10", [5]], TypeError),
}


@pytest.mark.parametrize("name", READING)
def test_a_wrong_argument_of_the_reader_is_named(path, name):
    values, error = READING[name]
    for value in values:
        with pytest.raises(error, match=name):
            load_csv(path, **{"targets": "price", name: value})


def test_wrong_paths_seeds_and_limits_are_refused(path):
    for wrong in (None, 3, ["a.csv"]):
        with pytest.raises(TypeError, match="path must be the path of a file"):
            load_csv(wrong, "price")
    for options, error in (({"min_rows": -1}, ValueError), ({"max_rows": 0}, ValueError)):
        with pytest.raises(error, match="must be at least"):
            load_csv(path, "price", **options)
    for name in ("min_rows", "max_rows"):
        with pytest.raises(ValueError, match=rf"{name} must be a whole number .* got 1\.5"):
            load_csv(path, "price", **{name: 1.5})
    for seed, error in ((-1, ValueError), ("a", TypeError), (None, TypeError)):
        with pytest.raises(error, match="seed"):
            load_csv(path, "price", max_rows=110, seed=seed)
    with pytest.raises(TypeError, match="name must be column names"):
        load_csv(path, "price")[1]


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ("x", TypeError, "indices or a mask"),
        ([1.5], TypeError, "indices or a mask"),
        ([[1, 2]], TypeError, "indices or a mask"),
        ([100], ValueError, "between 0 and 19, got 100 to 100"),
        (np.ones(3, dtype=bool), ValueError, "a mask of 3 rows, but there are 20"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows, error, says):
    with pytest.raises(error, match=says):
        Preprocessing.fit(TABLE, "price", rows)


def test_a_table_that_is_none_is_refused():
    for table, error, says in (
        (np.zeros((3, 3)), TypeError, "Rows must be a path"),
        ({"a": [1, 2, 3], "price": [1, 2]}, ValueError, "'price' has shape"),
        ({"a": np.zeros((20, 2)), "price": range(20)}, ValueError, "of the same length"),
        ({"a": 1, "price": 2}, ValueError, "of the same length"),
        ({"a": np.arange(20) * 1j, "price": range(20)}, TypeError, "'a' has complex numbers"),
    ):
        with pytest.raises(error, match=says):
            Preprocessing.fit(table, "price")


@pytest.mark.parametrize(
    "change",
    [
        {"features": []},
        {"features": 5},
        {"features": [{"name": "a", "kind": "x", "levels": []}]},
        {"features": [{"name": 1, "kind": "real", "levels": []}]},
        {"targets": 5},
        {"targets": []},
        {"dropped": [1, 2]},
    ],
)
def test_a_damaged_preprocessing_is_refused(change):
    assert Preprocessing.from_dict(RULES.to_dict()) == RULES
    with pytest.raises(ValueError, match="damaged"):
        Preprocessing.from_dict({**RULES.to_dict(), **change})


def test_a_preprocessing_that_is_no_dictionary_is_refused():
    with pytest.raises(ValueError, match="has format"):
        Preprocessing.from_dict([1])


BAD_PAIRS = {
    "nothing": (None, TypeError, "a data set or a pair"),
    "x alone": (X, TypeError, "a data set or a pair"),
    "three": ((X, Y, Y), TypeError, "a data set or a pair"),
    "text": ((np.array([["a"]] * 100), Y), TypeError, "x must be"),
    "objects": ((X, np.array([[object()]] * 100)), TypeError, "y must be numbers"),
    "complex": ((X + 0j, Y), TypeError, "x must be real"),
    "sparse": ((X.to_sparse(), Y), TypeError, "x must be a dense tensor"),
    "ragged": (([[1, 2], [3]], [[1], [2]]), ValueError, "x must have rows of equal length"),
    "NaN": ((X, Y / 0), ValueError, "y has NaN or infinite values"),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_what_cannot_be_split_is_refused(case):
    pair, error, says = BAD_PAIRS[case]
    with pytest.raises(error, match=says):
        splits.split(pair, 0)


def test_tables_of_pandas_are_split_and_gradients_are_left_behind():
    pandas = pytest.importorskip("pandas")
    tables = pandas.DataFrame(X.numpy()), pandas.DataFrame(Y.numpy())
    expected = splits.split((X, Y), 0)
    assert same.repeated(splits.split(tables, 0).train.x, expected.train.x)
    assert not splits.split((X.clone().requires_grad_(), Y), 0).train.x.requires_grad


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"seed": None}, TypeError, "seed must be a whole number"),
        ({"seed": "a"}, TypeError, "seed must be a whole number"),
        ({"seed": 1.5}, ValueError, "seed must be a whole number"),
        ({"seed": 2**70}, ValueError, "seed must be at most"),
        ({"fractions": None}, ValueError, "three positive shares"),
        ({"fractions": "abc"}, ValueError, "three positive shares"),
        ({"fractions": (float("nan"), 0.5, 0.5)}, ValueError, "three positive shares"),
        ({"max_rows": "a"}, TypeError, "max_rows must be a whole number"),
        ({"max_rows": 50.5}, ValueError, "max_rows must be a whole number"),
        ({"calibration": "a"}, ValueError, "calibration is taken from"),
        ({"calibration": float("nan")}, ValueError, "calibration is taken from"),
    ],
)
def test_a_wrong_argument_of_a_split_is_named(options, error, says):
    with pytest.raises(error, match=says):
        splits.split((X, Y), **{"seed": 0, **options})


def test_missing_and_mixed_labels_are_refused():
    for labels in ([None] * 100, [1.0, float("nan")] * 50, np.array(["NaT"] * 100, "datetime64[D]")):
        with pytest.raises(ValueError, match="time has missing values, first in row"):
            splits.time_split((X, Y), labels)
        with pytest.raises(ValueError, match="groups has missing values"):
            splits.group_split((X, Y), labels, 0)
    mixed = np.array([1, "a"] * 50, dtype=object)
    with pytest.raises(TypeError, match="all numbers, all dates or all texts"):
        splits.group_split((X, Y), mixed, 0)
    assert len(splits.time_split((X, Y), torch.arange(100.0, requires_grad=True)).train.x) == 65


def test_folds_of_no_whole_number_are_refused():
    for folds in (splits.time_folds, splits.rolling_origin):
        with pytest.raises(TypeError, match="n must be a whole number"):
            list(folds("a"))
        for wrong in ({"n": 10.5}, {"n": 10, "folds": 2.5}, {"n": 10, "gap": 1.5}):
            with pytest.raises(ValueError, match="must be a whole number"):
                list(folds(**wrong))
