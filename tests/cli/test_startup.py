"""Help loads none of the packages that take seconds, and only ``fit`` needs scikit-learn."""

# ruff: noqa: F811 (an argument has the name of its fixture)

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")

from terminal import fitted, model, new  # noqa: F401 (fixtures)

import latentcal

COMMANDS = [
    "completion",
    "demo",
    "diagnose",
    "fit",
    "info",
    "predict",
    "probability",
    "recalibrate",
    "regions",
    "sample",
]
HELP = f"""
import sys
from click.testing import CliRunner
from latentcal.cli.app import app
for words in ([], *([name] for name in {COMMANDS!r})):
    answer = CliRunner().invoke(app, [*words, "--help"])
    assert answer.exit_code == 0, answer.output
loaded = {{"torch", "numpy", "pandas", "sklearn", "scipy", "matplotlib"}} & set(sys.modules)
assert not loaded, loaded
"""
ALONE = f"""
import sys, types
package = types.ModuleType("latentcal")
package.__path__ = [{str(Path(latentcal.__file__).parent)!r}]
sys.modules["latentcal"] = package
"""


def run(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_themselves_load_nothing_heavy_for_their_help():
    run(ALONE + HELP)


def test_help_loads_nothing_heavy():
    run(HELP)


def test_only_fit_needs_more_than_the_extra_predict(fitted, model, new, tmp_path):
    data = fitted[0] / "households.csv"
    calls = [
        ["info", model],
        ["predict", model, new],
        ["sample", model, new, "--draws", "2"],
        ["regions", model, new],
        ["probability", model, new, "--where", "food > 1"],
        ["diagnose", model, data, "--max-rows", "40"],
        ["recalibrate", model, data, "--recalibration", "scaled", "--force", "--out", tmp_path / "model"],
    ]
    script = f"""
import sys
for name in ("sklearn", "matplotlib", "jinja2"):
    sys.modules[name] = None
from latentcal.cli import main
for words in {[[str(word) for word in call] for call in calls]!r}:
    try:
        main(words)
    except SystemExit as end:
        assert end.code == 0, words
"""
    assert "on 800 rows" in run(script)
