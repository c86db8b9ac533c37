"""Whatever is wrong with files and folders: one clear line, a code other than 0, nothing half-written."""

# ruff: noqa: F811 (an argument has the name of its fixture)

import errno
import os
import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("sklearn")

from terminal import TARGETS, contents, fitted, households, latentcal, model, new, write_csv  # noqa: F401 (fixtures)

# The system says it in the language of the locale.
NO_FOLDER, FULL = os.strerror(errno.ENOTDIR), os.strerror(errno.ENOSPC)
FIT = ("--targets", TARGETS, "--drop", "household", "--flow", "linear-gaussian")


def refused(answer, says, code=1):
    assert answer.code == code, answer
    assert answer.out == ""
    *before, last = answer.err.splitlines()
    assert last.startswith("Error: ")
    assert says in last
    assert "Traceback" not in answer.err
    assert not any("Error" in line for line in before)


def with_text(values, row=30, text="abc"):
    return [*values[:row], text, *values[row + 1 :]]


N = 120
BASE = households(N)
BAD_TABLES = {
    "missing target": ({"food": None}, "The columns ['food'] are missing"),
    "text in a target": ({"food": with_text(BASE["food"])}, "['food'] are text, not numbers"),
    "text in a feature": (
        {"income": with_text(BASE["income"])},
        "the column 'income' contains 'abc' among numbers",
    ),
    "NaN in a feature": (
        {"income": with_text(BASE["income"], 7, "")},
        "Leave these rows out with --missing drop, or fill the gaps with --missing impute.",
    ),
    "infinite number": ({"food": with_text(BASE["food"], 7, "inf")}, "food"),
    "constant target": ({"food": [5.0] * N}, "targets ['food'] are constant"),
    "constant features": (
        {name: [1] * N for name in ("region", "tenure", "urban", "age", "persons", "rooms", "income")},
        "No feature is left besides the targets",
    ),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_refused_by_fit(tmp_path, case):
    changed, says = BAD_TABLES[case]
    data = write_csv(tmp_path / "data.csv", households(N, **changed))
    before = contents(tmp_path)
    refused(latentcal("fit", data, *FIT, "--out", tmp_path / "new" / "model"), says)
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


FILES = {
    "one row": ("a,b,c\n1,2,3\n", "has one row of data; at least 100 are needed"),
    "few rows": (
        "a,b,c\n" + "".join(f"{i},{i * i},{-i}\n" for i in range(30)),
        "It has 30 rows; at least 100 are needed. Use more rows, or lower --min-rows 100.",
    ),
    "gaps": (
        "a,b,c\n" + "".join(f"{i},{i * i},{-i if i < 190 else ''}\n" for i in range(200)),
        "one of the columns is 'c'. Leave these rows out with --missing drop",
    ),
    "no rows": ("a,b,c\n", "no rows of data"),
    "empty file": ("", "its first line is empty"),
    "another delimiter": ("a;b;c\n1;2;3\n", "pass --delimiter ';'."),
    "ragged": ("a,b,c\n1,2,3\n1,2\n", "row 1 of the data has 2 values"),
    "web page": ("<!DOCTYPE html><p>", "it is a web page"),
    "a column twice": ("a,b,b\n1,2,3\n", "more than once"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_is_no_table_is_refused_by_fit(tmp_path, case):
    text, says = FILES[case]
    data = tmp_path / "data.csv"
    data.write_text(text)
    refused(latentcal("fit", data, "--targets", "a", "--out", tmp_path / "model"), says)
    assert os.listdir(tmp_path) == ["data.csv"]


@pytest.mark.parametrize("command", ["fit", "predict"])
def test_a_wrong_encoding_is_refused(tmp_path, model, command):
    regions = ["Köln"] * N
    data = write_csv(tmp_path / "data.csv", households(N, region=regions), encoding="latin-1")
    words = (data, *FIT, "--out", tmp_path / "model") if command == "fit" else (model, data)
    answer = latentcal(command, *words)
    refused(answer, "is not utf-8 text")
    refused(answer, "pass --encoding, for example 'latin-1'")
    refused(latentcal(command, *words, "--encoding", "latin-17"), "unknown encoding: 'latin-17'")
    assert os.listdir(tmp_path) == ["data.csv"]


NEW_ROWS = {
    "missing column": ({"income": None}, "The columns ['income'] are missing"),
    "renamed column": ({"income": None, "Income": [1.0] * 6}, "did you mean 'Income'?"),
    "text in a number column": ({"income": ["12", "12k", *"3456"]}, "'income' has '12k' in row 1"),
    "missing value": ({"age": [50, 60, "", 30, 40, 20]}, "the first is row 2 of the data"),
    "infinite number": ({"income": ["1e39", *"23456"]}, "too large for float32"),
}


@pytest.mark.parametrize("case", NEW_ROWS)
@pytest.mark.parametrize(
    "command", ["predict", "sample", "regions", "probability", "diagnose", "recalibrate"]
)
def test_bad_new_rows_are_refused_by_every_command(tmp_path, fitted, model, case, command):
    changed, says = NEW_ROWS[case]
    data = write_csv(tmp_path / "data.csv", households(6, **changed))
    old = contents(model)
    # With targets where the command wants them; a file that must stay as it was.
    answers = tmp_path / "answers.csv"
    answers.write_text("old\n")
    where = ("--where", "food > 1") if command == "probability" else ()
    out = () if command in ("diagnose", "recalibrate") else ("--out", answers)
    refused(latentcal(command, model, data, *where, *out), says)
    assert answers.read_text() == "old\n"
    assert sorted(os.listdir(tmp_path)) == ["answers.csv", "data.csv"]
    assert contents(model) == old


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "its first line is empty"), (",".join(BASE) + "\n", "has no usable rows")],
    ids=["empty", "header only"],
)
@pytest.mark.parametrize("command", ["predict", "regions", "diagnose", "recalibrate"])
def test_a_file_without_rows_is_refused(tmp_path, model, command, text, says):
    data = tmp_path / "data.csv"
    data.write_text(text)
    refused(latentcal(command, model, data), says)


def test_too_few_rows_are_refused_where_one_row_is_not_enough(tmp_path, model):
    data = write_csv(tmp_path / "data.csv", households(1))
    refused(latentcal("diagnose", model, data), "a report needs at least 20")
    refused(latentcal("recalibrate", model, data), "recalibration needs at least 20")
    assert latentcal("predict", model, data).code == 0


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path, model, new, monkeypatch):
    (tmp_path / "file").write_text("mine")
    before = contents(tmp_path)
    for target in (tmp_path / "file" / "model", tmp_path / "file" / "deeper" / "model"):
        refused(latentcal("fit", new, *FIT, "--out", target), f"Cannot write {target}: {NO_FOLDER}")
    refused(latentcal("predict", model, new, "--out", tmp_path / "file" / "a.csv"), NO_FOLDER)
    refused(latentcal("fit", new, *FIT, "--out", tmp_path / "file"), "exists and is not a folder")
    page = tmp_path / "file" / "report.html"
    refused(latentcal("fit", new, *FIT, "--out", tmp_path / "model", "--html", page), NO_FOLDER)
    refused(latentcal("predict", model, new, "--out", tmp_path), "it is a folder")
    refused(latentcal("predict", model, new, "--out", tmp_path / "a.xls"), "has no known extension")

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "/somewhere")

    monkeypatch.setattr("latentcal._internal.atomic_files._claim", denied)
    monkeypatch.setattr("latentcal.cli.output.tempfile.mkdtemp", denied)
    refused(latentcal("fit", new, *FIT, "--out", tmp_path / "model"), "Permission denied")
    refused(latentcal("recalibrate", model, new), f"Cannot write {model}: Permission denied")
    refused(latentcal("predict", model, new, "--out", tmp_path / "a.csv"), "Permission denied")
    assert contents(tmp_path) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path, model, new):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refused(latentcal("predict", model, new, "--out", closed / "a.csv"), os.strerror(errno.EACCES))
    refused(latentcal("fit", new, *FIT, "--out", closed / "model"), os.strerror(errno.EACCES))


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_full_disk_leaves_the_old_file(tmp_path, model, new, monkeypatch, name):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / name).write_text("old")
    before = contents(tmp_path)
    monkeypatch.setattr("latentcal.cli.output.os.fsync", full)
    refused(
        latentcal("predict", model, new, "--out", tmp_path / name),
        f"Cannot write {tmp_path / name}: {FULL}. Nothing was changed.",
    )
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_device_without_space_is_one_line(model, new):
    answer = latentcal("predict", model, new, "--out", "/dev/full")
    refused(answer, f"Cannot write /dev/full: {FULL}")
    shown = subprocess.run(
        f"{sys.executable} -m latentcal.cli predict {model} {new} > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert shown.returncode != 0
    assert shown.stderr.count("\n") == 1
    assert FULL in shown.stderr


@pytest.mark.slow
def test_a_disk_that_becomes_full_leaves_the_old_model(tmp_path, fitted, model):
    shutil.copytree(model, tmp_path / "model")
    data = write_csv(tmp_path / "data.csv", households(300, 2))
    before = contents(tmp_path)
    # No file may become larger than 4 kB, as if that were all that is left; SIGXFSZ is ignored by Python.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    program = "from latentcal.cli import main; import sys; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", limit + program, "recalibrate", str(tmp_path / "model"), str(data)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: ")
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(tmp_path) == before


def _truncated(folder):
    (path,) = folder.glob("numbers-*.safetensors")
    path.write_bytes(path.read_bytes()[:-10])


def _edited(folder):
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"food"', '"fool"'))


def _later(folder):
    path = folder / "model.json"
    path.write_text(re.sub(r'"schema": \d+', '"schema": 99', path.read_text()))


def _without_numbers(folder):
    (path,) = folder.glob("numbers-*.safetensors")
    path.unlink()


DAMAGES = {
    "no model": (
        lambda folder: shutil.rmtree(folder),
        "no such folder. Use `latentcal fit` to make a model",
    ),
    "no manifest": (lambda folder: (folder / "model.json").unlink(), "model.json is missing"),
    "no numbers": (_without_numbers, "is missing"),
    "truncated weights": (_truncated, "is truncated or was changed"),
    "edited": (_edited, "model.json was changed after it was saved"),
    "half a manifest": (lambda folder: (folder / "model.json").write_text("{"), "model.json is truncated"),
    "another JSON": (
        lambda folder: (folder / "model.json").write_text("[1]"),
        "was not written by latentcal",
    ),
    "later version": (_later, "has schema 99"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_model_is_refused(tmp_path, model, new, case):
    damage, says = DAMAGES[case]
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    damage(folder)
    refused(latentcal("predict", folder, new), says)
    refused(latentcal("info", folder), says)


def test_regions_of_a_model_without_calibration_name_the_option(tmp_path, fitted, new):
    words = (
        *FIT[:-1],
        "linear_gaussian",
        "--recalibration",
        "none",
        "--test-share",
        0,
        "--out",
        tmp_path / "m",
    )
    assert latentcal("fit", fitted[0] / "households.csv", *words).code == 0
    refused(latentcal("regions", tmp_path / "m", new), "or fit it with --recalibration stacked.")


def test_a_model_is_not_overwritten_by_accident(tmp_path, fitted, model):
    old = contents(model)
    data = fitted[0] / "households.csv"
    refused(latentcal("fit", data, *FIT, "--out", model), "already holds a model")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    refused(latentcal("fit", data, *FIT, "--out", tmp_path / "mine", "--overwrite"), "is not a saved model")
    refused(latentcal("recalibrate", model, data, "--out", tmp_path / "mine"), "is not a saved model")
    assert contents(model) == old


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "MODEL", "nowhere.csv"], "'nowhere.csv' does not exist"),
        (["predict", "MODEL", "NEW", "--quantiles", "0,1"], "levels must lie between 0 and 1"),
        (["predict", "MODEL", "NEW", "--quantiles", "0.0001"], "--draws 5000 or more"),
        (["predict", "MODEL", "NEW", "--delimiter", ",,"], "--delimiter must be one character"),
        (["regions", "MODEL", "NEW", "--coverage", "1.5"], "1.5 is not in the range"),
        (["probability", "MODEL", "NEW"], "Missing option '--where'"),
        (["probability", "MODEL", "NEW", "--where", "rent > 1"], "'rent' in 'rent > 1' is not a target"),
        (["fit", "NEW", "--targets", "a", "--out", "m", "--flow", "rnn"], "'rnn' is not a valid name"),
        (
            ["fit", "NEW", "--targets", "a", "--out", "m", "--flow", "linear_gausian"],
            "did you mean 'linear-gaussian'?",
        ),
        (["recalibrate", "MODEL", "NEW", "--recalibration", "staked"], "did you mean 'stacked'?"),
        (["recalibrate", "MODEL", "NEW", "--recalibration", "none"], "'none' is not a valid name"),
        (["fit", "NEW", "--targets", ",", "--out", "m"], "--targets must name at least one column"),
        (
            ["fit", "NEW", "--targets", "a", "--out", "m", "--flow-option", "hidden"],
            "expected for example hidden=64",
        ),
    ],
)
def test_a_wrong_call_has_code_2(model, new, words, says):
    words = [{"MODEL": model, "NEW": new}.get(word, word) for word in words]
    answer = latentcal(*words)
    refused(answer, says, code=2)
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "option"), [("predict", "--out"), ("diagnose", "--html"), ("diagnose", "--plot")]
)
def test_the_file_that_is_read_is_not_replaced(tmp_path, model, command, option):
    data = write_csv(tmp_path / "rows.csv", households(30, 1))
    before = data.read_bytes()
    (tmp_path / "other.csv").symlink_to(data)
    for name in ("rows.csv", "other.csv"):
        answer = latentcal(command, model, data, option, tmp_path / name)
        refused(answer, "is the input file; choose another one")
    assert data.read_bytes() == before


def test_spaces_of_a_name_are_told_as_they_are(model, new):
    refused(latentcal("probability", model, new, "--where", "'fo  od' > 1"), "'fo  od'", code=2)


def test_targets_do_not_take_the_place_of_other_answers(tmp_path):
    table = households(N)
    table["row"], table["draw"] = table.pop("food"), table.pop("housing")
    data = write_csv(tmp_path / "rows.csv", table)
    words = ("--targets", "row,draw", "--flow", "linear-gaussian", "--out", tmp_path / "model")
    assert latentcal("fit", data, *words).code == 0
    refused(latentcal("sample", tmp_path / "model", data), "['draw', 'row'] would each occur twice")


def test_columns_to_keep_are_checked(model, new):
    refused(latentcal("predict", model, new, "--keep", "hausehold"), "did you mean 'household'?")


def test_the_traceback_comes_where_asked_for(tmp_path, model):
    answer = latentcal("predict", tmp_path, __file__, "--debug")
    assert answer.code == 1
    assert "Traceback" in answer.err
