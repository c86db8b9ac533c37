"""The examples run from start to end, print what they promise and write what they say."""

import runpy
import sys
from pathlib import Path

import pytest

from printed import contains

EXAMPLES = Path(__file__).parent.parent / "examples"
PRINTED = {
    "beyond_one_radius": ["Chosen: aligned by x, radial by x"],
    "conformal_region": ["nominal coverage 90 %; 95 % of regions made from 1,000 rows cover 88.1% to 91.8%"],
    "decide": ["before  mean chance 2.6% (happened 4.8%)", "after   mean chance 5.2% (happened 4.8%)"],
    "diagnose": ["Not calibrated: ", "Recalibration helped", "Calibrated as far as"],
    "little_data": ["crossed, by x", "90 % region to within 5 %: 160"],
    "own_model": ["All 13 checks passed.", "before  L-ECE 0.389"],
    "recalibrate_a_flow": ["before  NLL", "after   NLL"],
    "save_and_load": ["same log densities: True", "with it: StackedRadius"],
    "streaming": ["3750 to 4000"],
}
WRITTEN = {
    "beyond_one_radius": ["beyond_one_radius.png"],
    "conformal_region": ["conformal_region.png"],
    "save_and_load": ["model/model.json", "law/model.json"],
}


def run(name, folder, monkeypatch, capsys):
    """What an example prints."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(folder)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    matplotlib.pyplot.close("all")
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_what_it_promises_and_writes_what_it_says(name, tmp_path, monkeypatch, capsys):
    printed = run(name, tmp_path, monkeypatch, capsys)
    assert [words for words in PRINTED[name] if not contains(printed, words)] == [], printed
    assert [file for file in WRITTEN.get(name, ()) if not (tmp_path / file).exists()] == []


@pytest.mark.slow
def test_the_demo_draws_its_picture(tmp_path, monkeypatch, capsys):
    assert "Wrote demo/recalibration.png" in run("demo", tmp_path, monkeypatch, capsys)
    assert (tmp_path / "demo" / "recalibration.png").exists()


def test_every_example_is_tried_and_short():
    lines = {path.stem: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {*lines} == {*PRINTED, "demo"}
    assert [name for name in PRINTED if lines[name] >= 60] == []
