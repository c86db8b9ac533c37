"""Reading tables: kinds of columns, missing values, and what is said of a damaged file."""

import gzip
import random
import subprocess
import sys
from datetime import datetime, timezone

import numpy as np
import pytest

import same
from latentcal._internal import table_files
from latentcal._internal.columns import infer_arrow_column, infer_column, parse_column
from latentcal._internal.table_files import column_names, estimate_rows
from latentcal.tables import read_sample

pytest.importorskip("pyarrow")


def write(path, text):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text)
    return path


def read_table(path, **form):
    return read_sample(path, column_names(path, **form), **form).columns


def csv_column(tmp_path, *cells):
    """The first column of a csv file; a second one keeps an empty cell from being an empty line."""
    text = "".join(f"{cell},1\n" for cell in ("name", *cells))
    return read_table(write(tmp_path / "t.csv.gz", text))[0]


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["1", "-2", "+3"], "integer"),
        (["1", "09"], "integer"),
        (['"1"', '"2"'], "integer"),
        (["1", "2.0"], "real"),
        (["1", "1e5"], "real"),
        (["1", "", "3"], "real"),
        (["", "NA"], "real"),
        (["True", "False"], "boolean"),
        (["TRUE", "", "FALSE"], "boolean"),
        (["1", "2", "many"], "text"),
        (["True", "1"], "text"),
        (["20141013T000000"], "date"),
        (["1_000", "2"], "text"),
    ],
)
def test_the_cells_of_a_csv_column_tell_its_kind(tmp_path, cells, kind):
    assert csv_column(tmp_path, *cells).kind == kind


def test_missing_numbers_are_nan_and_missing_texts_are_empty(tmp_path):
    numbers = csv_column(tmp_path, "1.5", "", "NA", "nan", " 2 ")
    assert same.copied(numbers.values, [1.5, np.nan, np.nan, np.nan, 2.0])
    texts = csv_column(tmp_path, "a", "", " NA", " b ")
    assert texts.values.tolist() == ["a", "", "", "b"]
    booleans = csv_column(tmp_path, "true", "", "false")
    assert same.copied(booleans.values, [1.0, np.nan, 0.0])
    for column in (numbers, texts, booleans):
        assert column.missing[1]
        assert not column.missing[0]


def test_levels_are_sorted_values_without_the_missing_ones(tmp_path):
    assert same.copied(csv_column(tmp_path, "3", "1", "1.0", "", "3").levels, [1.0, 3.0])
    assert csv_column(tmp_path, "b", "", "a", "b").levels.tolist() == ["a", "b"]


def test_quoted_cells_may_hold_commas_and_line_ends(tmp_path):
    column = csv_column(tmp_path, '"a, b"', '"c\nd"')
    assert column.values.tolist() == ["a, b", "c\nd"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_keep_their_order_across_blocks(tmp_path, monkeypatch, end):
    monkeypatch.setattr(table_files, "BLOCK", 1)  # about a thousand characters at a time
    n = 2000
    ends = [i % 5 + 900 * (i == 1000) for i in range(n)]
    text = f"a,b,c{end}" + "".join(f'{i % 7},"x{i}{end * ends[i]}y",{i}{end}' for i in range(n))
    a, b, c = read_table(write(tmp_path / "t.csv.gz", text))
    assert same.copied(a.values, np.arange(n) % 7.0)
    assert [value.split(end)[0].rstrip("y") for value in b.values] == [f"x{i}" for i in range(n)]
    assert [value.count(end) for value in b.values] == ends
    assert same.copied(c.values, np.arange(float(n)))
    write(tmp_path / "t.csv.gz", text + f"1,2{end}")
    with pytest.raises(ValueError, match=f"row {n} of the data has 2 values, but there are 3 columns"):
        read_table(tmp_path / "t.csv.gz")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv.gz", "", "first line is empty"),
        ("t.csv.gz", "a,b\n1,2\n3\n", "row 1 of the data has 1 values, but there are 2 columns"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_that_says_why(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(ValueError, match=message) as error:
        read_table(path)
    assert str(path) in str(error.value)


def test_a_damaged_file_is_an_error_that_says_so(tmp_path):
    whole = write(tmp_path / "whole.csv.gz", "a,b\n" + "1,2\n" * 1000).read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (whole[:-12], bytes(flipped), b"a,b\n1,2\n"):
        path = tmp_path / "t.csv.gz"
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"t\.csv\.gz is damaged, or not a text file compressed with gzip"
        ):
            read_table(path)


@pytest.mark.parametrize("content", ["a,b\nçà,2\n".encode("latin-1"), "a,b\n1,2\n".encode("utf-16")])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_another_encoding_is_an_error_that_asks_for_it(tmp_path, content, compress):
    path = tmp_path / "t.csv"
    path.write_bytes(compress(content))
    with pytest.raises(ValueError, match=r"t\.csv is not utf-8 text: .*pass encoding="):
        read_table(path)


def test_encoding_and_delimiter_can_be_given(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe;b\nçà;2\n".encode("latin-1"))
    a, b = read_table(path, delimiter=";", encoding="latin-1")
    assert (a.name, *a.values, *b.values) == ("größe", "çà", 2.0)
    with pytest.raises(ValueError, match="unknown encoding: 'klingon'"):
        read_table(path, encoding="klingon")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("a,b\n1,2\n".encode("utf-8-sig"))
    assert [column.name for column in read_table(path)] == ["a", "b"]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\n<!DOCTYPE html>\n<p>404</p>", "a web page"),
        (b"<HTML><p>404</p>", "a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a pointer of Git LFS"),
        (b"PK\x03\x04rest", "a zip archive or an Excel table"),
        (b"PAR1rest", "a parquet file without the ending"),
    ],
)
def test_what_is_often_saved_instead_of_a_table_is_named(tmp_path, name, content, what):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"it is {what}") as error:
        read_table(path)
    assert str(path) in str(error.value)


def test_the_content_tells_whether_a_file_is_compressed(tmp_path):
    for name, compress in (("t.csv", bytes), ("t.csv", gzip.compress), ("t.csv.gz", gzip.compress)):
        (tmp_path / name).write_bytes(compress(b"a,b\n1,2\n"))
        assert [column.name for column in read_table(tmp_path / name)] == ["a", "b"]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["12,5", "-0,25", "3", ""], [12.5, -0.25, 3, np.nan]),
        (["1.234,5", "1.234.567", "+7,0"], [1234.5, 1234567, 7]),
        (["1,5e-3", ",5"], [0.0015, 0.5]),
    ],
)
def test_a_decimal_comma_is_read_where_it_is_asked_for(cells, numbers):
    found = infer_column("a", np.array(cells, dtype=object), ",")
    assert found.kind == "real"
    np.testing.assert_allclose(found.values, numbers)
    again = parse_column("a", "real", np.array(cells, dtype=object), decimal=",")
    np.testing.assert_allclose(again.values, numbers)


@pytest.mark.parametrize("cells", [["12,5", "3"], ["1,234", "12,345,678"], ["-,5"], ["1.234,5"]])
def test_numbers_with_commas_do_not_become_a_category_in_silence(cells):
    with pytest.raises(ValueError, match=r"'a' has numbers with a comma, such as .*decimal=','"):
        infer_column("a", np.array(cells, dtype=object))
    # On purpose they may.
    assert infer_column("a", np.array(cells, dtype=object), ".").kind == "text"


def test_texts_with_commas_are_texts():
    for cells in (["Bonn, Köln", "1,5"], ["1.5", "12,5"], ["a,b"], ["1,2,3"]):
        assert infer_column("a", np.array(cells, dtype=object)).kind == "text"


def test_points_beside_a_decimal_comma_are_an_error_and_no_category():
    for cells in (["0.75", "1.5"], ["1.234", "5"]):
        with pytest.raises(ValueError, match=r"'a' has '[01].*', a number with a point.*decimal='\.'"):
            infer_column("a", np.array(cells, dtype=object), ",")
    with pytest.raises(ValueError, match=r"'a' has '0\.75' in row 3 of the data; expected a number"):
        parse_column("a", "real", np.array(["1,5", "0.75"], dtype=object), 2, ",")


def test_a_decimal_comma_in_new_rows_is_an_error_that_names_the_option():
    cells = np.array(["1.5", "2,5"], dtype=object)
    with pytest.raises(ValueError, match=r"'2,5' in row 1 .*; read a decimal comma with decimal=','\."):
        parse_column("a", "real", cells)


def test_the_rows_of_a_file_are_estimated_by_its_lines(tmp_path):
    path = tmp_path / "t.csv"
    for text, rows in (("a\n1\n2\n", 2), ("a\n1\n2", 2), ("a\n", 0), ("a", 0), ("", 0)):
        for compress in (bytes, gzip.compress):
            path.write_bytes(compress(text.encode()))
            assert estimate_rows(path) == rows


def test_a_parquet_file_says_how_many_rows_it_has_and_keeps_zones(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    moment = datetime(2024, 7, 1, 6, tzinfo=timezone.utc)
    times = arrow.array([moment, None], arrow.timestamp("ns", "Europe/Brussels"))
    parquet.write_table(arrow.table({"t": times}), tmp_path / "t.parquet")
    assert estimate_rows(tmp_path / "t.parquet") == 2
    (cells,) = table_files.file_chunks(tmp_path / "t.parquet", ["t"], 10)
    assert str(cells["t"][0]) == "2024-07-01 08:00:00+02:00"
    assert cells["t"][1] is None
    (column,) = read_table(tmp_path / "t.parquet")
    assert (column.kind, column.zones) == ("date", ("+02:00",))
    assert column.values[0] == np.datetime64("2024-07-01T08:00")


@pytest.mark.parametrize("decimal", [None, ".", ","])
def test_numbers_read_by_pyarrow_are_those_that_python_reads(decimal):
    arrow = pytest.importorskip("pyarrow")
    texts = [
        "1",
        "-2",
        "+3",
        "-0",
        "-0.0",
        ".5",
        "5.",
        "1e5",
        "1E-3",
        "1e400",
        "1e-400",
        "4.9e-324",
        "",
        "007",
    ]
    texts += ["123456789012345678901234567890", "9007199254740993", "0.1234567890123456789012345", "1e-05"]
    others = [
        "e",
        ".",
        "-",
        "1e",
        "1-2",
        "2020-01-01",
        "1.2.3",
        "x",
        " 1",
        "NA",
        "nan",
        "inf",
        "1_0",
        "0x1",
        "1,5",
    ]
    choice, read = random.Random(0), 0
    for case in range(2000):
        cells = choice.choices(texts, k=4) + choice.choices(others, k=case % 5 == 0)
        # Of two parts, the first of which is not at the start of what holds it.
        parts = [arrow.array(part, arrow.large_string()) for part in (["9", *cells[:2]], cells[2:])]
        column = arrow.chunked_array([parts[0].slice(1), parts[1]])
        quick = infer_arrow_column("a", column, decimal)
        if quick is None:
            continue
        slow = infer_column("a", np.array(cells, dtype=object), decimal)
        assert quick.kind == slow.kind
        assert (
            quick.values.view(np.int64)[~slow.missing].tolist()
            == slow.values.view(np.int64)[~slow.missing].tolist()
        )
        assert quick.missing.tolist() == slow.missing.tolist()
        read += 1
    assert read == 0 if decimal == "," else read > 1000  # control: this way is taken where it can be


def test_gaps_are_read_in_a_process_that_loaded_pyarrow_alone():
    # Arrays made of lists would load pyarrow.compute.
    script = """
import io, math, pyarrow
from pyarrow.csv import ConvertOptions, read_csv
from latentcal._internal.columns import infer_arrow_column
texts = ConvertOptions(column_types={"a": pyarrow.large_string()})
cells = read_csv(io.BytesIO(b"a,b\\n1,1\\n,1\\n2.5,1\\n"), convert_options=texts)["a"]
assert not hasattr(pyarrow, "compute")
first, gap, last = infer_arrow_column("a", cells).values
assert math.isnan(gap) and (first, last) == (1, 2.5)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
