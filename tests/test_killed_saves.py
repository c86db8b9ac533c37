"""Whenever a save ends, the old or the new is there, whole: a small share of tools/kill_saves.py."""

import os
import sys
from pathlib import Path

import pytest

for name in ("sklearn", "pandas", "click"):
    pytest.importorskip(name)
if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import kill_saves  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of forks beside threads, and of half a record


@pytest.fixture
def subjects(tmp_path):
    tmp_path.chmod(0o755)
    return kill_saves.subjects(tmp_path)


def assert_sound(counts, attempts):
    assert counts["attempts"] >= attempts
    assert counts["broken"] == counts["not cleaned"] == counts["other errors"] == 0
    assert counts["most left"] <= 4


@pytest.mark.parametrize("name", ["lc.save", "FlowRegressor.save", "study store"])
def test_killed_before_any_event_the_old_or_the_new_is_there_and_the_next_save_cleans_up(
    name, subjects, tmp_path
):
    counts = kill_saves.kill_at_events(name, subjects[name], tmp_path)
    assert_sound(counts, 10)
    assert 0 < counts["new"] < counts["attempts"]  # control: the moments lie on both sides of the change


@pytest.mark.slow
@pytest.mark.parametrize("name", ["latentcal fit", "latentcal recalibrate"])
def test_a_killed_command_leaves_the_old_or_the_new_model(name, subjects, tmp_path):
    assert_sound(kill_saves.kill_at_events(name, subjects[name], tmp_path), 10)


def test_two_writers_at_once_leave_the_model_of_one_of_them(subjects, tmp_path):
    assert_sound(kill_saves.race(subjects["lc.save"], tmp_path, 20), 20)


@pytest.mark.parametrize("name", ["lc.save", "study store"])
def test_a_full_disk_leaves_what_was_there(name, subjects, tmp_path):
    counts = kill_saves.fill_disk(name, subjects[name], tmp_path)
    assert_sound(counts, 30)
    assert 0 < counts["new"] < counts["attempts"]  # control: the last ones have room
