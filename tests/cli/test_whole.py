"""Files appear complete or not at all, and what was there stays where writing fails."""

import errno
import os
import signal

import pytest

pytest.importorskip("click")

import click

from latentcal.cli.output import whole_file, writable_folder


def _write_half(target, error):
    with whole_file(target) as path:
        path.write_text("half")
        raise error


def test_a_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "new" / "a.csv"
    with whole_file(target) as path:
        assert path.suffix == ".csv"
        path.write_text("done")
        assert not target.exists()
    assert target.read_text() == "done"
    assert os.listdir(target.parent) == ["a.csv"]


def test_a_failure_leaves_no_file_and_no_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        _write_half(tmp_path / "new" / "deep" / "a.csv", KeyboardInterrupt())
    assert os.listdir(tmp_path) == []


def test_a_failure_keeps_the_old_file(tmp_path):
    target = tmp_path / "a.csv"
    target.write_text("old")
    with pytest.raises(ValueError, match="no number"):
        _write_half(target, ValueError("no number"))
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_an_error_of_another_file_is_not_blamed_on_the_target(tmp_path):
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "a.csv"):
        (tmp_path / "other").read_text()


def test_a_folder_that_cannot_be_made_is_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("mine")
    with (
        pytest.raises(click.ClickException, match="Cannot write"),
        writable_folder(tmp_path / "file" / "model"),
    ):
        pytest.fail("the work was begun")
    with writable_folder(tmp_path / "new" / "model"):
        pass
    with pytest.raises(KeyboardInterrupt), writable_folder(tmp_path / "other" / "model"):
        raise KeyboardInterrupt
    assert not (tmp_path / "other").exists()


def test_what_a_folder_holds_stays(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("mine")
    with pytest.raises(click.ClickException, match="No space"), writable_folder(tmp_path / "model"):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "model" / "model.json"))
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["mine.txt"]


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with whole_file(tmp_path / "link.csv") as path:
        path.write_text("new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"


def test_a_request_to_end_leaves_nothing(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, whole_file(tmp_path / "a.csv"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert end.value.code == 143
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == before
