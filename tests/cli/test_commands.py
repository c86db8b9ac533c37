"""The commands from a file to answers: in the user's units, under the user's names, the same as in Python."""

# ruff: noqa: F811 (an argument has the name of its fixture)

import csv
import io
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("sklearn")

import torch
from terminal import TARGETS, contents, fitted, households, latentcal, model, new, write_csv  # noqa: F401 (fixtures)

import same
from latentcal.cli import main
from latentcal.cli.model import load_model
from latentcal.cli.reading import Source, chunks, random_rows
from latentcal.estimator import FlowRegressor
from latentcal.tables import load_csv

COMMANDS = ["fit", "diagnose", "recalibrate", "predict", "sample", "regions", "probability", "info", "demo"]


def numbers(rows, name):
    return np.array([float(row[name]) for row in rows])


def assert_same_numbers(one, other):
    """The same columns with the same numbers, up to their rounding."""
    assert one.out.splitlines()[0] == other.out.splitlines()[0]
    for name in one.rows()[0]:
        np.testing.assert_allclose(numbers(one.rows(), name), numbers(other.rows(), name), rtol=1e-5)


def test_fit_reports_and_writes_a_model(fitted, model):
    _, answer = fitted
    assert "120 rows set aside" in answer.out
    assert re.search(r"^coverage 90 % +\d+\.\d % +\d+\.\d %$", answer.out, re.MULTILINE)
    assert "Rows: 476 train, 102 validation, 102 calibration." in answer.err
    card = json.loads((model / "model.json").read_text())["table"]
    assert card["preprocessing"]["targets"] == ["food", "housing", "energy"]
    assert card["rows"] == {"train": 476, "validation": 102, "calibration": 102, "test": 120}
    assert set(card["quality"]) == {"rows", "verdict", "sentence", "faults", "before", "after"}
    assert sorted(Path(name).suffix for name in contents(model)) == [".json", ".safetensors"]


def test_predictions_are_those_of_the_estimator_in_the_units_of_the_data(model, new):
    answer = latentcal("predict", model, new, "--keep", "household", "--quantiles", "0.1,0.5")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[0].split(",")[:5] == [
        "row",
        "household",
        "food_mean",
        "food_q0.1",
        "food_q0.5",
    ]
    rows = answer.rows()
    assert [row["household"] for row in rows] == [f"h1-{i}" for i in range(6)]
    assert [row["row"] for row in rows] == list("012345")
    estimator, rules = FlowRegressor.load(model), load_model(model).rules
    import pandas as pd

    x = pd.DataFrame(rules.transform(new).x.double().numpy(), columns=list(rules.feature_names))
    mean, median = estimator.predict(x), estimator.predict_quantile(x, 0.5)
    for name in rules.targets:
        np.testing.assert_allclose(numbers(rows, f"{name}_mean"), mean[name], rtol=1e-6)
        np.testing.assert_allclose(numbers(rows, f"{name}_q0.5"), median[name], rtol=1e-6)
        assert (numbers(rows, f"{name}_q0.1") < numbers(rows, f"{name}_q0.5")).all()
    assert 2_000 < mean["food"].mean() < 10_000


def test_columns_may_come_in_any_order_with_others_between(model, new, tmp_path):
    table = households(6, 1, food=None, housing=None, energy=None)
    other = write_csv(tmp_path / "other.csv", {"note": list("abcdef"), **dict(reversed(table.items()))})
    answers = [latentcal("predict", model, place) for place in (other, new)]
    assert_same_numbers(*answers)


def test_parquet_and_json_say_the_same_as_csv(model, new, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(new).to_parquet(tmp_path / "new.parquet")
    expected = latentcal("predict", model, new).rows()
    out = tmp_path / "answers.parquet"
    answer = latentcal("predict", model, tmp_path / "new.parquet", "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["rows"] == 6
    written = pandas.read_parquet(out)
    lines = [json.loads(line) for line in latentcal("predict", model, new, "--json").out.splitlines()]
    for name in expected[0]:
        np.testing.assert_allclose(written[name], numbers(expected, name), rtol=1e-6)
        np.testing.assert_allclose([line[name] for line in lines], numbers(expected, name), rtol=1e-6)


def test_kept_columns_of_a_parquet_file_may_miss_values_anywhere(model, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    n, early = 2200, 2100  # more than are read at a time
    table = pandas.DataFrame(households(n, 1))
    table["text late"] = [None] * early + ["a"] * (n - early)
    table["number late"] = [math.nan] * early + [1.5] * (n - early)
    table["number early"] = pandas.array([7] * early + [None] * (n - early), dtype="Int64")
    table.to_parquet(tmp_path / "rows.parquet")
    names = ["text late", "number late", "number early"]
    words = ("predict", model, tmp_path / "rows.parquet", "--draws", 16, "--keep", ",".join(names))
    out = tmp_path / "answers.parquet"
    answer = latentcal(*words, "--out", out)
    assert answer.code == 0, answer.err
    written = pandas.read_parquet(out)
    for name in names:
        assert written[name].isna().tolist() == table[name].isna().tolist()
    assert written["text late"].iloc[-1] == "a"
    assert (written["number late"].iloc[-1], written["number early"].iloc[0]) == (1.5, 7)
    rows = latentcal(*words).rows()
    assert [rows[0][name] for name in names] == ["", "", "7"]
    assert [rows[-1][name] for name in names] == ["a", "1.5", ""]


def test_unknown_categories_warn_in_one_line(model, tmp_path):
    data = write_csv(tmp_path / "a.csv", households(6, region=["Atlantis"] * 6))
    answer = latentcal("predict", model, data)
    assert answer.code == 0
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(
        "Warning: The column 'region' has categories that did not occur in the learning rows"
    )


def test_rows_that_miss_a_value_are_left_out_where_asked_for(model, tmp_path):
    data = write_csv(tmp_path / "a.csv", households(6, age=[30, "", 40, 50, "NA", 60]))
    answer = latentcal("predict", model, data, "--missing", "drop", "--keep", "household")
    assert [(row["row"], row["household"]) for row in answer.rows()] == [
        ("0", "h0-0"),
        ("2", "h0-2"),
        ("3", "h0-3"),
        ("5", "h0-5"),
    ]


def test_kept_columns_stay_beside_their_rows_from_chunk_to_chunk(model, tmp_path):
    ages = [30 if i % 3 else "" for i in range(25)]
    source = Source(write_csv(tmp_path / "a.csv", households(25, age=ages)), missing="drop")
    parts = list(chunks(source, load_model(model).rules, keep=["household"], size=4))
    assert len(parts) == 7
    rows = np.concatenate([part.head["row"] for part in parts])
    names = np.concatenate([part.head["household"] for part in parts])
    assert rows.tolist() == [i for i in range(25) if i % 3]
    assert names.tolist() == [f"h0-{i}" for i in rows]


def test_random_rows_are_those_of_the_file_without_the_forbidden_ones(model, fitted):
    rules, source = load_model(model).rules, Source(fitted[0] / "households.csv")
    whole = random_rows(source, rules, 10_000)
    assert (len(whole.x), whole.total) == (800, 800)
    part = random_rows(source, rules, 50, seed=1, without=torch.arange(700))
    assert (len(part.x), part.total) == (50, 100)
    assert int(part.rows.min()) >= 700
    assert same.copied(part.y, whole.y[part.rows])


def test_random_rows_are_not_those_that_fit_has_taken_of_the_same_file(model, fitted):
    data = fitted[0] / "households.csv"
    taken = load_csv(data, ["food"], max_rows=200, seed=0).rows
    chosen = random_rows(Source(data), load_model(model).rules, 200, seed=0).rows
    # A quarter of 200 by chance, with a standard deviation of 5.3.
    assert int(torch.isin(chosen, taken).sum()) < 90


def test_draws_belong_together_and_follow_the_seed(model, new):
    first = latentcal("sample", model, new, "--draws", "200")
    rows = first.rows()
    assert len(rows) == 6 * 200
    assert [row["draw"] for row in rows[:3]] == ["0", "1", "2"]
    assert_same_numbers(first, latentcal("sample", model, new, "--draws", "200"))
    other = latentcal("sample", model, new, "--draws", "200", "--seed", "1")
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_same_numbers(first, other)
    draws = np.stack([numbers(rows, name) for name in ("food", "housing")])
    assert np.corrcoef(draws[:, :200])[0, 1] > 0.3  # expenses share a cause
    means = numbers(latentcal("predict", model, new).rows(), "food_mean")
    spread = draws[0].reshape(6, 200).std(1) / np.sqrt(200)
    assert (np.abs(draws[0].reshape(6, 200).mean(1) - means) < 6 * spread).all()


def test_regions_hold_what_they_promise(model, tmp_path):
    data = write_csv(tmp_path / "test.csv", households(400, 5))
    answer = latentcal("regions", model, data, "--volume")
    assert answer.code == 0, answer.err
    rows = answer.rows()
    inside = np.array([row["inside"] == "True" for row in rows])
    # 102 calibration rows and 400 others: a standard deviation of 0.034.
    assert abs(inside.mean() - 0.9) < 0.15
    assert f"{inside.sum()} of 400 rows" in answer.err
    table, log_box = households(400, 5), 0.0
    for name in ("food", "housing", "energy"):
        low, high = numbers(rows, f"{name}_low"), numbers(rows, f"{name}_high")
        value = np.array(table[name])
        assert ((low <= value) & (value <= high))[inside].all()
        log_box = log_box + np.log(high - low)
    assert (numbers(rows, "log_volume") < log_box).all()
    without = latentcal("regions", model, data, "--no-inside", "--coverage", "0.5")
    assert "inside" not in without.out
    assert (numbers(without.rows(), "food_high") < numbers(rows, "food_high")).all()


def test_probabilities_are_the_shares_of_draws(model, new):
    where = "food > 4000 and housing + energy < 14000"
    rows = latentcal("probability", model, new, "--where", where, "--keep", "household").rows()
    found = numbers(rows, "probability")
    draws = latentcal("sample", model, new, "--draws", "2000").rows()
    food, housing, energy = (numbers(draws, name).reshape(6, 2000) for name in ("food", "housing", "energy"))
    share = ((food > 4000) & (housing + energy < 14000)).mean(1)
    # Six shares of 2,000 draws, beyond five deviations with probability 4e-6 at most.
    assert (np.abs(found - share) < 5 * np.sqrt(0.25 / 2000) + 4 * numbers(rows, "error")).all()
    rest = latentcal("probability", model, new, "--where", f"not ({where})").rows()
    np.testing.assert_allclose(found + numbers(rest, "probability"), 1, atol=1e-6)
    assert 0.05 < found.mean() < 0.95


def test_recalibration_replaces_the_model_and_keeps_what_lies_beside_it(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    (folder / "report.html").write_text("mine")
    other = households(300, 7)
    wide = {name: [3 * value for value in other[name]] for name in ("food", "housing", "energy")}
    data = write_csv(tmp_path / "later.csv", {**other, **wide})
    answer = latentcal("recalibrate", folder, data)
    assert answer.code == 0, answer.err
    assert " on 300 rows" in answer.out
    assert (folder / "report.html").read_text() == "mine"
    before, after = load_model(model), load_model(folder)
    assert same.copied(
        before.estimator.base_model_.flow.weight, after.estimator.base_model_.flow.weight
    )  # nothing is trained
    test = write_csv(tmp_path / "test.csv", {**households(300, 8)} | {
        name: [3 * value for value in households(300, 8)[name]] for name in wide
    })  # fmt: skip
    shares = []
    for place in (model, folder):
        rows = latentcal("regions", place, test).rows()
        shares.append(np.mean([row["inside"] == "True" for row in rows]))
    assert shares[0] < 0.5  # control: the old model does not know of the change
    assert abs(shares[1] - 0.9) < 0.1  # 300 and 300 rows: a standard deviation of 0.025
    assert after.facts["recalibrated"] == {"file": "later.csv", "rows": 300, "used": 300}
    assert "unknown" in latentcal("info", folder).out


def test_recalibration_may_write_elsewhere_and_by_another_law(model, tmp_path):
    data = write_csv(tmp_path / "later.csv", households(300, 7))
    old = contents(model)
    words = (
        "--recalibration",
        "scaled",
        "--out",
        tmp_path / "second",
        "--json",
        "--max-rows",
        "200",
        "--force",
    )
    answer = latentcal("recalibrate", model, data, *words, "--max-rows", "200")
    assert answer.code == 0, answer.err
    result = json.loads(answer.out)
    assert (result["rows"], result["used"]) == (300, 200)
    assert contents(model) == old
    card = json.loads(latentcal("info", tmp_path / "second", "--json").out)
    assert (card["recalibration"], card["rows"]["calibration"]) == ("scaled", 200)


def test_diagnose_reports_and_its_code_tells_of_faults(model, tmp_path):
    table = households(400, 9)
    wrong = write_csv(tmp_path / "w.csv", {**table, "food": [4 * value for value in table["food"]]})
    page = tmp_path / "report.html"
    answer = latentcal("diagnose", model, wrong, "--strict", "--json", "--html", page, "--max-rows", "200")
    assert answer.code == 3, answer.err
    report = json.loads(answer.out)
    assert (report["n"], report["verdict"]) == (200, "not_calibrated")
    assert (report["model_name"], report["data_name"]) == (str(model), str(wrong))
    assert [output["name"] for output in report["model"]["marginals"]] == ["food", "housing", "energy"]
    assert "Using 200 random rows of 400" in answer.err
    assert page.read_text().lstrip().lower().startswith("<!doctype html")


def test_diagnose_says_that_a_recalibration_did_harm_and_names_options_alone(model, tmp_path):
    table = households(400, 9)
    other = {name: [4 * value for value in table[name]] for name in ("food", "housing", "energy")}
    wrong, right = write_csv(tmp_path / "w.csv", {**table, **other}), write_csv(tmp_path / "r.csv", table)
    changed = tmp_path / "changed"
    assert latentcal("recalibrate", model, wrong, "--out", changed).code == 0
    answer = latentcal("diagnose", changed, right, "--strict")
    assert answer.code == 3
    head = answer.out.splitlines()[:3]
    assert head[1] == f"Model: {changed}, data: {right}"
    assert head[2].startswith("Recalibration made the model worse here (NLL +")
    assert f"undo it with `latentcal recalibrate {changed} --undo`" in head[2]
    faulty = latentcal("diagnose", model, wrong).out
    assert f"Next step: `latentcal recalibrate {model} new.csv" in faulty
    for name in ("autocalibrate", "ConditionalRadius", "model.recalibrate", "order="):
        assert name not in faulty + answer.out


def test_a_large_file_trains_on_a_part_and_calibrates_on_the_rest(tmp_path, fitted):
    out = tmp_path / "model"
    words = ("--targets", "food", "--flow", "linear-gaussian", "--max-rows", "300", "--test-share", "0")
    words = (*words, "--drop", "household,housing,energy")
    answer = latentcal("fit", fitted[0] / "households.csv", *words, "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert "Calibrating on 300 of the other 500." in answer.err
    assert json.loads(answer.out)["rows"] == {"train": 255, "validation": 45, "calibration": 300, "test": 0}
    assert load_model(out).estimator.model_.recalibration.n == 300
    assert latentcal("regions", out, fitted[0] / "households.csv").code == 0


def test_few_rows_beyond_the_limit_do_not_calibrate_alone(tmp_path, fitted):
    words = ("--targets", "food", "--flow", "linear-gaussian", "--max-rows", "790", "--test-share", "0")
    answer = latentcal("fit", fitted[0] / "households.csv", *words, "--out", tmp_path / "model", "--json")
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["rows"] == {"train": 554, "validation": 118, "calibration": 118, "test": 0}


def test_fit_tries_models_and_info_tells_which(tmp_path, fitted):
    words = ("--targets", TARGETS, "--drop", "household", "--budget", "1e-9", "--out", tmp_path / "model")
    answer = latentcal("fit", fitted[0] / "households.csv", *words)
    assert answer.code == 0, answer.err
    assert "Rows: 680 train, each held out once." in answer.err
    for text in (answer.err, latentcal("info", tmp_path / "model").out):
        assert "Models on 680 held-out rows, lower is better:" in text
        assert " -> linear regression " in text
        assert "Not all were tried: the budget of 1e-09 s was spent." in text
    assert "Training:" not in answer.err  # nothing was trained by steps
    refused = latentcal("fit", fitted[0] / "households.csv", *words, "--overwrite", "--budget", "quick")
    assert refused.code == 2
    assert "'quick' is neither one of fast, balanced, best nor a number of seconds" in refused.err


def test_info_names_columns_and_rows(model):
    out = latentcal("info", model).out
    assert "food, housing, energy" in out
    assert "region (4 values)" in out
    assert "households.csv, 800 rows" in out


def test_names_cannot_steer_the_terminal(tmp_path):
    steering = "in\x1b[2J\x1b]0;owned\x07come"
    table = households(150)
    columns = {(steering if name == "income" else name): cells for name, cells in table.items()}
    columns |= {"gone\x1b[8m": [1] * 150, "far\u202eoff": table["age"]}
    data = write_csv(tmp_path / "rows.csv", columns)
    words = ("--targets", f"food,{steering}", "--drop", "household", "--flow", "linear-gaussian")
    model = tmp_path / "model"
    answers = [
        latentcal("fit", data, *words, "--out", model),
        latentcal("info", model),
        latentcal("diagnose", model, data),
        latentcal("predict", model, data, "--keep", "un\x1b[31mknown"),
        latentcal("fit", data, "--targets", "\x1b[2J", "--out", tmp_path / "other"),
    ]
    assert [answer.code for answer in answers] == [0, 0, 0, 1, 1]
    for answer in answers:
        assert not {"\x1b", "\x07", "\u202e"} & {*answer.out, *answer.err}
    info = answers[1].out
    assert r"in\x1b[2J\x1b]0;owned\x07come" in info
    assert r"far\u202eoff" in info
    assert r"not used:       gone\x1b[8m (constant)" in info
    assert steering in json.loads(latentcal("info", model, "--json").out)["preprocessing"]["targets"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command):
    answer = latentcal(command, "--help")
    assert answer.code == 0
    assert f"latentcal {command}" in answer.out.split("Examples:")[1]
    assert command in latentcal("--help").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete(shell):
    answer = latentcal("completion", shell)
    assert answer.code == 0
    assert "_LATENTCAL_COMPLETE" in answer.out


def test_completion_knows_commands_and_options(monkeypatch):
    monkeypatch.setenv("_LATENTCAL_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "latentcal pre")
    monkeypatch.setenv("COMP_CWORD", "1")
    answer = latentcal()
    assert (answer.out, answer.code) == ("plain,predict\n", 0), answer


def test_the_demo_draws_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    answer = latentcal("demo", "--out", tmp_path / "demo", "--rows", "600")
    assert answer.code == 0, answer.err
    assert (tmp_path / "demo" / "calibration.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo" / "report.html").exists()
    commands = re.findall(r"^    latentcal (predict .*)$", answer.err, re.MULTILINE)
    assert latentcal(*commands[0].split()).code == 0


@pytest.mark.slow
def test_a_pipe_gets_plain_lines_and_pure_csv(model, new):
    program = [sys.executable, "-m", "latentcal.cli", "predict", str(model), str(new)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(list(csv.DictReader(done.stdout.splitlines()))) == 6
    assert "\r" not in done.stdout


def test_an_interrupt_has_code_130(model, new, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("latentcal.cli.reading.chunks", interrupted)
    answer = latentcal("predict", model, new)
    assert (answer.code, answer.err.lstrip()) == (130, "Error: interrupted; no partial files are left.\n")


def test_the_commands_of_the_documents_run(tmp_path, monkeypatch):
    folder = Path(__file__).parents[2] / "docs" / "how_to"
    document = "".join(
        (folder / f"{page}.md").read_text() for page in ("command_line", "command_line_predict")
    )
    lines = [shlex.split(line) for line in re.findall(r"^\$ latentcal (.*)$", document, re.MULTILINE)]
    assert [line[0] for line in lines] == [
        *("demo", "fit", "diagnose", "recalibrate", "predict", "regions", "probability", "info")
    ]
    names = {"household": "newid", "income": "inc", "housing": "house", "energy": "utili"}
    for file, rows in (("households.csv", 300), ("later.csv", 150), ("test.csv", 40), ("new.csv", 4)):
        table = {names.get(name, name): column for name, column in households(rows, rows).items()}
        write_csv(tmp_path / file, {**table, "inc.a": table["inc"]})
    monkeypatch.chdir(tmp_path)
    quick = {"fit": ("--flow", "linear-gaussian"), "recalibrate": ("--recalibration", "scaled")}
    for line in lines[1:]:
        answer = latentcal(*line, *quick.get(line[0], ()))
        assert answer.code == 0, (line, answer.err)
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "regions.csv").exists()


def test_the_commands_about_tables_run(tmp_path, monkeypatch):
    document = (Path(__file__).parents[2] / "docs" / "how_to" / "command_line_files.md").read_text()
    (block,) = re.findall(r"^```sh\n(latentcal fit .*?)^```$", document, re.DOTALL | re.MULTILINE)
    names = {"food": "rent", "rooms": "weight"}
    for seed, file in enumerate(("rents", "2023", "spring", "summer", "survey", "new")):
        table = {names.get(name, name): column for name, column in households(200, seed).items()}
        european = file in ("rents", "new")
        marks = (";", ",") if european else (",", ".")
        lines = [table, *zip(*table.values(), strict=True)]
        text = [marks[0].join(str(cell).replace(".", marks[1]) for cell in line) for line in lines]
        (tmp_path / f"{file}.csv").write_text("\n".join(text) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / "new.csv").read_bytes())))
    for line in block.splitlines():
        words = shlex.split(line.removeprefix("cat new.csv | ").partition(" > ")[0])
        quick = ("--flow", "linear-gaussian") if words[1] == "fit" else ()
        answer = latentcal(*words[1:], *quick)
        assert answer.code == 0, (line, answer.err)
    assert len(answer.rows()) == 200


def test_text_that_a_spreadsheet_would_execute_is_made_harmless(tmp_path, model, new):
    rows = list(csv.DictReader(new.read_text().splitlines()))
    notes = ["=cmd|' /C calc'!A0", "+1+1", "-1.5", "@SUM(A1)", "plain", "-", "1e-3", ""]
    data = tmp_path / "data.csv"
    with data.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], "note"])
        writer.writeheader()
        writer.writerows(row | {"note": note} for row, note in zip(rows, notes, strict=False))
    for raw in ([], ["--raw"]):
        answer = latentcal("predict", model, data, "--keep", "note", *raw)
        assert answer.code == 0, answer.err
        found = [row["note"] for row in csv.DictReader(answer.out.splitlines())]
        harmless = [f"'{note}" if note[:1] in "=+@" and note else note for note in notes[: len(found)]]
        harmless = ["'-" if note == "-" else note for note in harmless]
        assert found == (notes[: len(found)] if raw else harmless)
        assert len(found) >= 5


def test_an_empty_folder_can_be_filled(tmp_path, fitted, model, new):
    """The check that it can be written to left it not empty: the model was lost after training."""
    (tmp_path / "empty").mkdir()
    data = fitted[0] / "households.csv"
    answer = latentcal("recalibrate", model, data, "--out", tmp_path / "empty")
    assert answer.code == 0, answer.err
    assert latentcal("predict", tmp_path / "empty", new).code == 0


def test_without_click_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "click", None)
    for name in [name for name in sys.modules if name.startswith("latentcal.cli.")]:
        monkeypatch.delitem(sys.modules, name)  # so that click is asked for again
    with pytest.raises(SystemExit) as end:
        main(["fit"])
    # Python prints the text that a program ends with, and the code is then 1.
    assert end.value.code == "The command line needs click: pip install 'latentcal[cli]'."


def test_the_package_does_not_load_click():
    script = "import sys, latentcal.cli\nprint({'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
