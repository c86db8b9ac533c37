"""Tables as they come: marks, dates, gaps, other files, weights, pipes; in fit and in what follows."""

# ruff: noqa: F811 (an argument has the name of its fixture)

import io
import json
import re
import shlex
import sys

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("sklearn")

from terminal import TARGETS, contents, fitted, households, latentcal, model, new, write_csv  # noqa: F401 (fixtures)

import same
from latentcal.cli.model import load_model

FIT = ("--targets", TARGETS, "--drop", "household", "--flow", "linear-gaussian")
N = 300


def fit(data, out, *words):
    return latentcal("fit", data, *FIT, *words, "--out", out)


def refused(answer, says, code=1):
    assert answer.code == code, answer
    assert answer.out == ""
    assert says in answer.err.splitlines()[-1]
    assert "Traceback" not in answer.err


def numbers(answer, name):
    return np.array([float(row[name]) for row in answer.rows()])


def write_european(path, table):
    """A file with semicolons, and commas in numbers."""
    lines = [";".join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(";".join(str(c).replace(".", ",") if isinstance(c, float) else str(c) for c in row))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_european_table_gives_the_model_that_the_same_table_gives_with_points(tmp_path):
    data = write_european(tmp_path / "my homes.csv", households(N))
    answer = fit(data, tmp_path / "model")
    refused(answer, "pass --delimiter ';'.")
    answer = fit(data, tmp_path / "model", "--delimiter", ";")
    refused(answer, "has numbers with a comma, such as ")
    (hint,) = re.findall(r"decimal comma with (.*?), remove", answer.err)
    european = ("--delimiter", ";", *shlex.split(hint))
    assert fit(data, tmp_path / "model", *european).code == 0
    plain = write_csv(tmp_path / "plain.csv", households(N))
    assert fit(plain, tmp_path / "plain").code == 0
    answers = [
        latentcal("predict", tmp_path / "model", data, *european),
        latentcal("predict", tmp_path / "plain", plain),
    ]
    np.testing.assert_allclose(*(numbers(answer, "food_mean") for answer in answers), rtol=1e-5)
    # The other way round, the option is named.
    refused(latentcal("predict", tmp_path / "plain", data, "--delimiter", ";"), "with --decimal ','.")
    refused(latentcal("predict", tmp_path / "plain", plain, "--decimal", ","), "are both ','", code=2)
    refused(latentcal("predict", tmp_path / "plain", plain, "--decimal", ";"), "'--decimal'", code=2)


def with_dates(n=N, zone="+02:00"):
    table = households(n)
    times = np.datetime64("2023-01-01T00:00") + 31 * np.arange(n).astype("timedelta64[h]")
    table["seen"] = [f"{time}{zone}" for time in times]
    month = 2 * np.pi * np.arange(n) * 31 / (365 * 24)
    table["food"] = [
        5000 + 4000 * float(np.sin(turn)) + value / 50
        for turn, value in zip(month, table["food"], strict=True)
    ]
    return table


def test_dates_are_features_of_fit_and_of_what_the_model_predicts(tmp_path):
    data = write_csv(tmp_path / "rows.csv", with_dates())
    answer = fit(data, tmp_path / "model")
    assert answer.code == 0, answer.err
    assert "seen (text" not in answer.err
    assert "seen (date: year, month, weekday, hour)" in latentcal("info", tmp_path / "model").out
    found = latentcal("predict", tmp_path / "model", data, "--keep", "seen")
    assert [row["seen"] for row in found.rows()] == with_dates()["seen"]
    assert found.err == ""
    food = np.array(with_dates()["food"])
    # The season is most of the variance; without the date nothing tells of it.
    assert np.corrcoef(numbers(found, "food_mean"), food)[0, 1] > 0.9
    assert fit(data, tmp_path / "blind", "--drop", "household,seen").code == 0
    blind = latentcal("predict", tmp_path / "blind", data)
    assert np.corrcoef(numbers(blind, "food_mean"), food)[0, 1] < 0.5  # control
    assert sorted(path.rpartition(".")[2] for path in contents(tmp_path / "model")) == ["json", "safetensors"]


def test_another_zone_or_no_date_in_new_rows_is_told(tmp_path):
    assert fit(write_csv(tmp_path / "rows.csv", with_dates()), tmp_path / "model").code == 0
    other = write_csv(tmp_path / "utc.csv", with_dates(20, zone="Z"))
    answer = latentcal("predict", tmp_path / "model", other)
    assert answer.err.startswith("Warning: The column 'seen' has times in the zone +00:00; ")
    wrong = write_csv(tmp_path / "wrong.csv", with_dates(20) | {"seen": ["soon"] * 20})
    refused(latentcal("predict", tmp_path / "model", wrong), "'soon' in row 0 of the data; expected a date")
    stray = with_dates()
    stray["seen"][7] = "soon"
    answer = fit(write_csv(tmp_path / "stray.csv", stray), tmp_path / "other")
    refused(
        answer,
        "the column 'seen' contains 'soon' among dates. Correct it, or leave the column out with --drop "
        "seen.",
    )


def test_zones_are_kept_in_what_is_written(tmp_path):
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("pyarrow")
    table = pandas.DataFrame(households(N))
    times = pandas.Series(pandas.date_range("2024-03-01", periods=N, freq="7h"))
    table["there"], table["here"] = times.dt.tz_localize("Europe/Brussels"), times
    table.loc[3, "here"] = None
    table.to_parquet(tmp_path / "rows.parquet")
    words = ("--drop", "household,here")
    assert fit(tmp_path / "rows.parquet", tmp_path / "model", *words).code == 0
    predict = ("predict", tmp_path / "model", tmp_path / "rows.parquet", "--keep", "there,here")
    rows = latentcal(*predict).rows()
    assert (rows[0]["there"], rows[0]["here"]) == ("2024-03-01 00:00:00+01:00", "2024-03-01T00:00:00")
    assert (rows[-1]["there"][-6:], rows[3]["here"]) == ("+02:00", "")  # summer, and nothing
    lines = [json.loads(line) for line in latentcal(*predict, "--json").out.splitlines()]
    assert (lines[3]["there"], lines[3]["here"]) == (rows[3]["there"], None)
    assert latentcal(*predict, "--out", tmp_path / "answers.parquet").code == 0
    schema = parquet.read_schema(tmp_path / "answers.parquet")
    assert schema.field("there").type.tz == "Europe/Brussels"
    written = pandas.read_parquet(tmp_path / "answers.parquet")
    assert written["there"].tolist() == table["there"].tolist()
    assert written["here"].isna().tolist() == table["here"].isna().tolist()


def gappy(n=N, seed=0):
    table = households(n, seed)
    for name, step in (("age", 9), ("tenure", 20)):
        table[name] = ["" if i % step == 4 else cell for i, cell in enumerate(table[name])]
    return table


def test_rows_that_are_left_out_are_always_counted_with_the_reason(tmp_path, model):
    data = write_csv(tmp_path / "rows.csv", gappy())
    answer = fit(data, tmp_path / "model", "--missing", "drop")
    assert answer.code == 0, answer.err
    # 33 and 15 rows, of which two miss both.
    told = "46 of 300 rows are left out because values are missing: age (33), tenure (15)."
    assert f"{data}: 300 rows, 12 features, 3 targets. {told}" in answer.err
    for command in ("predict", "regions", "diagnose"):
        answer = latentcal(command, model, data, "--missing", "drop")
        assert f"{data}: {told}" in answer.err
    whole = write_csv(tmp_path / "whole.csv", households(30))
    assert latentcal("predict", model, whole, "--missing", "drop").err == ""


def test_rows_that_miss_some_of_the_targets_train_and_those_that_miss_all_are_counted(tmp_path):
    table = households(N)
    for name, steps in (("food", (3, 60)), ("housing", (5, 60)), ("energy", (60,))):
        gaps = [any(i % step == 1 for step in steps) for i in range(N)]
        table[name] = ["" if gap else cell for gap, cell in zip(gaps, table[name], strict=True)]
    data = write_csv(tmp_path / "rows.csv", table)
    answer = fit(data, tmp_path / "model", "--recalibration", "scaled")
    assert answer.code == 0, answer.err
    # Every 60th row misses all; a third of the others food, a fifth housing.
    assert "5 rows have none of the targets and are left out." in answer.err
    some = sum((i % 3 == 1 or i % 5 == 1) and i % 60 != 1 for i in range(N))
    assert f"{some} rows miss some of the targets." in answer.err
    assert "Rows with some missing targets are used for training and calibration." in answer.err
    train = round(0.7 * 0.85 * (N - 5))
    assert abs(int(answer.err.partition("Rows: ")[2].split()[0]) - train) <= 1
    assert "rows have missing outputs" in answer.err  # which recalibrate, too
    # A single target takes the rows that have it.
    assert "food (10" in fit(data, tmp_path / "one", "--targets", "food", "--missing", "drop").err


def test_few_rows_that_miss_some_of_the_targets_are_left_out_and_all_others_held_out_once(tmp_path):
    table = households(N)
    table["food"] = ["" if i % 20 == 3 else cell for i, cell in enumerate(table["food"])]
    data = write_csv(tmp_path / "rows.csv", table)
    answer = fit(data, tmp_path / "model", "--flow", "auto", "--budget", "1e-9")
    assert answer.code == 0, answer.err
    assert f"{N // 20} rows miss some of the targets." in answer.err
    assert "Rows with missing targets are left out: they are at most 10% of all rows." in answer.err
    assert "each held out once" in answer.err.partition("Rows: ")[2].partition("\n")[0]


def test_rows_of_targets_with_atoms_are_complete_and_some_of_them_calibrate(tmp_path):
    table = households(N)
    table["food"] = ["0" if i % 2 else cell for i, cell in enumerate(table["food"])]
    table["housing"] = ["" if i % 10 == 3 else cell for i, cell in enumerate(table["housing"])]
    data = write_csv(tmp_path / "rows.csv", table)
    words = ("--flow", "auto", "--budget", "1e-9")
    answer = fit(data, tmp_path / "model", "--targets", "food,housing", *words)
    assert answer.code == 0, answer.err
    assert "30 of these rows are left out: targets with atoms need rows without missing" in answer.err
    assert "in its turn" not in answer.err.partition("Rows: ")[2].partition("\n")[0]
    assert " calibration." in answer.err


def test_gaps_are_filled_where_the_model_was_fitted_so(tmp_path, model):
    data = write_csv(tmp_path / "rows.csv", gappy())
    answer = fit(data, tmp_path / "model", "--missing", "impute")
    assert answer.code == 0, answer.err
    assert "Filled in: age (33), tenure (15)." in answer.err
    assert "Rows: 179 train, 38 validation, 38 calibration." in answer.err
    rules = load_model(tmp_path / "model").rules
    assert {"age:missing", "tenure:missing"} < {*rules.feature_names}
    assert "missing values: filled in" in latentcal("info", tmp_path / "model").out
    answer = latentcal("predict", tmp_path / "model", data)
    assert len(answer.rows()) == N
    assert answer.err == f"{data}: Filled in: age (33), tenure (15).\n"
    refused(
        latentcal("predict", tmp_path / "model", data, "--missing", "error"),
        "46 of 300 rows have missing values",
    )
    assert len(latentcal("predict", tmp_path / "model", data, "--missing", "drop").rows()) == N - 46
    refused(latentcal("predict", model, data, "--missing", "impute"), "These rules cannot fill gaps")
    refused(latentcal("predict", model, data), "Fill the gaps, or leave these rows out with --missing drop.")
    refused(fit(data, tmp_path / "other"), "--missing drop, or fill the gaps with --missing impute.")


def test_what_fills_gaps_comes_from_the_training_rows_alone(tmp_path):
    table = gappy()
    data = write_csv(tmp_path / "rows.csv", table)
    assert fit(data, tmp_path / "one", "--missing", "impute", "--test-share", "0.5").code == 0
    (age,) = [f for f in load_model(tmp_path / "one").rules.features if f.name == "age"]
    # The test rows are the first half of this order, then come validation and calibration.
    order = np.random.default_rng(0).permutation(N)
    train = order[150 + 2 * 22 :]
    known = [table["age"][i] for i in train if table["age"][i] != ""]
    assert age.fill == pytest.approx(np.median(known))


def test_rows_that_lack_only_the_target_are_answered(tmp_path, model):
    table = households(6, 1)
    table["food"][2], table["energy"][4] = "", "unknown"
    data = write_csv(tmp_path / "rows.csv", table)
    assert len(latentcal("predict", model, data).rows()) == 6
    table["energy"][4] = ""
    data = write_csv(tmp_path / "rows.csv", table)
    answer = latentcal("regions", model, data)
    assert answer.code == 0, answer.err
    assert [row["inside"] in ("True", "False") for row in answer.rows()] == [
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert "of 4 rows" in answer.err
    none = write_csv(tmp_path / "none.csv", households(3, 1, food=[""] * 3))
    answer = latentcal("regions", model, none)
    assert (len(answer.rows()), answer.err) == (3, "")


class Stdin:
    def __init__(self, content):
        self.buffer = io.BytesIO(content)


def test_a_dash_is_the_standard_input_and_output(monkeypatch, model, new, tmp_path):
    expected = latentcal("predict", model, new)
    monkeypatch.setattr(sys, "stdin", Stdin(new.read_bytes()))
    answer = latentcal("predict", model, "-", "--out", "-")
    assert (answer.out, answer.err) == (expected.out, "")
    monkeypatch.setattr(sys, "stdin", Stdin(b"a,b\n1,2\n"))
    refused(latentcal("predict", model, "-"), "Error: standard input cannot be read: ")
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    refused(latentcal("predict", model, "-"), "Error: standard input cannot be read: its first line is empty")
    data = write_csv(tmp_path / "rows.csv", households(N))
    monkeypatch.setattr(sys, "stdin", Stdin(data.read_bytes()))
    assert fit("-", tmp_path / "model").code == 0
    assert "standard input, 300 rows" in latentcal("info", tmp_path / "model").out


def test_a_parquet_file_may_come_through_a_pipe(monkeypatch, model, new, tmp_path):
    pandas = pytest.importorskip("pandas")
    pandas.read_csv(new).to_parquet(tmp_path / "new.parquet")
    monkeypatch.setattr(sys, "stdin", Stdin((tmp_path / "new.parquet").read_bytes()))
    assert latentcal("predict", model, "-").out == latentcal("predict", model, new).out


def test_other_files_may_validate_and_calibrate(tmp_path):
    data = write_csv(tmp_path / "rows.csv", households(N))
    later = households(150, 7)
    wide = later | {name: [3 * value for value in later[name]] for name in ("food", "housing", "energy")}
    files = {
        "--validation": write_csv(tmp_path / "validation.csv", households(60, 5)),
        "--calibration": write_csv(tmp_path / "calibration.csv", wide),
    }
    words = [word for pair in files.items() for word in pair]
    answer = fit(data, tmp_path / "model", *words)
    assert answer.code == 0, answer.err
    assert "Rows: 255 train, 60 validation, 150 calibration." in answer.err
    assert fit(data, tmp_path / "own", "--validation", files["--validation"]).err.count("60 validation") == 1
    # Calibrated by rows that spread three times as far.
    spread = [
        numbers(answer, "food_q0.95") - numbers(answer, "food_q0.05")
        for answer in (latentcal("predict", tmp_path / name, data) for name in ("model", "own"))
    ]
    assert (spread[0] > 1.5 * spread[1]).all()
    refused(fit(data, tmp_path / "m", "--calibration", tmp_path / "no.csv"), "does not exist", code=2)
    words = ("--recalibration", "none", "--calibration", files["--calibration"])
    refused(
        fit(data, tmp_path / "m", *words),
        "--calibration cannot be combined with --recalibration none",
        code=2,
    )
    less = write_csv(tmp_path / "less.csv", households(60, 5, food=None))
    refused(fit(data, tmp_path / "m", "--validation", less), "The columns ['food'] are missing")
    assert not (tmp_path / "m").exists()


def test_rows_count_by_a_column_of_weights(tmp_path):
    table = households(N)
    odd = [i % 2 for i in range(N)]
    moved = [value + 20_000 * (1 - own) for value, own in zip(table["food"], odd, strict=True)]
    data = write_csv(tmp_path / "rows.csv", table | {"food": moved, "w": odd})
    words = ("--weights", "w", "--recalibration", "scaled")
    with_weights = fit(data, tmp_path / "model", *words)
    assert with_weights.code == 0, with_weights.err
    assert "weights:        w" in latentcal("info", tmp_path / "model").out
    assert "w" not in load_model(tmp_path / "model").rules.columns
    assert fit(data, tmp_path / "equal", "--drop", "household,w").code == 0
    means = [
        numbers(latentcal("predict", tmp_path / name, data), "food_mean").mean()
        for name in ("model", "equal")
    ]
    assert means[0] == pytest.approx(np.mean(table["food"]), rel=0.1)
    assert means[1] > means[0] + 5000  # control: all rows count
    answer = latentcal(
        "recalibrate", tmp_path / "model", data, *words, "--out", tmp_path / "again", "--force"
    )
    assert answer.code == 0, answer.err
    assert "rows.csv, weighted by w." in answer.out
    assert "which count rows equally" in answer.out
    made = load_model(tmp_path / "again").estimator.model_.recalibration
    assert made.effective_n == pytest.approx(N / 2)
    refused(fit(data, tmp_path / "m", "--weights", "x"), "The columns ['x'] are missing")
    bad = write_csv(tmp_path / "bad.csv", table | {"w": [-1] * N})
    refused(fit(bad, tmp_path / "m", "--weights", "w"), "The weights in the column 'w' must be numbers")
    refused(
        latentcal("recalibrate", tmp_path / "model", bad, "--weights", "w"),
        "bad.csv: The weights in the column 'w'",
    )


def test_what_can_be_pasted_is_quoted_for_a_shell(tmp_path):
    data = write_csv(tmp_path / "my rows.csv", households(N))
    answer = fit(data, tmp_path / "my model")
    commands = re.findall(r"`(latentcal (?:info|predict) .*?)`", answer.err)
    assert [shlex.split(command)[2] for command in commands] == [str(tmp_path / "my model")] * 2
    assert latentcal(*shlex.split(commands[0])[1:]).code == 0
    stray = households(N)
    stray["in come"] = [*stray.pop("income")[:-1], "abc"]
    answer = fit(write_csv(data, stray), tmp_path / "m")
    refused(answer, "leave the column out with --drop 'in come'.")


def test_advice_names_the_model(tmp_path, model):
    table = households(400, 9)
    wrong = write_csv(tmp_path / "w.csv", table | {"food": [4 * value for value in table["food"]]})
    answer = latentcal("diagnose", model, wrong)
    assert re.search(rf"`latentcal recalibrate {re.escape(str(model))} new.csv.*`", answer.out)
    assert "MODEL" not in answer.out


def test_copies_and_features_that_determine_a_target_warn(tmp_path):
    table = households(N)
    table = {name: [*cells, *cells[:20]] for name, cells in table.items()}
    table["food tax"] = [0.06 * value for value in table["food"]]
    answer = fit(write_csv(tmp_path / "rows.csv", table), tmp_path / "model")
    assert answer.code == 0, answer.err
    assert "Warning: 20 of 320 rows repeat another row" in answer.err
    assert "'food' is a linear function of 'food tax'" in answer.err


def test_columns_that_are_not_used_are_named_with_the_reason(tmp_path):
    answer = fit(write_csv(tmp_path / "rows.csv", households(N, const=[1] * N)), tmp_path / "model")
    assert "Not used: const (constant)." in answer.err
    refused(fit(tmp_path / "rows.csv", tmp_path / "m", "--drop", "hosehold"), "did you mean 'household'?")


def test_a_model_with_few_calibration_rows_stays_as_trained_and_says_so(tmp_path):
    data = write_csv(tmp_path / "rows.csv", households(100))
    answer = fit(data, tmp_path / "model")
    assert answer.code == 0, answer.err
    assert answer.err.count("Recalibration needs at least 20 calibration rows, got 13") == 1
    assert load_model(tmp_path / "model").estimator.model_.recalibration is None
    assert "recalibration none" in latentcal("info", tmp_path / "model").out
    assert latentcal("regions", tmp_path / "model", data, "--coverage", "0.8").code == 0
    later = write_csv(tmp_path / "later.csv", households(60, 1))
    assert latentcal("recalibrate", tmp_path / "model", later).code == 0
    assert "recalibration stacked" in latentcal("info", tmp_path / "model").out


def test_parts_are_the_same_rows_at_every_call(tmp_path):
    data = write_csv(tmp_path / "rows.csv", households(N))
    for name in ("one", "two"):
        assert fit(data, tmp_path / name).code == 0
    weights = [load_model(tmp_path / name).estimator.base_model_.flow.weight for name in ("one", "two")]
    assert same.repeated(*weights)
