"""Tables for ``fuzz_tables.py``: small random tables with known values, and mutations of their files.

A mutation takes a well-formed draft and changes its cells, the way in which it is written, or the bytes. It
marks the cells whose values no longer are those that were written; all others must be read unchanged.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Random = np.random.Generator
Mutation = Callable[["Draft", Random], None]
MISSING = ("", "NA", "N/A", "nan", "NaN", "null", "None", "<NA>", " ")
ODD_NAMES = (
    "<script>alert(1)</script>",
    '=HYPERLINK("http://x")',
    "\x1b[2J\x1b]0;gone\x07",
    "a\nb",
    "'; DROP TABLE x; --",
    "{name}",
    "%s%n",
    "Größe",
    "名前",
    "‮back",
    "\u200b",
    "-1",
    "+cmd|' /C calc'!A0",
    "@SUM(1)",
    "a,b",
    'a"b',
    "a=b",
    "../../etc/passwd",
    "x" * 3000,
    "row",
    "nan",
    "\ud7ff\uffff",
)
TEXTS = ("red", "green", "blue", "dark red", "Köln", "naïve", "")


@dataclass
class Draft:
    """A table to be written to a file.

    Args:
        names: of the columns.
        cells: rows of texts.
        values: (n, k) what the cells stand for; NaN where that is text or missing.
        known: (n, k) whether a number must be read back as it stands in ``values``.
        targets: names of the outputs.
        options: of ``load_csv``.
        suffix: of the file.
        delimiter: between the cells.
        encoding: of the text.
        ending: of each line.
        quoting: of the cells.
        finish: what is done to the bytes.
        arrow: the table of a parquet file.
        rows: that the file must have where it can be read; None where the damage may change that.
    """

    names: list[str]
    cells: list[list[str]]
    values: np.ndarray
    known: np.ndarray
    targets: list[str]
    options: dict[str, str] = field(default_factory=dict)
    suffix: str = ".csv"
    delimiter: str = ","
    encoding: str = "utf-8"
    ending: str = "\n"
    quoting: int = csv.QUOTE_MINIMAL
    finish: list[Callable[[bytes], bytes]] = field(default_factory=list)
    arrow: Callable[[Draft], pa.Table] | None = None
    rows: int | None = None

    def content(self) -> bytes:
        """The bytes of the file."""
        if self.suffix == ".parquet":
            buffer = io.BytesIO()
            pq.write_table((self.arrow or to_arrow)(self), buffer)
            data = buffer.getvalue()
        else:
            text = io.StringIO()
            writer = csv.writer(
                text, delimiter=self.delimiter, lineterminator=self.ending, quoting=self.quoting
            )
            writer.writerow(self.names)
            writer.writerows(self.cells)
            data = text.getvalue().encode(self.encoding, errors="replace")
        for step in self.finish:
            data = step(data)
        return data

    def forget(self, rows: int | None = None) -> None:
        """Do not check values; check the number of rows if it is given."""
        self.known[:] = False
        self.rows = rows

    def set(self, row: int, column: int, text: str, value: float | None = None) -> None:
        """Write another text into a cell; without a value, the cell is not checked."""
        self.cells[row][column] = text
        self.known[row, column] = value is not None
        self.values[row, column] = math.nan if value is None else value

    def numbers(self) -> list[int]:
        """Columns of numbers."""
        return [j for j in range(len(self.names)) if np.isfinite(self.values[:, j]).any()]

    def use(self, **options: str) -> None:
        """Pass options to the reader."""
        self.options.update(options)


def draw(random: Random, rows: tuple[int, int] = (24, 60)) -> Draft:
    """A well-formed table with one or two targets."""
    n = int(random.integers(*rows))
    base = random.normal(size=n)
    columns: dict[str, tuple[list[str], np.ndarray]] = {}

    def add(name: str, values: np.ndarray, texts: Sequence[str] | None = None) -> None:
        columns[name] = ([repr(v) for v in values.tolist()] if texts is None else list(texts), values)

    for i in range(int(random.integers(1, 4))):
        add(f"real {i}", (base + random.normal(size=n)) * 10.0 ** random.integers(-3, 6))
    if random.random() < 0.5:
        whole = random.integers(-50, 1000, n)
        add("count", whole.astype(float), [str(v) for v in whole])
    if random.random() < 0.5:
        texts = random.choice(TEXTS[:-1], n)
        add("colour", np.full(n, math.nan), texts.tolist())
    if random.random() < 0.3:
        truth = random.integers(0, 2, n)
        add("flag", truth.astype(float), [("false", "true")[v] for v in truth])
    if random.random() < 0.3:
        add("id", np.full(n, math.nan), [f"h{i:04d}" for i in range(n)])
    targets = ["price", "cost"][: int(random.integers(1, 3))]
    for name in targets:
        add(name, 100 * base + 30 * random.normal(size=n))
    order = random.permutation(list(columns)).tolist()
    cells = [list(row) for row in zip(*(columns[name][0] for name in order), strict=True)]
    values = np.stack([columns[name][1] for name in order], axis=1)
    return Draft(order, cells, values, np.isfinite(values), targets, rows=n)


def to_arrow(draft: Draft) -> pa.Table:
    """The table with numeric columns as numbers."""
    columns: list[pa.Array] = []
    for j in range(len(draft.names)):
        numeric = np.isfinite(draft.values[:, j]).all()
        columns.append(pa.array(draft.values[:, j] if numeric else [row[j] for row in draft.cells]))
    return pa.Table.from_arrays(columns, names=draft.names)


def _spot(draft: Draft, random: Random) -> tuple[int, int]:
    return int(random.integers(len(draft.cells))), int(random.choice(draft.numbers()))


def _each(spellings: Sequence[tuple[str, float | None]]) -> Mutation:
    """Write some numbers in one of the spellings, with the value that must be read, if any."""

    def mutate(draft: Draft, random: Random) -> None:
        for _ in range(int(random.integers(1, 5))):
            text, value = spellings[int(random.integers(len(spellings)))]
            draft.set(*_spot(draft, random), text, value)

    return mutate


def _bytes(change: Callable[[bytes, Random], bytes], suffix: str = "") -> Mutation:
    def mutate(draft: Draft, random: Random) -> None:
        draft.forget()
        draft.suffix = suffix or draft.suffix
        draft.finish.append(lambda data: change(data, random))

    return mutate


def plain(draft: Draft, random: Random) -> None:
    """Change nothing."""


def delimiter(draft: Draft, random: Random) -> None:
    draft.delimiter = str(random.choice([";", "\t", "|", ":"]))
    draft.use(delimiter=draft.delimiter)
    draft.suffix = ".tsv" if draft.delimiter == "\t" else ".csv"


def wrong_delimiter(draft: Draft, random: Random) -> None:
    draft.forget()
    draft.delimiter = str(random.choice([";", "\t", "|"]))


def all_quoted(draft: Draft, random: Random) -> None:
    draft.quoting = csv.QUOTE_ALL


def text_with_marks(draft: Draft, random: Random) -> None:
    for j in range(len(draft.names)):
        if j not in draft.numbers():
            row = int(random.integers(len(draft.cells)))
            draft.cells[row][j] = str(random.choice(["a,b", "a\nb", 'say "no"', "a;b", "\ta", "=1+1"]))


def stray_quote(draft: Draft, random: Random) -> None:
    draft.forget(rows=len(draft.cells))
    draft.finish.append(lambda data: _inserted(data, b'"', random))


def line_ends(draft: Draft, random: Random) -> None:
    draft.ending = str(random.choice(["\r\n", "\r"]))


def byte_order_mark(draft: Draft, random: Random) -> None:
    draft.encoding = "utf-8-sig"


def other_encoding(draft: Draft, random: Random) -> None:
    draft.encoding = str(random.choice(["utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"]))
    draft.use(encoding=draft.encoding)


def wrong_encoding(draft: Draft, random: Random) -> None:
    draft.forget()
    draft.encoding = str(random.choice(["utf-16", "latin-1", "utf-32", "cp037"]))
    draft.names[draft.names.index(draft.targets[0])] = "prix réel"
    draft.targets[0] = "prix réel"


def unknown_encoding(draft: Draft, random: Random) -> None:
    draft.forget()
    draft.use(
        encoding=str(random.choice(["utf-9", "", "base64", "zip", "rot13", "idna", "\x00", "punycode"]))
    )


def nul_bytes(draft: Draft, random: Random) -> None:
    draft.forget()
    draft.finish.append(lambda data: _inserted(data, b"\0" * int(random.integers(1, 20)), random))


def ragged(draft: Draft, random: Random) -> None:
    draft.forget(rows=len(draft.cells))
    row = draft.cells[int(random.integers(len(draft.cells)))]
    row[:] = row[:-1] if random.random() < 0.5 else [*row, *(["1"] * int(random.integers(1, 5)))]


def empty(draft: Draft, random: Random) -> None:
    draft.forget()
    content = bytes(random.choice([b"", b"\n", b"\n\n\n", b" ", b",", b",,,\n,,,\n", b"\xef\xbb\xbf", b"\0"]))
    draft.finish.append(lambda _: content)


def header_only(draft: Draft, random: Random) -> None:
    keep = int(random.integers(0, 3))
    draft.cells, draft.values, draft.known = draft.cells[:keep], draft.values[:keep], draft.known[:keep]
    draft.rows = keep


def names_twice(draft: Draft, random: Random) -> None:
    draft.forget()
    a, b = random.integers(len(draft.names), size=2)
    draft.names[int(a)] = draft.names[int(b)] + str(random.choice(["", " "]))


def nameless(draft: Draft, random: Random) -> None:
    draft.forget()
    draft.names[int(random.integers(len(draft.names)))] = str(random.choice(["", " ", "\t"]))


def odd_names(draft: Draft, random: Random) -> None:
    for j in random.permutation(len(draft.names))[: int(random.integers(1, 4))].tolist():
        new = ODD_NAMES[int(random.integers(len(ODD_NAMES)))]
        if new.strip() not in draft.names and new.strip():
            draft.targets = [new.strip() if name == draft.names[j] else name for name in draft.targets]
            draft.names[j] = new


def mixed_types(draft: Draft, random: Random) -> None:
    _each([(t, None) for t in ("abc", "true", "-", "?", "1 2", "1-2", "12k", "x" * 500, "\x1b[31m", "€5")])(
        draft, random
    )


def missing(draft: Draft, random: Random) -> None:
    # A missing number must not be read as a number: the row or the column is dropped.
    for _ in range(int(random.integers(1, 6))):
        row, column = _spot(draft, random)
        draft.cells[row][column] = str(random.choice(MISSING))
        draft.values[row, column] = math.inf
        draft.known[row, column] = True


def dates(draft: Draft, random: Random) -> None:
    style = str(
        random.choice(["2024-01-{:02d}", "{:02d}/01/2024", "2024-01-{:02d}T00:00:00Z", "{:02d}. Jan"])
    )
    j = int(random.choice(draft.numbers()))
    for i in range(len(draft.cells)):
        draft.set(i, j, style.format(1 + i % 28))


def decimal_commas(draft: Draft, random: Random) -> None:
    draft.delimiter = ";"
    draft.use(delimiter=";")
    for j in draft.numbers():
        for i in range(len(draft.cells)):
            draft.set(i, j, draft.cells[i][j].replace(".", ","))


def thousands(draft: Draft, random: Random) -> None:
    mark = str(random.choice([",", "'", " ", "_", "\u00a0", "\u202f"]))
    j = int(random.choice(draft.numbers()))
    for i in range(len(draft.cells)):
        draft.set(i, j, f"{1000 * (i + 1):,}".replace(",", mark))


def compressed(draft: Draft, random: Random) -> None:
    draft.suffix = str(random.choice([".csv.gz", ".csv", ".gz"]))
    draft.finish.append(gzip.compress)


def compressed_truncated(draft: Draft, random: Random) -> None:
    compressed(draft, random)
    draft.forget()
    draft.finish.append(lambda data: data[: int(random.integers(0, len(data)))])


def compressed_damaged(draft: Draft, random: Random) -> None:
    compressed(draft, random)
    draft.forget()
    draft.finish.append(lambda data: _flipped(data, random))


def long_cells(draft: Draft, random: Random) -> None:
    row, column = (int(random.integers(k)) for k in (len(draft.cells), len(draft.names)))
    draft.set(row, column, str(random.choice(["9", "a", "é", '"', " "])) * int(10 ** random.uniform(2, 5.5)))


def long_line(draft: Draft, random: Random) -> None:
    draft.forget()
    length = int(10 ** random.uniform(5, 7.4))
    draft.finish.append(
        lambda data: bytes(random.choice([b"1", b"1,", b" ", b"\xff"])) * (length // 2) + data
    )


def many_columns(draft: Draft, random: Random) -> None:
    n, k = len(draft.cells), int(10 ** random.uniform(1.5, 3.3))
    extra = random.normal(size=(n, k))
    draft.names += [f"extra_{j}" for j in range(k)]
    for row, more in zip(draft.cells, extra.tolist(), strict=True):
        row += map(repr, more)
    draft.values = np.concatenate([draft.values, extra], 1)
    draft.known = np.concatenate([draft.known, np.ones_like(extra, dtype=bool)], 1)


def absent_target(draft: Draft, random: Random) -> None:
    many_columns(draft, random)
    draft.targets = [str(random.choice(["Price", "prcie", "x" * 1000, "", "extra_", "nothing like it"]))]


def preamble(draft: Draft, random: Random) -> None:
    draft.forget()
    text = bytes(random.choice([b"# comment\n", b"Table 1\n\n", b"\n", b"sep=,\n", b"// a, b\n"]))
    draft.finish.append(lambda data: text + data)


def repeated_header(draft: Draft, random: Random) -> None:
    draft.cells.insert(len(draft.cells) // 2, list(draft.names))
    draft.values = np.insert(draft.values, len(draft.values) // 2, math.nan, axis=0)
    draft.known = np.insert(draft.known, len(draft.known) // 2, False, axis=0)
    draft.rows = len(draft.cells)


def blank_lines(draft: Draft, random: Random) -> None:
    for _ in range(3):
        draft.cells.insert(int(random.integers(len(draft.cells))), [])
    # They are not counted as rows, so the values keep their places.


def spaces(draft: Draft, random: Random) -> None:
    for row in draft.cells:
        row[:] = [f" {cell}  " for cell in row]
    draft.names = [f" {name} " for name in draft.names]


def constant(draft: Draft, random: Random) -> None:
    j = int(random.choice(draft.numbers()))
    text = str(random.choice(["7", "", "NA", "0", "1e30", "-5.5"]))
    for i in range(len(draft.cells)):
        draft.set(i, j, text)


def index_column(draft: Draft, random: Random) -> None:
    draft.names.insert(0, "")
    for i, row in enumerate(draft.cells):
        row.insert(0, str(i))
    draft.values = np.insert(draft.values, 0, math.nan, axis=1)
    draft.known = np.insert(draft.known, 0, False, axis=1)


def large_integers(draft: Draft, random: Random) -> None:
    j = int(random.choice(draft.numbers()))
    for i in range(len(draft.cells)):
        number = int(random.integers(1, 10**15)) * 10 ** int(random.integers(0, 15))
        draft.set(i, j, str(number), float(number))


def other_files(draft: Draft, random: Random) -> None:
    draft.forget()
    starts = [
        b"<!DOCTYPE html><html>",
        b"\x89PNG\r\n\x1a\n",
        b"PK\x03\x04",
        b"PAR1",
        b"\x80\x04\x95",
        b"SQLite format 3\0",
        b'{"a": [1, 2]}',
        b"version https://git-lfs.github.com/spec/v1\n",
        b"%PDF-1.4",
        b"\x1f\x8b",
        b"BZh9",
    ]
    start = starts[int(random.integers(len(starts)))]
    draft.suffix = str(random.choice([".csv", ".parquet", ".csv.gz", ".pq"]))
    draft.arrow = None
    tail = random.bytes(int(random.integers(0, 300)))
    if draft.suffix == ".pq":
        draft.suffix = ".parquet"
    draft.finish.append(lambda _: start + tail)


def parquet(draft: Draft, random: Random) -> None:
    draft.suffix = ".parquet"


def parquet_types(draft: Draft, random: Random) -> None:
    draft.suffix = ".parquet"
    n = len(draft.cells)
    numbers = random.normal(size=n)
    makers: list[Callable[[], pa.Array]] = [
        lambda: pa.array([Decimal(f"{v:.3f}") for v in numbers]),
        lambda: pa.array(numbers.astype("float16")),
        lambda: pa.array((numbers * 100).astype("int32"), pa.date32()),
        lambda: pa.array((numbers * 1e9).astype(int), pa.timestamp("ns", "UTC")),
        lambda: pa.array((numbers * 1e9).astype(int), pa.timestamp("us")),
        lambda: pa.array((numbers * 1e5).astype(int), pa.duration("s")),
        lambda: pa.array(np.abs(numbers * 1e4).astype("int32"), pa.time32("s")),
        lambda: pa.array([[v, v] for v in numbers]),
        lambda: pa.array([{"a": v} for v in numbers]),
        lambda: pa.nulls(n),
        lambda: pa.array([f"level {i % 3}" for i in range(n)]).dictionary_encode(),
        lambda: pa.array([b"\xff\x00"] * n),
        lambda: pa.array([None if i % 5 == 0 else int(i) for i in range(n)]),
        lambda: pa.array([None if i % 5 == 0 else bool(i % 2) for i in range(n)]),
        lambda: pa.array(np.full(n, 2**63, dtype=np.uint64) + np.arange(n, dtype=np.uint64)),
        lambda: pa.array(np.where(numbers > 0, np.inf, numbers)),
        lambda: pa.array([None if i % 7 == 0 else f"t{i}" for i in range(n)]),
        lambda: pa.array([[("k", float(i))] for i in range(n)], pa.map_(pa.string(), pa.float64())),
    ]
    maker = makers[int(random.integers(len(makers)))]
    place = int(random.integers(len(draft.names)))
    draft.known[:, place] = False

    def table(own: Draft) -> pa.Table:
        whole = to_arrow(own)
        return whole.set_column(place, own.names[place], maker())

    draft.arrow = table


def parquet_names(draft: Draft, random: Random) -> None:
    draft.suffix = ".parquet"
    (odd_names if random.random() < 0.5 else names_twice)(draft, random)


def parquet_truncated(draft: Draft, random: Random) -> None:
    draft.suffix = ".parquet"
    draft.forget()
    draft.finish.append(lambda data: data[: int(random.integers(0, len(data)))])


def parquet_damaged(draft: Draft, random: Random) -> None:
    draft.suffix = ".parquet"
    draft.forget()
    draft.finish.append(lambda data: _flipped(data, random))


def random_text(draft: Draft, random: Random) -> None:
    for _ in range(int(random.integers(1, 8))):
        points = random.integers(1, 0xD7FF, size=int(random.integers(1, 30)))
        text = "".join(map(chr, points.tolist()))
        row, column = int(random.integers(len(draft.cells))), int(random.integers(len(draft.names)))
        draft.set(row, column, text)
    if random.random() < 0.3:
        draft.forget()
        draft.names[int(random.integers(len(draft.names)))] = text


def _inserted(data: bytes, what: bytes, random: Random) -> bytes:
    place = int(random.integers(len(data) + 1))
    return data[:place] + what + data[place:]


def _flipped(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 20))):
        if changed:
            changed[int(random.integers(len(changed)))] = int(random.integers(256))
    return bytes(changed)


MUTATIONS: dict[str, Mutation] = {
    "none": plain,
    "delimiter": delimiter,
    "wrong delimiter": wrong_delimiter,
    "all quoted": all_quoted,
    "marks in text": text_with_marks,
    "stray quote": stray_quote,
    "line ends": line_ends,
    "byte order mark": byte_order_mark,
    "other encoding": other_encoding,
    "wrong encoding": wrong_encoding,
    "unknown encoding": unknown_encoding,
    "NUL bytes": nul_bytes,
    "ragged rows": ragged,
    "huge numbers": _each([(t, None) for t in ("1e39", "-1e39", "1e400", "9" * 400, "1e-400", "3.5e38")]),
    "infinite": _each([(t, None) for t in ("inf", "-inf", "Infinity", "+INF", "1/0", "∞", "#DIV/0!")]),
    "missing values": missing,
    "decimal commas": decimal_commas,
    "thousands": thousands,
    "odd numbers": _each(
        [("1_000", None), ("0x10", None), ("١٢", None), ("1d3", None), ("1e", None), ("--1", None)]
    ),
    "spellings": _each([("1e3", 1e3), ("+5", 5.0), (".5", 0.5), ("5.", 5.0), ("-0", 0.0), ("1E-3", 1e-3)]),
    "large integers": large_integers,
    "empty file": empty,
    "few rows": header_only,
    "names twice": names_twice,
    "no name": nameless,
    "odd names": odd_names,
    "mixed types": mixed_types,
    "dates": dates,
    "gzip": compressed,
    "gzip truncated": compressed_truncated,
    "gzip damaged": compressed_damaged,
    "long cells": long_cells,
    "long line": long_line,
    "many columns": many_columns,
    "absent target": absent_target,
    "preamble": preamble,
    "repeated header": repeated_header,
    "blank lines": blank_lines,
    "spaces": spaces,
    "constant column": constant,
    "row index": index_column,
    "random text": random_text,
    "bytes changed": _bytes(_flipped),
    "bytes only": _bytes(lambda data, random: random.bytes(int(random.integers(0, 2000)))),
    "other files": other_files,
    "parquet": parquet,
    "parquet types": parquet_types,
    "parquet names": parquet_names,
    "parquet truncated": parquet_truncated,
    "parquet damaged": parquet_damaged,
}
