"""``make results``: its table names every command of the pages, and what is done is not run again."""

import re
import sys

import pytest

from studies.benchmarks import remake_pages

ROOT = remake_pages.ROOT
OF_THE_STUDY = ("tabular_study.md", "tabular_study_tables.md", "tuned_flows.md")
PAGES = [p for p in sorted((ROOT / "docs" / "results").glob("*.md")) if p.name not in OF_THE_STUDY]
COMMANDS = {step.command for step in remake_pages.list_steps([*remake_pages.PAGES])}
# Trained flows, which take days, and a comparison with an earlier commit.
ELSEWHERE = re.compile(
    r"tabular(\.size_search|\.rounding| run| table)\b.*|images --data \w+ --threads 1|\S+ --before \.\.\."
)


def commands_of(text):
    """What follows ``python -m studies.`` in code, without comments."""
    fenced = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
    lines = [line for kind, block in fenced.findall(text) if kind == "sh" for line in block.splitlines()]
    lines += [" ".join(span.split()) for span in re.findall("`([^`]+)`", fenced.sub("", text))]
    found = [re.search(r"python -m studies\.([^#]*)", line) for line in lines]
    return {match[1].strip() for match in found if match}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_result_page_is_in_the_table(page):
    wanted = {command for command in commands_of(page.read_text()) if not ELSEWHERE.fullmatch(command)}
    assert wanted <= COMMANDS
    assert page.name == "advice_steps.md" or wanted & {*remake_pages.PAGES[page.name]}


def test_every_benchmark_of_the_readme_is_in_the_table():
    wanted = {c for c in commands_of((ROOT / "README.md").read_text()) if c.startswith("benchmarks.")}
    assert len(wanted) > 10
    assert {c for c in wanted if not any(f"{known} ".startswith(f"{c} ") for known in COMMANDS)} == set()


def test_each_command_is_named_once_and_its_results_exist():
    steps = list(remake_pages.list_steps([*remake_pages.PAGES]))
    assert len(steps) == len(COMMANDS)
    files = [name for step in steps for name in step.results]
    assert len(files) == len({*files})
    assert [name for name in files if not (remake_pages.RESULTS / name).is_file()] == []


@pytest.fixture
def remake(monkeypatch, tmp_path):
    """Runs the tool on commands of our own, with its records in a folder of the test."""
    monkeypatch.setattr(remake_pages, "RESULTS", tmp_path)
    monkeypatch.setattr(remake_pages, "DONE", tmp_path / "remade.csv")
    monkeypatch.setattr(remake_pages, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(remake_pages, "DOCS", tmp_path)
    (tmp_path / "quick.md").write_text("The times.\n")
    quick, wrong = "benchmarks.remake_pages --list speed.md", "benchmarks.remake_pages --no-such-option"
    pages = {"quick.md": {quick: ("quick.csv",)}, "wrong.md": {wrong: ()}}
    monkeypatch.setattr(remake_pages, "PAGES", pages)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["remake_pages", *words])
        remake_pages.main()
        return remake_pages.find_seconds()

    return call


def test_a_finished_command_is_skipped_until_it_is_forgotten(remake, tmp_path, capsys):
    (result := tmp_path / "quick.csv").write_text("of earlier code")
    (seconds,) = remake("quick.md").values()
    assert 0 < seconds < 60
    assert "latency" in next((tmp_path / "logs").iterdir()).read_text()
    assert "CPU s: benchmarks.remake_pages" in capsys.readouterr().out
    remake("quick.md")
    out = capsys.readouterr().out
    assert "1/1 done" in out
    assert "CPU s: " not in out
    assert result.exists()
    remake("quick.md", "--fresh")
    assert "CPU s: benchmarks.remake_pages" in capsys.readouterr().out
    assert not result.exists()
    assert list(remake("--list")) == ["benchmarks.remake_pages --list speed.md"]


def test_a_table_of_the_output_replaces_the_one_of_the_page_with_its_header_and_first_cell(tmp_path):
    (page := tmp_path / "page.md").write_text(
        "| a | b |\n|---|---|\n| first | 1 |\n| gone | 2 |\n\nOf the first.\n\n"
        "| a | b |\n|---|---|\n| second | 3 |\n\nOf the second.\n| c |\n|---|\n| kept | "
    )
    output = (
        "12 s\n| a | b |\n|---|---|\n| second | 4 |\n| new | 5 |\n\n"
        "| a | b |\n|:--|--:|\n| first | 6 |\n| d |\n|---|\n| elsewhere |"
    )
    told = remake_pages.fill(page, output)
    assert page.read_text() == (
        "| a | b |\n|:--|--:|\n| first | 6 |\n\nOf the first.\n\n"
        "| a | b |\n|---|---|\n| second | 4 |\n| new | 5 |\n\nOf the second.\n| c |\n|---|\n| kept | "
    )
    assert "2 of 3 tables are in page.md" in told
    assert "without counterpart there: | d | | elsewhere" in told


def test_as_many_tables_of_a_kind_are_needed_as_the_page_has(tmp_path):
    table = "| a |\n|---|\n| x | {} |\n"
    (page := tmp_path / "page.md").write_text(f"{table.format(1)}\n{table.format(2)}")
    assert "0 of 1 tables" in remake_pages.fill(page, table.format(3))
    assert page.read_text() == f"{table.format(1)}\n{table.format(2)}"
    assert "1 of 1 tables" in remake_pages.fill(page, f"{table.format(3)}\n{table.format(4)}")
    assert page.read_text() == f"{table.format(3)}\n{table.format(4)}"


def test_a_command_that_fails_is_told_and_not_recorded(remake, capsys):
    with pytest.raises(SystemExit, match="failed: benchmarks"):
        remake("wrong.md")
    assert "FAILED" in capsys.readouterr().out
    assert remake("--list") == {}
