"""The examples run from start to end and write what they say."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_beyond_one_radius_prints_the_ladder_and_draws(tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "argv", ["beyond_one_radius.py", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / "beyond_one_radius.py"), run_name="__main__")
    assert "Chosen: aligned by x, radial by x" in capsys.readouterr().out
    assert (tmp_path / "beyond_one_radius.png").stat().st_size > 10_000
    matplotlib.pyplot.close("all")
