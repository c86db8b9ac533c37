"""Rules for features: learned on some rows, the same for all others, and clear about what does not fit."""

import gzip
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch

import same
from latentcal._internal import table_files
from latentcal.tables import Preprocessing

N = 60


def table(n=N):
    """One column of every kind that stays, one of most kinds that go, and a target."""
    return {
        "size": [i + 0.5 for i in range(n)],
        "count": [i % 4 for i in range(n)],
        "colour": [("red", "green", "blue")[i % 3] for i in range(n)],
        "new": [i % 2 == 0 for i in range(n)],
        "same": ["always"] * n,
        "one": [1] * n,
        "few": [i % 5 + 0.5 for i in range(n)],
        "name": [f"name {i}" for i in range(n)],
        "gaps": [None if i % 3 == 0 else i + 0.25 for i in range(n)],
        "price": [10.0 * i for i in range(n)],
    }


@pytest.fixture
def rules():
    return Preprocessing.fit(table(), targets=["price"])


def new_rows(**columns):
    """Two rows that fit, with some columns changed; None takes one away."""
    rows = {"size": [1.5, 2.5], "count": [3, 1], "colour": ["red", "blue"], "new": [True, False]}
    rows.update(columns)
    return {name: cells for name, cells in rows.items() if cells is not None}


EXPECTED = [[0, 0, 1, 3, 1, 1.5], [1, 0, 0, 1, 0, 2.5]]


def write_csv(path, rows, delimiter=","):
    lines = [
        delimiter.join(rows),
        *(delimiter.join(map(str, cells)) for cells in zip(*rows.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_features_are_sorted_by_name_and_every_column_that_goes_says_why(rules):
    names = ("colour=blue", "colour=green", "colour=red", "count", "new", "size")
    assert rules.feature_names == names
    assert rules.columns == ("colour", "count", "new", "size")
    assert rules.targets == ("price",)
    assert rules.dropped == {
        "same": "constant",
        "one": "constant",
        "few": "numbers with 5 distinct values, fewer than 10",
        "name": "text with 60 distinct values, more than 20",
        "gaps": "33% of its values are missing, more than 20%",
    }


def test_a_stray_text_among_numbers_is_named_as_the_reason():
    rows = {"a": [str(i) for i in range(N - 1)] + ["12k"], "b": range(N), "y": range(N)}
    assert Preprocessing.fit(rows, "y").dropped["a"].endswith("most of them are numbers, but '12k' is not")
    rows["a"] = [f"2024-01-{1 + i % 31:02d}" for i in range(N - 1)] + ["soon"]
    assert Preprocessing.fit(rows, "y").dropped["a"].endswith("most of them are dates, but 'soon' is not")


def test_new_rows_become_numbers(rules):
    result = rules.transform(new_rows())
    assert result.x.tolist() == EXPECTED
    assert result.x.dtype == torch.float32
    assert result.y is None
    assert result.rows.tolist() == [0, 1]


def test_columns_may_come_in_any_order_and_with_further_ones(rules):
    rows = new_rows(extra=["what", "ever"], price=["", "unknown"])
    assert rules.transform(dict(reversed(rows.items()))).x.tolist() == EXPECTED


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "pandas", "numpy", "object"])
def test_every_kind_of_table_gives_the_same_features(rules, kind, tmp_path):
    rows = new_rows(price=[5, 6.5])
    if kind.startswith("csv"):
        path = write_csv(tmp_path / "new.csv", rows)
        if kind == "csv.gz":
            path = tmp_path / "new.csv.gz"
            path.write_bytes(gzip.compress((tmp_path / "new.csv").read_bytes()))
        given = str(path)
    elif kind == "pandas":
        given = pytest.importorskip("pandas").DataFrame(rows)
    else:
        dtype = object if kind == "object" else None
        given = {name: np.array(cells, dtype=dtype) for name, cells in rows.items()}
    result = rules.transform(given, targets=True)
    assert result.x.tolist() == EXPECTED
    assert result.y.tolist() == [[5], [6.5]]
    assert result.y.dtype == torch.float32


@pytest.mark.parametrize("kind", ["pandas", "numpy"])
def test_every_kind_of_table_teaches_the_same_rules(rules, kind):
    rows = table()
    if kind == "pandas":
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame(rows).convert_dtypes()
        frame["colour"] = frame["colour"].astype("category")
        assert Preprocessing.fit(frame, ["price"]) == rules
    else:
        assert Preprocessing.fit({name: np.array(cells) for name, cells in rows.items()}, "price") == rules


@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")  # pandas 2.2
def test_numbers_may_be_missing_in_every_way_that_pandas_has(rules):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(new_rows()).convert_dtypes()
    frame.loc[2] = [pd.NA, 1, "red", True]
    frame.loc[3] = [1.0, 1, None, True]
    frame.loc[4] = [1.0, 1, "red", pd.NA]
    assert rules.transform(frame, missing="drop").rows.tolist() == [0, 1]
    for nothing in (None, float("nan"), np.nan, pd.NA, pd.NaT, "", " ", "NA"):
        for name in ("size", "colour", "new"):
            rows = new_rows(**{name: np.array([new_rows()[name][0], nothing], dtype=object)})
            assert rules.transform(rows, missing="drop").rows.tolist() == [0]


def test_the_rules_are_learned_on_the_given_rows_alone():
    rows = {**table(), "colour": ["red"] * 30 + ["blue", "green"] * 5 + ["violet"] * 20}
    rules = Preprocessing.fit(rows, "price", rows=np.arange(40))
    assert rules.features[0].levels == ("blue", "green", "red")
    mask = np.arange(N) < 40
    assert Preprocessing.fit(rows, "price", rows=mask) == rules
    assert Preprocessing.fit(rows, "price", rows=torch.arange(40)) == rules
    assert Preprocessing.fit(rows, "price").features[0].levels == ("blue", "green", "red", "violet")
    assert Preprocessing.fit(rows, "price", rows=np.arange(20)).dropped["colour"] == "constant"


def test_an_unknown_category_is_none_of_the_known_ones_and_warns_once(rules):
    rows = new_rows(colour=["violet", "blue"])
    with pytest.warns(UserWarning, match=r"'colour' has .*'violet'.*known ones are .*'blue'") as warned:
        x = rules.transform(rows).x
    assert len(warned) == 1
    assert x[:, :3].tolist() == [[0, 0, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="'violet'"):
        rules.transform(rows, unknown="error")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"size": None}, r"columns \['size'\] are missing among \["),
        ({"size": None, "sizes": [1, 2]}, r"columns \['size'\] are missing; did you mean 'sizes'\?"),
        ({"size": ["1.5", "large"]}, r"column 'size' has 'large' in row 1 of the data; expected a number"),
        ({"size": ["1_000", "2"]}, r"column 'size' has '1_000' in row 0"),
        ({"size": ["1,5", "2"]}, r"column 'size' has '1,5' in row 0"),
        ({"new": ["True", "maybe"]}, r"'new' has 'maybe' in row 1 of the data; expected true or false"),
        ({"new": [0, 2]}, r"'new' has '2' in row 1"),
        (
            {"size": [1.5, None]},
            r"1 of 2 rows have missing values, the first is row 1 .*'size'.*missing='drop'",
        ),
        ({"colour": ["", "red"]}, r"1 of 2 rows have missing values, the first is row 0 .*'colour'"),
        ({"size": [1.5, float("inf")]}, r"column 'size' has inf in row 1"),
        ({"size": ["1e300", "1"]}, r"column 'size' has 1e\+300 in row 0 .* too large for float32"),
        ({"size": [1.5]}, r"of the same length"),
        ({"size": [[1.5], [2.5]]}, r"must be one-dimensional"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_it(rules, columns, message):
    with pytest.raises(ValueError, match=message):
        rules.transform(new_rows(**columns))


def test_wrong_options_and_things_that_are_no_table_are_errors(rules):
    with pytest.raises(ValueError, match="unknown must be one of 'zeros', 'error', got 'ignore'"):
        rules.transform(new_rows(), unknown="ignore")
    with pytest.raises(ValueError, match="missing must be one of None, 'error', 'drop', 'impute', got 'nan'"):
        rules.transform(new_rows(), missing="nan")
    with pytest.raises(TypeError, match="a path, a pandas DataFrame, or a dict"):
        rules.transform(np.zeros((2, 4)))


def test_numbers_for_booleans_and_words_for_booleans_are_the_same(rules):
    for cells in ([1, 0], [True, False], ["true", "FALSE"], ["1", "0"], [1.0, 0.0]):
        assert rules.transform(new_rows(new=cells)).x[:, 4].tolist() == [1, 0]


def test_a_text_column_whose_new_cells_look_like_numbers_stays_text():
    rows = {"code": ["1", "2", "a"] * 20, "b": range(N), "y": range(N)}
    rules = Preprocessing.fit(rows, "y")
    assert rules.transform({"code": [2, 1], "b": [0, 0]}).x[:, 1:].tolist() == [[0, 1, 0], [1, 0, 0]]


def test_rows_that_miss_a_value_can_be_left_out(rules, tmp_path):
    rows = new_rows(size=["", 2.5], price=[1, 2])
    assert rules.transform(rows, missing="drop").x.tolist() == EXPECTED[1:]
    assert rules.transform(rows, missing="drop").rows.tolist() == [1]
    rows = new_rows(price=[1, ""])
    assert rules.transform(rows).rows.tolist() == [0, 1]  # targets that are not asked for may be missing
    assert rules.transform(rows, targets=True, missing="drop").y.tolist() == [[1]]
    with pytest.raises(ValueError, match="'price'"):
        rules.transform(rows, targets=True)
    with pytest.raises(ValueError, match=r"columns \['price'\] are missing"):
        rules.transform(new_rows(), targets=True)


def test_the_state_survives_json(rules):
    again = Preprocessing.from_dict(json.loads(json.dumps(rules.to_dict())))
    assert again == rules
    assert again.transform(new_rows()).x.tolist() == EXPECTED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99; this version reads formats up to 2"),
        ({"format": None}, "has format None"),
        ({"features": [{"name": "a"}]}, "incomplete or damaged"),
        ({"targets": None}, "incomplete or damaged"),
    ],
)
def test_a_state_of_another_version_or_a_damaged_one_is_an_error(rules, change, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing.from_dict({**rules.to_dict(), **change})


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([], "must name one or more columns"),
        (["price", "price"], "without duplicates"),
        (["prize"], r"\['prize'\] are missing; did you mean 'price'\?"),
    ],
)
def test_targets_must_be_there_once(targets, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing.fit(table(), targets)


def test_a_table_without_useful_features_or_rows_is_an_error():
    with pytest.raises(ValueError, match=r"No feature is left .*'few': numbers with .*; 'one': constant"):
        Preprocessing.fit({name: table()[name] for name in ("one", "few", "price")}, "price")
    with pytest.raises(ValueError, match="no rows to learn from"):
        Preprocessing.fit({"a": [], "y": []}, "y")


def test_chunks_are_the_whole_file_in_order(rules, tmp_path):
    path = write_csv(tmp_path / "t.csv", {**table(), "gaps": range(N)})
    whole = rules.transform(path, targets=True)
    assert whole.rows.tolist() == list(range(N))
    for size in (1, 7, N, 10 * N):
        chunks = [*rules.chunks(path, size, targets=True)]
        assert [len(chunk.x) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
        for i in range(3):
            assert same.copied(torch.cat([chunk[i] for chunk in chunks]), whole[i])
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        next(rules.chunks(path, 0))


def test_empty_lines_are_no_rows_even_where_they_fill_a_chunk(rules, tmp_path):
    path = write_csv(tmp_path / "t.csv", new_rows())
    header, first, second = path.read_text().splitlines()
    path.write_text("\n".join([header, first, *[""] * 10, second, ""]))
    assert rules.transform(path).rows.tolist() == [0, 1]
    assert [chunk.rows.tolist() for chunk in rules.chunks(path, 1)] == [[0], [1]]


def test_errors_and_dropped_rows_of_chunks_speak_of_rows_of_the_file(rules, tmp_path):
    rows = {**table(), "gaps": range(N)}
    rows["size"][33] = ""
    path = write_csv(tmp_path / "t.csv", rows)
    with pytest.raises(ValueError, match=r"t\.csv: 1 of 10 rows have missing values, the first is row 33 "):
        [*rules.chunks(path, 10)]
    kept = torch.cat([chunk.rows for chunk in rules.chunks(path, 10, missing="drop")])
    assert kept.tolist() == [i for i in range(N) if i != 33]
    for text in ("large", "1_000"):
        rows["size"][33] = text
        write_csv(path, rows)
        with pytest.raises(ValueError, match=rf"t\.csv: .*'{text}' in row 33"):
            [*rules.chunks(path, 10)]


def test_unknown_categories_warn_once_for_a_whole_file(rules, tmp_path):
    path = write_csv(
        tmp_path / "t.csv", {**table(), "gaps": range(N), "colour": ["violet", "pink"] * (N // 2)}
    )
    with pytest.warns(UserWarning, match="'colour' has categories") as warned:
        assert sum(len(chunk.x) for chunk in rules.chunks(path, 10)) == N
    assert len(warned) == 1


def dated(n=N):
    """A table whose first column is a date, every seventh hour from the 30th of May 2024 on."""
    times = np.datetime64("2024-05-30T00:00") + 7 * np.arange(n).astype("timedelta64[h]")
    return {"t": [f"{time}+02:00" for time in times], "width": [i * 1.5 for i in range(n)], "price": range(n)}


def test_dates_become_parts_of_the_calendar():
    rules = Preprocessing.fit(dated(), "price")
    assert rules.features[0].levels == ("year", "month", "weekday", "hour")
    assert rules.feature_names[:3] == ("t:year", "t:month_sin", "t:month_cos")
    found = rules.transform({"t": ["2024-07-01 06:00:00+02:00", "2024-07-01T06:00+02:00"], "width": [1, 1]}).x
    assert same.copied(found[0], found[1])
    year = 2024 + (182.25 / 366)
    expected = [year, *circle(182.25 / 366), *circle(0), *circle(0.25), 1]
    np.testing.assert_allclose(found[0], expected, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match=r"column 't' has 'soon' in row 0 .* expected a date"):
        rules.transform({"t": ["soon"], "width": [1]})


def circle(turn):
    return np.sin(2 * np.pi * turn), np.cos(2 * np.pi * turn)


def test_dates_are_written_in_the_state_and_read_again():
    for form in ("%d/%m/%Y", "%m/%d/%Y"):
        days = [np.datetime64("2024-05-30") + i for i in range(N)]
        rows = dated() | {"t": [day.astype(object).strftime(form) for day in days]}
        rules = Preprocessing.fit(rows, "price")
        again = Preprocessing.from_dict(json.loads(json.dumps(rules.to_dict())))
        assert again == rules
        # In a single row nobody could tell day from month.
        x = again.transform({"t": [rows["t"][12]], "width": [rows["width"][12]]}).x
        assert same.copied(x, rules.transform(rows).x[12:13])
        np.testing.assert_allclose(x[0, 0], 2024 + 162 / 366, rtol=1e-6)  # the 11th of June


def test_dates_that_may_be_read_in_two_ways_are_no_feature():
    rows = dated() | {"t": [f"{1 + i % 12}/{1 + i % 11}/2024" for i in range(N)]}
    assert "day and month are ambiguous" in Preprocessing.fit(rows, "price").dropped["t"]


def test_a_new_time_zone_warns_once_where_hours_are_features():
    rules = Preprocessing.fit(dated(), "price")
    new = {"t": ["2024-07-01T06:00Z", "2024-07-01T07:00Z"], "width": [1, 1]}
    with pytest.warns(
        UserWarning, match=r"'t' has times in the zone \+00:00; .* learned with \+02:00"
    ) as warned:
        rules.transform(new)
    assert len(warned) == 1
    with pytest.raises(ValueError, match="times in the zone"):
        rules.transform(new, unknown="error")
    days = Preprocessing.fit(dated() | {"t": [text[:10] for text in dated()["t"]]}, "price")
    days.transform(new)  # where only the day matters there is nothing to say


def gappy():
    table = dated()
    rows = {name: [*cells] for name, cells in table.items()} | {"kind": ["a", "a", "b"] * (N // 3)}
    for name, places in {"width": (0, 5), "kind": (1,), "t": (2,)}.items():
        for place in places:
            rows[name][place] = ""
    return rows


def test_gaps_are_filled_by_what_the_training_rows_have_and_marked():
    rows = gappy()
    rules = Preprocessing.fit(rows, "price", rows=np.arange(30), missing="impute")
    assert rules.imputes
    kind, t, width = rules.features
    assert (kind.fill, kind.gaps) == ("a", True)
    known = [value for i, value in enumerate(rows["width"][:30]) if i not in (0, 5)]
    np.testing.assert_allclose(width.fill, np.median(known))
    assert t.fill == rows["t"][15][:16] + ":00"  # the 15th of 29
    assert [name for name in rules.feature_names if name.endswith(":missing")] == [
        *("kind:missing", "t:missing", "width:missing"),
    ]
    found = rules.transform(rows)
    assert len(found.x) == N
    assert found.gaps.filled == {"kind": 1, "width": 2, "t": 1}
    column = dict(zip(rules.feature_names, found.x.T, strict=True))
    np.testing.assert_allclose(column["width"][[0, 5]], width.fill)
    assert column["width:missing"].nonzero().reshape(-1).tolist() == [0, 5]
    assert (column["kind=a"][1], column["kind:missing"][1]) == (1, 1)
    assert same.copied(column["t:year"][2], column["t:year"][15])
    assert torch.isfinite(found.x).all()


def test_what_fills_gaps_survives_json_and_can_be_refused():
    rules = Preprocessing.fit(gappy(), "price", missing="impute")
    again = Preprocessing.from_dict(json.loads(json.dumps(rules.to_dict())))
    assert again == rules
    with pytest.raises(ValueError, match="4 of 60 rows have missing values"):
        again.transform(gappy(), missing="error")
    assert len(again.transform(gappy(), missing="drop").x) == N - 4
    plain = Preprocessing.fit(gappy(), "price")
    with pytest.raises(ValueError, match=r"These rules cannot fill gaps.*missing='drop'"):
        plain.transform(gappy(), missing="impute")


def test_a_feature_may_miss_more_where_gaps_are_filled():
    rows = dated() | {"late": [*[""] * (N // 3), *range(N - N // 3)]}
    assert "33% of its values are missing" in Preprocessing.fit(rows, "price").dropped["late"]
    assert "late:missing" in Preprocessing.fit(rows, "price", missing="impute").feature_names


def test_a_column_without_gaps_in_training_is_filled_without_a_mark():
    rules = Preprocessing.fit(dated(), "price", missing="impute")
    assert not any(name.endswith(":missing") for name in rules.feature_names)
    found = rules.transform({"t": [""], "width": [1]})
    assert found.gaps.filled == {"t": 1}
    assert torch.isfinite(found.x).all()


def test_targets_are_never_filled_and_may_be_missing_where_any_are_asked_for():
    rows = gappy() | {"price": ["", *range(N - 1)]}
    rules = Preprocessing.fit(rows, "price", missing="impute")
    left = rules.transform(rows, targets=True)
    assert left.rows.tolist() == [*range(1, N)]
    assert str(left.gaps).startswith(
        "1 of 60 rows are left out because values are missing: price (1). Filled in: "
    )
    found = rules.transform(rows, targets="any")
    assert found.y[:2].isnan().tolist() == [[True], [False]]
    plain = Preprocessing.fit(dated(), "price")
    new = dated() | {"price": ["", *range(N - 1)]}
    assert len(plain.transform(new, targets="any").x) == N
    with pytest.raises(ValueError, match="targets must be one of False, True, 'any'"):
        plain.transform(new, targets="all")


def test_rules_of_an_older_format_are_read():
    old = {
        "format": 1,
        "features": [{"name": "colour", "kind": "text", "levels": ["blue", "red"]}],
        "targets": ["price"],
        "dropped": {},
    }
    assert Preprocessing.from_dict(old).transform({"colour": ["red"]}).x.tolist() == [[0, 1]]


@pytest.mark.parametrize(
    "change",
    [
        {"fill": "a text"},
        {"fill": float("nan")},
        {"gaps": 1},
        {"gaps": True},
        {"zones": [5]},
        {"kind": "date"},
        {"kind": "date", "levels": ["century"]},
        {"kind": "date", "levels": ["year"], "fill": "soon"},
        {"colour": "red"},
    ],
    ids=str,
)
def test_a_damaged_feature_is_refused(change):
    state = Preprocessing.fit(dated(), "price").to_dict()
    assert Preprocessing.from_dict(state)
    state["features"] = [state["features"][-1] | change]
    with pytest.raises(ValueError, match="damaged"):
        Preprocessing.from_dict(state)


def test_a_file_of_new_rows_that_is_no_table_is_one_clear_error(rules, tmp_path):
    path = write_csv(tmp_path / "t.csv", new_rows(), delimiter=";")
    with pytest.raises(ValueError, match=r"t\.csv cannot be read: .*pass delimiter=';'"):
        rules.transform(path)
    assert next(rules.chunks(path, delimiter=";")).x.tolist() == EXPECTED
    path.write_bytes("size,count,colour,new\n1,1,größer,1\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not utf-8 text"):
        rules.transform(path)
    path.write_text("size,count,colour,new\n1,1,red,True\n1,1,red\n")
    with pytest.raises(ValueError, match="row 1 of the data has 3 values, but there are 4 columns"):
        rules.transform(path)
    path.write_text("size,size,count,colour,new\n1,1,1,red,True\n")
    with pytest.raises(ValueError, match=r"\['size'\] occur more than once"):
        rules.transform(path)
    path.write_text("size,count,colour,new\n")
    with pytest.raises(ValueError, match="has no rows"):
        rules.transform(path)
    with pytest.raises(FileNotFoundError):
        rules.transform(tmp_path / "nothing.csv")


def test_memory_does_not_grow_with_the_file(rules, tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "BLOCK", 1 << 15)
    peaks = []
    for n in (2_000, 20_000):
        path = write_csv(tmp_path / "t.csv", {**table(n), "gaps": range(n)})
        tracemalloc.start()
        assert sum(len(chunk.x) for chunk in rules.chunks(path, 250)) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < path.stat().st_size / 2  # control: the file itself would not fit


def test_parquet_without_pyarrow_is_an_error_that_names_the_extra(rules, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'latentcal\[cli\]'"):
        rules.transform(tmp_path / "t.parquet")


def test_parquet_gives_what_csv_gives(rules, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pyarrow.table({**table(), "colour": pyarrow.array(table()["colour"]).dictionary_encode()})
    parquet.write_table(arrow, tmp_path / "t.parquet", row_group_size=25)
    csv = write_csv(tmp_path / "t.csv", {**table(), "gaps": range(N)})
    for mine, other in zip(
        rules.transform(tmp_path / "t.parquet", targets=True)[:3],
        rules.transform(csv, targets=True)[:3],
        strict=True,
    ):
        assert same.copied(mine, other)
    chunks = [*rules.chunks(tmp_path / "t.parquet", 7)]
    assert max(len(chunk.x) for chunk in chunks) <= 7
    assert torch.cat([chunk.rows for chunk in chunks]).tolist() == list(range(N))
    parquet.write_table(arrow.drop_columns(["size"]), tmp_path / "less.parquet")
    with pytest.raises(ValueError, match=r"less\.parquet cannot be read: The columns \['size'\] are missing"):
        rules.transform(tmp_path / "less.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    for content in (whole[:-20], b"a,b\n1,2\n"):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.parquet is damaged, or not a parquet file"):
            rules.transform(tmp_path / "bad.parquet")


def test_rules_need_neither_pandas_nor_pyarrow():
    script = """
import sys
sys.modules["pandas"] = sys.modules["pyarrow"] = sys.modules["pooch"] = None
from latentcal.tables import Preprocessing
rules = Preprocessing.fit({"a": range(20), "y": range(20)}, "y")
assert rules.transform({"a": [1]}).x.tolist() == [[1]]
"""
    subprocess.run([sys.executable, "-c", script], check=True)
