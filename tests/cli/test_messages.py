"""Progress: nothing for short work, else how long it takes, the rate and what is left."""

# ruff: noqa: F811 (an argument has the name of its fixture)

import io
import re

import pytest

pytest.importorskip("click")
pytest.importorskip("sklearn")

import numpy as np
import torch
from terminal import fitted, households, latentcal, model, write_csv  # noqa: F401 (fixtures)

from latentcal._internal import progress_bar
from latentcal.cli import answers, messages
from latentcal.cli.messages import Progress, command
from latentcal.cli.reading import Chunk


class Clock:
    """Seconds that pass as the test says."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (messages, progress_bar, answers):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr("tqdm.std.time", clock.monotonic)
    return clock


def work(clock, monkeypatch, pieces, total):
    """What is shown of pieces of (rows, seconds)."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    with Progress("predicting", total) as progress:
        for rows, seconds in pieces:
            clock.now += seconds
            progress.advance(rows)
    return stream.getvalue()


def test_the_time_is_told_once_and_then_a_line_every_ten_seconds(clock, monkeypatch):
    lines = work(clock, monkeypatch, [(16, 2.4)] * 57, 912).splitlines()
    assert lines[0] == "predicting: 912 rows take about 2 min 17 s (6.67 rows/s)."
    assert len([line for line in lines if "take about" in line]) == 1
    assert 10 <= len(lines) <= 15
    shown = [re.search(r"\| (\d+)/912 \[\d\d:\d\d<(\d\d):(\d\d), +6.67 rows/s\]", line) for line in lines[1:]]
    for done, minutes, seconds in (line.groups() for line in shown):
        assert 60 * int(minutes) + int(seconds) == pytest.approx((912 - int(done)) / 6.667, abs=1)


def test_the_first_rows_may_be_slow_for_other_reasons(clock, monkeypatch):
    lines = work(clock, monkeypatch, [(16, 1.5), (16, 0.1), (32, 0.8), *[(32, 0.8)] * 10], 384).splitlines()
    assert lines[0] == "predicting: 384 rows take about 10 s (40 rows/s)."


def test_short_work_shows_nothing(clock, monkeypatch):
    assert work(clock, monkeypatch, [(1000, 0.9)] * 4, 4000) == ""


def test_the_pieces_grow_until_they_take_half_a_second(clock):
    chunks = [Chunk(torch.arange(2000.0)[:, None], None, {"row": torch.arange(2000).numpy()})] * 2
    seen, sizes = [], []
    for piece in answers._pace(chunks):
        clock.now += len(piece.x) / 200
        sizes.append(len(piece.x))
        seen += piece.head["row"].tolist()
        assert piece.x[:, 0].tolist() == piece.head["row"].tolist()
    assert seen == [*range(2000)] * 2
    assert sizes[:4] == [16, 32, 64, 128]
    assert max(sizes) == 128


def test_pieces_do_not_change_the_answers(model, tmp_path, monkeypatch):
    data = write_csv(tmp_path / "rows.csv", households(300, 1))
    whole = latentcal("predict", model, data)
    monkeypatch.setattr(answers, "_PIECE", -1.0)  # sixteen rows at a time
    pieces = latentcal("predict", model, data)
    assert [row["row"] for row in pieces.rows()] == [str(i) for i in range(300)]
    for name in ("food_mean", "energy_q0.95"):
        values = [[float(row[name]) for row in answer.rows()] for answer in (whole, pieces)]
        np.testing.assert_allclose(*values, rtol=1e-5)


def test_long_work_of_a_command_shows_what_it_will_take(model, tmp_path, monkeypatch):
    data = write_csv(tmp_path / "rows.csv", households(300, 1))
    for name in ("SHORT", "_FIRST_LOOK", "_WARM_UP"):
        monkeypatch.setattr(messages, name, 0.0)
    err = latentcal("predict", model, data, "--out", tmp_path / "a.csv").err
    assert re.search(r"^predicting: 300 rows take about \d+ s \(\S+ rows/s\)\.$", err, re.MULTILINE)


def test_a_command_is_shown_as_a_shell_takes_it():
    assert command("predict", "my model", "new.csv") == "`latentcal predict 'my model' new.csv`"
