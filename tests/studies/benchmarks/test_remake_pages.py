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


def test_a_command_that_fails_is_told_and_not_recorded(remake, capsys):
    with pytest.raises(SystemExit, match="failed: benchmarks"):
        remake("wrong.md")
    assert "FAILED" in capsys.readouterr().out
    assert remake("--list") == {}
