"""Tables as text, CSV, LaTeX and HTML say the same."""

import csv
import io
import math
import re
from html.parser import HTMLParser

import pytest
from study_records import cells_of, full_record, record, records_of

from studies.tabular import METHODS
from studies.tabular.formats import (
    FORMATS,
    Cell,
    Column,
    Table,
    as_csv,
    as_html,
    as_latex,
    as_text,
    figures,
    format_tables,
    signed,
)
from studies.tabular.study_cells import Cells
from studies.tabular.study_report import write_tables
from studies.tabular.study_tables import TABLES, metric_table, tables_of

TABLE = Table(
    "A title with 90 % & more",
    (Column("Data set"), Column("BASE", "here"), Column("LR", "here"), Column("BASE", "published")),
    (
        (
            Cell("SLU my_set"),
            Cell(value=2.6123, error=0.1894, bold=True),
            Cell("failed"),
            Cell(value=2.61, error=0.19, difference=1.25, as_printed=True),
        ),
        (Cell("EDM"), Cell(value=math.inf), Cell("1 of 3 seeds", value=-0.5), Cell("–")),
    ),
    ("A note on x_1.", "[ another ]"),
)


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (2.6123, 0.1894, ("2.61", "0.19")),
        (123.4, 12.3, ("123", "12")),
        (0.000123, 0.0000456, ("0.00012", "0.00005")),
        (-0.001, 0.5, ("0.00", "0.50")),
        (1.0, 0.0, ("1.00", "0")),
        (0.0, None, ("0.00", "")),
        (-math.inf, None, ("-inf", "")),
    ],
)
def test_digits_follow_the_standard_error(value, error, expected):
    assert figures(value, error) == expected


def test_a_difference_has_a_sign():
    assert [signed(value) for value in (0.96, -12.34, 0.01, -math.inf)] == ["+1.0", "-12.3", "0.0", "-inf"]


def test_text_marks_bold_and_shows_differences():
    lines = as_text(TABLE).splitlines()
    assert lines[0] == TABLE.title
    assert "2.61 ± 0.19*" in as_text(TABLE)
    assert "2.61 ± 0.19 [+1.2]" in as_text(TABLE)
    assert "-0.500 (1 of 3 seeds)" in as_text(TABLE)
    assert any("inf" in line and "EDM" in line for line in lines)
    assert str(TABLE) == as_text(TABLE)


def test_csv_has_full_precision_and_errors_in_columns_of_their_own():
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLE))))
    assert rows[0]["here BASE"] == "2.6123"
    assert rows[0]["here BASE, standard error"] == "0.1894"
    assert rows[0]["here BASE, bold"] == "1"
    assert rows[0]["here LR"] == "failed"
    assert rows[0]["published BASE, difference in joint s.e."] == "1.25"
    assert rows[1]["here BASE"] == "inf"
    assert rows[1]["here LR, remark"] == "1 of 3 seeds"
    assert "here LR, standard error" not in rows[0]


def check_latex(text: str) -> None:
    """Braces, environments and columns fit; characters that LaTeX reads as its own are escaped."""
    assert text.isascii(), sorted(set(text) - set(map(chr, range(128))))
    depth = 0
    for i, character in enumerate(text):
        if character in "{}" and (i == 0 or text[i - 1] != "\\"):
            depth += 1 if character == "{" else -1
        assert depth >= 0
    assert depth == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    kinds = re.search(r"\\begin\{tabular\}\{(\w+)\}", text)
    assert kinds is not None
    body = text[kinds.end() : text.index(r"\end{tabular}")]
    rows = [row for row in body.split(r"\\") if "&" in row]
    for row in rows:
        spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", row)]
        cells = len(re.findall(r"(?<!\\)&", row)) + 1
        assert cells + sum(n - 1 for n in spans) == len(kinds[1])
        assert not re.search(r"(?<!\\)[%#]", row)
        outside = "".join(re.split(r"(?<!\\)\$", row)[::2])  # of mathematics
        assert not re.search(r"(?<!\\)[_^]", outside)
        assert len(re.findall(r"(?<!\\)\$", row)) % 2 == 0
    assert not re.search(r"\\\\\s*\[", text)  # which would be a length
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1


def test_latex_is_well_formed():
    text = as_latex(TABLE)
    check_latex(text)
    assert r"$\mathbf{2.61}_{0.19}$" in text
    assert r"$2.61_{0.19}$\,$[+1.2]$" in text
    assert r"SLU my\_set" in text
    assert r"$\infty$" in text
    assert r"90 \% \& more" in text


@pytest.mark.parametrize(
    ("right", "wrong"), [("{2.61}", "{2.61"), (r"my\_set", "my_set"), (" & failed", ""), (r"\end{table}", "")]
)
def test_the_check_of_latex_sees_what_is_broken(right, wrong):
    text = as_latex(TABLE)
    assert right in text
    with pytest.raises(AssertionError):
        check_latex(text.replace(right, wrong))


class _Reader(HTMLParser):
    """Tags must close in order; cells are counted row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.widths: list[int] = []
        self.text = ""

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.widths.append(0)
        if tag in ("td", "th"):
            self.widths[-1] += int(dict(attrs).get("colspan") or 1)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_is_well_formed_and_escaped():
    page = as_html(TABLE, TABLE)
    reader = _Reader()
    reader.feed(page)
    assert reader.open == []
    assert set(reader.widths) == {len(TABLE.columns)}
    assert "<b>2.61</b>" in page
    assert "<caption>A title with 90 % &amp; more</caption>" in page
    assert "[+1.2]" in reader.text
    assert "∞" in reader.text
    assert "A note on x_1." in reader.text


def study() -> Cells:
    known = [full_record("slump", name, seed, 0.1 * seed) for name in METHODS for seed in range(3)]
    known += [full_record("enb", name, 0) for name in METHODS[:4]]
    known += [record("edm", name, 0, error="ValueError: a_b & c % {d") for name in METHODS]
    known += records_of("nll", {("jura", "BASE"): [math.inf, 1.0]})
    return Cells.of(known, "convex-potential")


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_a_patchy_study_can_be_written(name):
    (table,) = tables_of(name, [study()])
    check_latex(format_tables([table], "latex"))
    reader = _Reader()
    reader.feed(format_tables([table], "html"))
    assert reader.open == []
    rows = list(csv.reader(io.StringIO(format_tables([table], "csv"))))
    assert len(rows) == len(table.rows) + 1
    assert len({len(row) for row in rows}) == 1
    text = format_tables([table], "text")
    assert "nan" not in text.lower().replace("names", "")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table("t", (Column("a"), Column("b")), ((Cell("x"),),))


def test_a_table_about_all_methods_takes_none_and_unknown_names_are_refused():
    cells = [study()]
    assert "auto minus" not in tables_of("paired", cells)[0].title
    assert "of auto minus" in tables_of("paired", cells, "auto")[0].title
    with pytest.raises(ValueError, match="shows all methods"):
        tables_of("nll", cells, "auto")
    with pytest.raises(ValueError, match="No table 'nil'"):
        tables_of("nil", cells)
    with pytest.raises(ValueError, match="no format 'pdf'"):
        format_tables([TABLE], "pdf")


def test_one_table_a_suite_but_one_for_all_of_claims():
    other = Cells.of([full_record("slump", name, 0, suite_name="maf") for name in METHODS], "maf")
    assert len(tables_of("nll", [study(), other])) == 2
    assert len(tables_of("claims", [study(), other])) == 1
    assert format_tables(tables_of("nll", [study(), other]), "html").count("<table>") == 2


def test_a_folder_of_tables_has_every_format(tmp_path):
    paths = write_tables([study()], tmp_path / "new", ["nll", "claims"])
    assert {path.name for path in paths} == {
        *(f"{name}.{ending}" for name in ("nll", "claims") for ending in ("txt", "csv", "tex", "html")),
        "tables.html",
    }
    assert (tmp_path / "new" / "nll.txt").read_text() == as_text(metric_table(study(), "nll"))
    assert len(FORMATS) == 4


def test_an_empty_suite_gives_an_empty_table():
    table = metric_table(Cells.of([], "convex-potential"), "nll")
    assert table.rows == ()
    check_latex(as_latex(table))
    assert cells_of("nll", {}).datasets == ()
