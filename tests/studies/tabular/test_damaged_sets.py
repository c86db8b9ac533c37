"""The paper's sets from files that are not what they should be: every kind of damage has its own words."""

import gzip
import hashlib
import os
import shutil
from pathlib import Path

import pytest

from studies.tabular import datasets

ROWS = 103
TARGETS = 3
COLUMNS = 10  # of slump: 7 features and 3 targets


def table(columns=COLUMNS, rows=ROWS):
    """An ARFF file of slump's shape."""
    head = "".join(f"@attribute a{j} numeric\n" for j in range(columns))
    body = "".join(",".join(str(i + j / 10) for j in range(columns)) + "\n" for i in range(rows))
    return f"@relation slump\n{head}@data\n{body}".encode()


@pytest.fixture
def slump(tmp_path, monkeypatch):
    """Writes the file of the set slump into a data folder, and its checksum where asked for."""
    monkeypatch.setenv("LATENTCAL_DATA", str(tmp_path))
    path = tmp_path / "mulan/slump.arff.gz"
    path.parent.mkdir()

    def write(content, listed=None):
        path.write_bytes(content)
        if listed is not None:
            (tmp_path / "SHA256SUMS").write_text(
                f"{hashlib.sha256(listed).hexdigest()}  mulan/slump.arff.gz\n"
            )
        return path

    return write


def test_a_good_file_loads(slump):
    content = gzip.compress(table())
    slump(content, listed=content)
    data = datasets.load("SLU")
    assert (*data.x.shape, data.y.shape[1]) == (ROWS, COLUMNS - TARGETS, TARGETS)


GOOD = gzip.compress(table())
FLIPPED = GOOD[:400] + bytes([GOOD[400] ^ 0xFF]) + GOOD[401:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (GOOD[: len(GOOD) // 2], "cannot be read, it is damaged"),
        (FLIPPED, "cannot be read, it is damaged"),
        (b"", "cannot be read, it is damaged"),
        (b"<!DOCTYPE html><title>Page not found</title>", "Not a gzipped file"),
        (gzip.compress(b"<html>Page not found</html>"), "has no line @data"),
        (b"version https://git-lfs.github.com/spec/v1", "Not a gzipped file"),
        (gzip.compress(table()[:-9]), "cannot be read, it is damaged"),
        (gzip.compress(table(rows=102)), r"are \(102, 7, 3\), expected \(103, 7, 3\)"),
        (gzip.compress(table(columns=9)), r"are \(103, 6, 3\), expected \(103, 7, 3\)"),
        (gzip.compress(table(columns=2)), "targets are the last 3 columns, but there are 2"),
        (gzip.compress(table(rows=0)), "No feature is left"),
    ],
    ids=[
        "cut",
        "flipped",
        "empty",
        "html",
        "html in gzip",
        "lfs",
        "cut row",
        "rows",
        "columns",
        "few",
        "none",
    ],
)
def test_a_damaged_or_wrong_file_is_an_error_that_names_it_and_says_why(slump, content, message):
    path = slump(content)
    with pytest.raises(ValueError, match=message) as error:
        datasets.load("slump")
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [gzip.compress(table(rows=102)), FLIPPED, b"<html>"])
def test_a_checksum_finds_every_damage_first(slump, content):
    path = slump(content, listed=GOOD)
    with pytest.raises(ValueError, match=r"damaged or another version: its SHA-256 is .* says") as error:
        datasets.load("slump")
    assert str(path) in str(error.value)


@pytest.mark.data
@pytest.mark.skipif(
    not os.environ.get("LATENTCAL_DATA"), reason="LATENTCAL_DATA names no folder with the real data"
)
@pytest.mark.parametrize("name", ["edm", "ansur2", "house"])
def test_a_real_file_with_one_column_less_is_not_the_one_meant(name, tmp_path):
    entry = datasets.find(name)
    path = tmp_path / entry.file
    path.parent.mkdir()
    real = Path(os.environ["LATENTCAL_DATA"]) / entry.file
    shutil.copyfile(real, path)
    datasets.load(name, tmp_path)
    lines = gzip.decompress(real.read_bytes()).decode().splitlines()
    if entry.file.endswith(".arff.gz"):
        first = next(i for i, line in enumerate(lines) if line.lower().startswith("@attribute"))
        del lines[first]
    cut = [line.split(",", 1)[-1] if "@" not in line and "%" not in line else line for line in lines]
    path.write_bytes(gzip.compress("\n".join(cut).encode()))
    with pytest.raises(ValueError, match=rf"is not the file that {name} stands for|cannot be read"):
        datasets.load(name, tmp_path)
