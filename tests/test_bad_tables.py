"""Tables that are too wide, too long or damaged: one short line that says so, and no value is lost."""

import gzip
import subprocess
import sys

import numpy as np
import pytest
import torch

import same
from latentcal._internal import table_files
from latentcal._internal.columns import infer_column
from latentcal._internal.wording import check_names, check_unique, join_some, list_names, quote
from latentcal.tables import Preprocessing, load_csv

pytest.importorskip("pyarrow")

ROWS = 30


def write(path, columns, delimiter=","):
    lines = [
        delimiter.join(columns),
        *(delimiter.join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def table(width=3):
    numbers = np.random.default_rng(0).normal(size=(width, ROWS)).round(4)
    return {f"column_{i}": column.tolist() for i, column in enumerate(numbers)}


class CountedName(str):
    """A name that counts how often it is compared."""

    compared = 0

    def __eq__(self, other):
        CountedName.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_checking_names_does_not_compare_every_name_with_every_other():
    names = [CountedName(f"column_{i}") for i in range(2000)]
    CountedName.compared = 0
    check_unique(names)
    check_names([*reversed(names)], names)
    assert CountedName.compared < 20 * len(names)  # 2,000 * 2,000 where each is looked for in a list


def test_a_missing_column_of_a_wide_table_is_a_short_line_with_the_likely_name():
    names = [f"column_{i}" for i in range(20_000)]
    with pytest.raises(ValueError, match=r"\['colunm_7'\] are missing; did you mean 'column_7'\?") as told:
        check_names(["colunm_7"], names)
    assert len(str(told.value)) < 100
    with pytest.raises(ValueError, match=r"and 19,9\d\d more\] are missing among \['column_0', ") as told:
        check_names([f"other {i}" for i in range(20_000)], names)
    assert len(str(told.value)) < 300


def test_no_table_makes_a_message_long(tmp_path):
    wide = {name: [1.0] * ROWS for name in table(3000)} | {"price": range(ROWS)}
    for targets in (["price"], ["nothing"], ["column_0"]):  # all others are constant, absent, constant
        with pytest.raises(ValueError, match=r"column_0|nothing") as told:
            load_csv(write(tmp_path / "wide.csv", wide), targets, min_rows=10)
        assert len(str(told.value).replace(str(tmp_path), "")) <= 300


def test_lists_and_quotes_keep_what_is_short():
    assert list_names(["a", "b\n"]) == r"['a', 'b\n']"
    assert list_names([]) == "[]"
    assert quote("a" * 40) == "'" + "a" * 37 + "…'"
    assert quote("\x1b" * 1000) == "'" + r"\x1b" * 9 + r"\…'"
    assert join_some(["a", "b"], 2) == "a; b"
    assert join_some(["a" * 300], 2) == "a" * 169 + "…; and 1 more"


LIMITED = """
import resource, sys
import pyarrow.csv, pyarrow.compute, torch, latentcal as lc
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 900_000_000,) * 2)
for path in sys.argv[1:]:
    try:
        lc.tables.load_csv(path, ["a"])
    except ValueError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_compressed_line_of_three_gigabytes_is_refused_within_memory(tmp_path):
    for name, unit in {"digits": b"1", "cells": b"1,", "lines": b"1\n"}.items():
        megabyte = gzip.compress(unit * ((1 << 20) // len(unit)))
        start = gzip.compress(b"a,b\n" if name != "lines" else b'a,b\n"')
        (tmp_path / f"{name}.csv.gz").write_bytes(start + 3000 * megabyte)
    paths = [str(tmp_path / f"{name}.csv.gz") for name in ("digits", "cells", "lines")]
    answer = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr[-300:]
    for path, line in zip(paths, answer.stdout.splitlines(), strict=True):
        assert line.startswith(f"{path} cannot be read: a row has more than 16,777,216 characters")
        assert line.endswith("a quotation mark is not closed.")


def test_a_line_that_is_too_long_is_refused_and_a_shorter_one_is_not(tmp_path, monkeypatch):
    columns = {
        "column_0": [7 * i % ROWS for i in range(ROWS)],
        **{name: ["x" * 90] * ROWS for name in table(30) if name != "column_0"},
    }
    columns["column_1"] = range(ROWS)
    path = write(tmp_path / "a.csv", columns)
    header, row, *_ = map(len, path.read_text().splitlines())
    assert row > 2 * header
    monkeypatch.setattr(table_files, "LINE", 2 * row)
    assert len(load_csv(path, ["column_0"], min_rows=10)) == ROWS
    for most in (row // 3, header - 1):
        monkeypatch.setattr(table_files, "LINE", most)
        with pytest.raises(ValueError, match=f"a row has more than {most:,} characters"):
            load_csv(path, ["column_0"], min_rows=10)


def test_too_many_columns_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "COLUMNS", 10)
    for rows in (None, 20):
        with pytest.raises(ValueError, match="it has 11 columns; at most 10 are supported"):
            load_csv(write(tmp_path / "a.csv", table(11)), ["column_0"], max_rows=rows)


def test_one_long_text_does_not_make_every_cell_of_its_column_as_long():
    cells = np.array(["short"] * 100_000, dtype=object)
    cells[5] = "x" * 100_000
    column = infer_column("a", cells)
    assert column.values.nbytes < 10_000_000  # 40 GB with cells of equal length
    assert column.levels.tolist() == ["short", "x" * 100_000]
    assert not column.missing.any()


def test_a_cell_that_is_too_long_is_refused(tmp_path):
    columns = table() | {"text": ["x" * 200_000, *["y"] * (ROWS - 1)]}
    with pytest.raises(ValueError, match="a cell has more than 131,072 characters"):
        load_csv(write(tmp_path / "a.csv", columns), ["column_0"])


@pytest.mark.parametrize("max_rows", [None, 100])
def test_rows_behind_a_quotation_mark_without_counterpart_are_not_lost(tmp_path, max_rows):
    columns = table() | {"text": [*"ab" * 7, '"a', *"ab" * 7, "b"]}
    path = write(tmp_path / "a.csv", columns)
    with pytest.raises(ValueError, match="a quotation mark is not closed"):
        load_csv(path, ["column_0"], min_rows=5, max_rows=max_rows)
    path.write_text(path.read_text().replace('"a', "5'' a"))  # other marks are text
    assert load_csv(path, ["column_0"], min_rows=5, max_rows=max_rows).file_rows == ROWS


@pytest.mark.parametrize("encoding", ["base64", "zip", "rot13", "utf-9", ""])
def test_an_encoding_that_is_not_for_text_is_refused(tmp_path, encoding):
    with pytest.raises(ValueError, match=f"unknown encoding: '{encoding}'"):
        load_csv(write(tmp_path / "a.csv", table()), ["column_0"], encoding=encoding)


def test_a_file_with_one_nameless_column_is_refused_also_where_rows_are_sampled(tmp_path):
    (tmp_path / "a.csv").write_text(" \n1\n")
    for rows in (None, 20):
        with pytest.raises(ValueError, match=r"[aA] column has no name"):
            load_csv(tmp_path / "a.csv", ["a"], max_rows=rows)


@pytest.fixture
def parquet():
    return pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("max_rows", [None, ROWS])
def test_spaces_around_names_of_parquet_columns_do_not_matter(tmp_path, parquet, max_rows):
    arrow = pytest.importorskip("pyarrow")
    columns = {f" {name} ": values for name, values in table().items()}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    data = load_csv(tmp_path / "a.parquet", ["column_0"], min_rows=10, max_rows=max_rows)
    assert data.feature_names == ("column_1", "column_2")
    again = data.preprocessing.transform(tmp_path / "a.parquet", targets=True)
    assert same.copied(again.x, data.x)
    assert same.copied(again.y, data.y)


@pytest.mark.parametrize("max_rows", [None, ROWS])
def test_lists_in_parquet_columns_are_texts(tmp_path, parquet, max_rows):
    arrow = pytest.importorskip("pyarrow")
    columns = table() | {"pair": [[i % 2, 1] for i in range(ROWS)], "map": [{"a": 1}] * ROWS}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    data = load_csv(tmp_path / "a.parquet", ["column_0"], min_rows=10, max_rows=max_rows)
    assert data.feature_names == ("column_1", "column_2", "pair=[0, 1]", "pair=[1, 1]")
    assert same.copied(data.preprocessing.transform(tmp_path / "a.parquet").x, data.x)


def test_every_truncation_and_many_changes_of_a_parquet_file_are_refused_in_one_line(tmp_path, parquet):
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table(table()), tmp_path / "a.parquet")
    whole = (tmp_path / "a.parquet").read_bytes()
    random = np.random.default_rng(0)
    damaged = [whole[: int(end)] for end in random.integers(0, len(whole), 10)]
    for _ in range(40):
        changed = bytearray(whole)
        for place in random.integers(len(whole) // 2, len(whole), 10):
            changed[place] = random.integers(256)
        damaged.append(bytes(changed))
    said = []
    for content in damaged:
        (tmp_path / "b.parquet").write_bytes(content)
        try:
            load_csv(tmp_path / "b.parquet", ["column_0"], min_rows=10)
        except ValueError as error:
            said.append(str(error))
    assert len(said) >= 10
    assert all("b.parquet" in message and "\n" not in message for message in said)


def test_tables_in_memory_are_read_like_files():
    columns = table()
    rules = Preprocessing.fit(columns, "column_0")
    x = rules.transform(columns).x
    assert same.copied(x, torch.tensor([columns["column_1"], columns["column_2"]]).T.contiguous())
