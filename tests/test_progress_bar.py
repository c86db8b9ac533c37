"""A bar on a terminal; few lines, and none for short work, in a file or a pipe."""

import io

import pytest

from latentcal._internal import progress_bar
from latentcal._internal.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Seconds that pass as the test says."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def written(monkeypatch, stream, seconds: float, updates: int = 100, progress: bool = True) -> str:
    """What a bar writes to a stream in ``updates`` steps of so many seconds."""
    clock = Clock()
    monkeypatch.setattr(progress_bar, "time", clock)
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar(total=updates, desc="work", progress=progress) as bar:
        for _ in range(updates):
            clock.now += seconds
            bar.update()
            bar.set_postfix(loss="1.0")
    return stream.getvalue()


def test_a_file_gets_a_line_every_ten_seconds(monkeypatch):
    lines = written(monkeypatch, io.StringIO(), seconds=1.0).split("\n")
    assert len(lines) == 11
    assert lines[-1] == ""  # the last line is ended
    assert all(line.startswith("work: ") and "loss=1.0" in line for line in lines[:-1])
    assert "100/100" in lines[-2]


@pytest.mark.parametrize(
    ("seconds", "progress"), [(0.01, True), (1.0, False)], ids=["short", "not asked for"]
)
def test_a_file_gets_nothing_of_short_work_or_where_no_progress_is_asked_for(monkeypatch, seconds, progress):
    assert written(monkeypatch, io.StringIO(), seconds, progress=progress) == ""


def test_a_terminal_gets_a_bar(monkeypatch):
    text = written(monkeypatch, Terminal(), seconds=0.01)
    assert "\r" in text
    assert "100%" in text
