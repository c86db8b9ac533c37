"""What the tests of the commands share: a terminal that keeps what is printed, tables, and a small model."""

import contextlib
import csv
import io
from pathlib import Path
from typing import NamedTuple

import pytest

from latentcal.cli import main
from latentcal.toy import household_table

TARGETS = "food,housing,energy"


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.out)))


def latentcal(*words: object) -> Answer:
    """Run a command in this process."""
    # With bytes beneath, as click writes to them where it completes words.
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Answer(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def write_csv(path: Path, table: dict, *, encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        lines = csv.writer(file)
        lines.writerow(table)
        lines.writerows(zip(*table.values(), strict=True))
    return path


def households(n: int, seed: int = 0, **changed) -> dict:
    """Columns as lists; ``changed`` replaces some of them, or takes them away if None."""
    table = {name: column.tolist() for name, column in household_table(n, seed).items()} | changed
    return {name: column for name, column in table.items() if column is not None}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """Folder with a table, a model that was fitted to it, and what `fit` printed."""
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("fitted")
    data = write_csv(folder / "households.csv", households(800))
    words = (
        "--targets",
        TARGETS,
        "--drop",
        "household",
        "--flow",
        "linear-gaussian",
        "--out",
        folder / "model",
    )
    answer = latentcal("fit", data, *words)
    assert answer.code == 0, answer.err
    return folder, answer


@pytest.fixture(scope="session")
def model(fitted):
    return fitted[0] / "model"


@pytest.fixture
def new(tmp_path):
    """Features of six new rows."""
    return write_csv(tmp_path / "new.csv", households(6, 1, food=None, housing=None, energy=None))
