"""The user's own table: read with clear errors, and its rules learned on the training part of a split."""

import numpy as np
import pytest
import torch

import same
from latentcal.splits import group_split, split, time_split
from latentcal.tables import LeakWarning, Preprocessing, load_csv

pytest.importorskip("pyarrow")

N = 200


def table(n=N):
    generator = np.random.default_rng(3)
    return {
        "size": generator.normal(5, 3, n).round(4),
        "colour": generator.choice(["red", "green", "blue"], n),
        "date": [f"2024-{1 + i // 28:02d}-{1 + i % 28:02d}" for i in range(n)],
        "house": [f"house {i // 4}" for i in range(n)],
        "height": generator.normal(0, 1, n).round(4),
        "weight": generator.normal(70, 9, n).round(2),
    }


def write(path, columns, delimiter=","):
    rows = [
        delimiter.join(columns),
        *(delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def data(tmp_path):
    return load_csv(write(tmp_path / "mine.csv", table()), targets=["weight", "height"])


def test_features_are_the_other_columns_and_targets_keep_their_order(data):
    assert repr(data) == "Dataset('mine': 200 rows, 9 features, 2 targets)"
    assert data.feature_names == (
        *("colour=blue", "colour=green", "colour=red"),
        *("date:year", "date:month_sin", "date:month_cos", "date:weekday_sin", "date:weekday_cos", "size"),
    )
    assert data.target_names == ("weight", "height")
    columns = table()
    assert same.copied(data.y[:, 0].numpy(), columns["weight"].astype(np.float32))
    assert same.copied(data.x[:, 8].numpy(), columns["size"].astype(np.float32))
    assert data.preprocessing.dropped == {
        "house": "text with 50 distinct values, more than 20",
    }
    assert data.rows.tolist() == list(range(N))
    assert data.note == ""


def test_the_order_of_the_columns_does_not_matter(data, tmp_path):
    other = load_csv(write(tmp_path / "b.csv", dict(reversed(table().items()))), targets=["weight", "height"])
    assert same.copied(other.x, data.x)
    assert same.copied(other.y, data.y)


def test_one_target_may_be_named_without_a_list(tmp_path):
    data = load_csv(write(tmp_path / "a.csv", table()), targets="weight", drop=["height"])
    assert data.y.shape == (N, 1)
    assert "height" not in data.feature_names


def test_one_column_may_be_dropped_without_a_list(tmp_path):
    columns = {**table(), "e": table()["size"]}  # a letter of the other one
    data = load_csv(write(tmp_path / "a.csv", columns), targets="weight", drop="size")
    assert "e" in data.feature_names
    assert "size" not in data.feature_names


def test_rows_that_miss_a_target_or_a_feature_are_left_out_and_counted(tmp_path):
    columns = {name: [*map(str, cells)] for name, cells in table().items()}
    columns["weight"][3] = columns["weight"][5] = "NA"
    columns["size"][10] = ""
    columns["house"][20] = ""  # which is no feature, so that the row stays
    data = load_csv(write(tmp_path / "a.csv", columns), targets=["weight", "height"])
    assert data.note == "3 of 200 rows are left out because values are missing: weight (2), size (1)."
    assert data.rows.tolist() == [i for i in range(N) if i not in (3, 5, 10)]
    assert str(data["date"][3].astype("datetime64[D]")) == columns["date"][4]
    assert len(data["size"]) == len(data) == N - 3


def test_a_row_index_as_pandas_writes_it_goes(data, tmp_path):
    indexed = load_csv(write(tmp_path / "i.csv", {"": range(N), **table()}), targets=["weight", "height"])
    assert same.copied(indexed.x, data.x)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {"targets": ["weigth"]}, r"\['weigth'\] are missing; did you mean 'weight'\?"),
        ({}, {"drop": ["nothing like it"]}, r"\['nothing like it'\] are missing among"),
        ({}, {"targets": ["weight"], "drop": ["weight"]}, r"\['weight'\] are in both targets and drop"),
        ({"weight": ["a", *["2"] * (N - 1)]}, {}, r"targets \['weight'\] are text.*\['a'\]"),
        ({"weight": ["2024-05-01"] * N}, {}, r"targets \['weight'\] are dates.*\['2024-05-01"),
        ({"weight": ["1,5"] * N}, {"delimiter": ";"}, r"'weight' has .* comma, such as '1,5'.*decimal=','"),
        ({"weight": [""] * N}, {}, "None of its 200 rows has all the targets"),
        ({"size": [""] * 20 + ["1"] * 180}, {"min_rows": 190}, None),
        (
            {"size": [""] * 20 + [*range(180)]},
            {"min_rows": 190},
            "180 of its 200 rows are complete; at least 190",
        ),
        ({"size": [0, "1e300", *range(N - 2)]}, {}, r"\['size'\] have .* too large .* first in row 1 of"),
        ({"weight": [1.5] * N}, {}, r"targets \['weight'\] are constant"),
        ({"weight": [1_700_000_000 + i % 50 for i in range(N)]}, {}, "constant in float32.*offset"),
        ({}, {"targets": ["Weight"]}, r"did you mean 'weight'\?"),
        ({}, {"missing": "raise"}, "missing must be 'drop' or 'error' or 'impute', got 'raise'"),
        ({" size ": range(N)}, {}, r"\['size'\] occur more than once"),
        ({" ": range(N)}, {}, "a column has no name"),
    ],
)
def test_a_table_that_cannot_be_used_is_an_error_that_says_why(tmp_path, change, options, message):
    path = write(tmp_path / "a.csv", {**table(), **change}, delimiter=options.get("delimiter", ","))
    options = {"targets": ["weight", "height"], **options}
    if message is None:
        assert len(load_csv(path, **options)) == N  # control: a feature that goes takes no rows with it
        return
    with pytest.raises(ValueError, match=message) as error:
        load_csv(path, **options)
    assert (
        str(path) in str(error.value) or "in both targets and drop" in message or "missing must be" in message
    )


def test_a_file_that_is_no_table_is_one_clear_error(tmp_path):
    path = write(tmp_path / "a.csv", table(), delimiter="\t")
    with pytest.raises(ValueError, match=r"it has a single column, .* pass delimiter='\\t'"):
        load_csv(path, "weight")
    assert len(load_csv(path, "weight", delimiter="\t")) == N
    path.write_bytes("größe,weight\n1,2\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"not utf-8 text.*encoding="):
        load_csv(path, "weight")
    path.write_text("<!doctype html><p>Log in.</p>")
    with pytest.raises(ValueError, match="a web page"):
        load_csv(path, "weight")
    path.write_text("a,weight\n1,2\n3\n")
    with pytest.raises(ValueError, match="row 1 of the data has 1 values, but there are 2 columns"):
        load_csv(path, "weight")
    path.write_text("a;weight\n1,5;2,5\n")
    with pytest.raises(ValueError, match="pass delimiter=';'"):
        load_csv(path, "weight")
    path.write_text("")
    with pytest.raises(ValueError, match="first line is empty"):
        load_csv(path, "weight")
    path.write_text("a,weight\n")
    with pytest.raises(ValueError, match="no rows of data"):
        load_csv(path, "weight")
    with pytest.raises(FileNotFoundError):
        load_csv(tmp_path / "nothing.csv", "weight")


def test_fewer_rows_than_a_hundred_are_asked_for_on_purpose(tmp_path):
    path = write(tmp_path / "a.csv", table(50))
    with pytest.raises(ValueError, match="It has 50 rows; at least 100 are needed"):
        load_csv(path, "weight")
    assert len(load_csv(path, "weight", min_rows=20)) == 50


def by_hand(data, result, part):
    """A part's x, standardised by hand from what the rules of the split make of its rows."""
    x = result.preprocessing.encode_columns(data.columns)[0][result.indices[part]]
    return ((x.double() - result.x_mean) / result.x_scale).float()


KINDS = {
    "random": lambda data: split(data, seed=1, calibration=0.1),
    "time": lambda data: time_split(data, data["date"], calibration=0.1),
    "group": lambda data: group_split(data, data["house"], seed=1, calibration=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_split_learns_the_rules_on_its_training_part(data, kind):
    result = KINDS[kind](data)
    train = result.indices["train"]
    assert result.preprocessing == Preprocessing.fit(data.columns, data.target_names, rows=train)
    for name in ("train", "validation", "calibration", "test"):
        torch.testing.assert_close(getattr(result, name).x, by_hand(data, result, name))
        y = (data.y[result.indices[name]].double() - result.y_mean) / result.y_scale
        torch.testing.assert_close(getattr(result, name).y, y.float())
    assert same.decided(torch.cat([*result.indices.values()]).sort().values, torch.arange(N))


def test_nothing_about_the_features_comes_from_rows_that_test(tmp_path):
    columns = table()
    columns["colour"] = ["red", "green"] * 75 + ["violet"] * 50
    columns["kind"] = [f"kind {i % 20:02d}" for i in range(150)] + [f"kind {i}" for i in range(50)]
    columns["rare"] = [0.5] * 150 + [*range(50)]
    data = load_csv(write(tmp_path / "a.csv", columns), targets=["weight", "height"])
    assert {"colour=violet", "rare"} < {*data.feature_names}
    assert "kind" in data.preprocessing.dropped

    result = time_split(data, fractions=(0.65, 0.10, 0.25))
    names = result.preprocessing.feature_names
    assert not [name for name in names if "violet" in name]
    assert result.preprocessing.dropped["rare"] == "constant"
    assert sum(name.startswith("kind=") for name in names) == 20
    levels = [i for i, name in enumerate(names) if name.startswith("colour=")]
    shown = result.test.x * result.x_scale + result.x_mean
    torch.testing.assert_close(shown[:, levels].float(), torch.zeros(50, 2), rtol=0, atol=1e-6)


def test_rows_that_miss_a_feature_which_only_the_training_part_keeps_are_left_out(tmp_path):
    columns = {name: [*map(str, cells)] for name, cells in table().items()}
    columns["late"] = [*map(str, range(150)), *[""] * 50]  # 25 % missing in all, none in the training part
    data = load_csv(write(tmp_path / "a.csv", columns), targets=["weight", "height"])
    assert "late" in data.preprocessing.dropped
    result = time_split(data, fractions=(0.5, 0.2, 0.3))
    assert "late" in result.preprocessing.feature_names
    assert {name: len(rows) for name, rows in result.indices.items()} == {
        "train": 100,
        "validation": 40,
        "test": 10,
    }
    assert all(torch.isfinite(part.x).all() for part in (result.train, result.validation, result.test))


def test_new_rows_get_the_features_that_the_flow_was_trained_on(data, tmp_path):
    result = split(data, seed=0)
    new = write(tmp_path / "new.csv", {name: cells for name, cells in table().items() if name != "height"})
    x = result.preprocessing.transform(new).x
    test = result.indices["test"]
    standardised = ((x[test].double() - result.x_mean) / result.x_scale).float()
    torch.testing.assert_close(standardised, result.test.x)


def test_new_rows_may_come_in_a_file_of_another_kind(data, tmp_path):
    other = write(tmp_path / "b.csv", table(), delimiter=";")
    with pytest.raises(ValueError, match="pass delimiter=';'"):
        data.preprocessing.transform(other)
    assert same.copied(data.preprocessing.transform(other, delimiter=";").x, data.x)


def test_other_data_have_no_rules_to_learn(data):
    assert split((data.x, data.y), seed=0).preprocessing is None


def with_gaps():
    columns = {name: [*map(str, cells)] for name, cells in table().items()}
    columns["weight"][3] = columns["size"][10] = columns["size"][150] = ""
    return columns


def test_gaps_may_be_filled_and_every_split_learns_what_with(tmp_path):
    path = write(tmp_path / "a.csv", with_gaps())
    data = load_csv(path, targets=["weight", "height"], missing="impute")
    assert (
        data.note == "1 of 200 rows are left out because values are missing: weight (1). Filled in: size (2)."
    )
    assert len(data) == N - 1
    result = time_split(data, fractions=(0.5, 0.2, 0.3))
    assert "size:missing" in result.preprocessing.feature_names
    known = [float(size) for size in data["size"][result.indices["train"]].tolist() if size == size]
    (size,) = [feature for feature in result.preprocessing.features if feature.name == "size"]
    np.testing.assert_allclose(size.fill, np.median(known))
    assert size.fill != pytest.approx(data.preprocessing.features[-1].fill)  # that of all rows


def test_a_european_file_is_read_with_its_marks(data, tmp_path):
    columns = {name: [str(cell).replace(".", ",") for cell in cells] for name, cells in table().items()}
    path = write(tmp_path / "mine.csv", columns, delimiter=";")
    with pytest.raises(ValueError, match=r"'size' has numbers with a comma.*decimal=','"):
        load_csv(path, targets=["weight", "height"], delimiter=";")
    other = load_csv(path, targets=["weight", "height"], delimiter=";", decimal=",")
    assert same.copied(other.x, data.x)
    assert same.copied(other.y, data.y)
    again = data.preprocessing.transform(path, delimiter=";", decimal=",")
    assert same.copied(again.x, data.x)


def test_weights_are_a_column_of_their_own(tmp_path):
    columns = with_gaps() | {"times": [*range(N)]}
    path = write(tmp_path / "a.csv", columns)
    data = load_csv(path, targets=["weight", "height"], weights="times")
    assert "times" not in {*data.feature_names, *data.preprocessing.dropped}
    assert data.weights.tolist() == data.rows.tolist()
    assert load_csv(path, targets=["weight", "height"]).weights is None
    for cells in ([-1, *range(N - 1)], ["", *range(N - 1)], ["many", *range(N - 1)]):
        write(path, columns | {"times": cells})
        with pytest.raises(
            ValueError, match=r"weights in the column 'times' .* the one in row 0 of the data"
        ):
            load_csv(path, targets=["weight", "height"], weights="times")
    for wrong in ("weight", ["times", "size"]):
        with pytest.raises(ValueError, match="weights must be the name of one column"):
            load_csv(path, targets=["weight", "height"], weights=wrong)
    with pytest.raises(ValueError, match=r"did you mean 'times'\?"):
        load_csv(path, targets=["weight", "height"], weights="time")


def test_copies_of_rows_and_features_that_determine_a_target_warn(tmp_path):
    columns = table()
    with pytest.warns(LeakWarning, match="'weight' is a linear function of 'pounds'"):
        load_csv(write(tmp_path / "a.csv", columns | {"pounds": columns["weight"] * 2.2}), targets=["weight"])
    again = {name: [*cells, *cells[:7]] for name, cells in columns.items()}
    with pytest.warns(LeakWarning, match="7 of 207 rows repeat another row"):
        load_csv(write(tmp_path / "a.csv", again), targets=["weight", "height"])


def test_a_column_that_is_not_there_is_named(data):
    with pytest.raises(ValueError, match=r"\['dates'\] are missing; did you mean 'date'\?"):
        data["dates"]


def test_parquet_gives_what_csv_gives(data, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(table()), tmp_path / "mine.parquet")
    other = load_csv(tmp_path / "mine.parquet", targets=["weight", "height"])
    assert same.copied(other.x, data.x)
    assert same.copied(other.y, data.y)
    assert other.preprocessing == data.preprocessing
