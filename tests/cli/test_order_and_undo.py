"""On the command line: harm is refused, forced and undone, and rows in time order are split into blocks."""

import json
import re

import numpy as np
import pytest

pytest.importorskip("click")
pytest.importorskip("sklearn")

from terminal import latentcal, write_csv

from latentcal.cli.model import load_model

N = 400


def fit(data, out, *words):
    return latentcal("fit", data, "--targets", "y", "--out", out, "--flow", "linear-gaussian", *words)


def refused(answer, says):
    assert answer.code == 1
    assert says in answer.err


def table(n=N, seed=0, wide=slice(0, 0)):
    """Rows in time order; the errors of some of them are five times as wide."""
    random = np.random.default_rng(seed)
    x, size = random.normal(size=n), np.ones(n)
    size[wide] = 5.0
    y = x + size * random.normal(size=n)
    return {"when": np.arange(n).tolist(), "x": x.tolist(), "y": y.tolist()}


@pytest.fixture
def model(tmp_path):
    words = ("--drop", "when", "--recalibration", "scaled")
    answer = fit(write_csv(tmp_path / "rows.csv", table()), tmp_path / "model", *words)
    assert answer.code == 0, answer.err
    assert re.search(r"Calibration: (recalibrated on|left as trained)", answer.err)
    return tmp_path / "model"


def test_what_harms_the_last_rows_is_refused_unless_it_is_forced_and_can_be_undone(model, tmp_path):
    data = write_csv(tmp_path / "new.csv", table(200, 1, wide=slice(0, 140)))
    before = (model / "model.json").read_bytes()
    answer = latentcal("recalibrate", model, data, "--order", "time")
    assert answer.code == 0
    assert "Nothing was written: recalibration would make it worse (NLL +" in answer.out
    assert "on the last 60 rows). Use --force to recalibrate anyway." in answer.out
    assert (model / "model.json").read_bytes() == before
    result = json.loads(latentcal("recalibrate", model, data, "--order", "time", "--json").out)
    assert result["recalibrated"] is False
    forced = latentcal("recalibrate", model, data, "--order", "time", "--force")
    assert "on 200 rows" in forced.out
    assert "even though that makes it worse" in forced.out
    undone = latentcal("recalibrate", model, "--undo")
    assert undone.out.strip().endswith("now holds the model as it was trained, without recalibration.")
    assert "recalibration none" in latentcal("info", model).out
    refused(latentcal("recalibrate", model, "--undo"), "nothing to undo")


def test_a_file_or_undo_is_needed_and_not_both(model, tmp_path):
    data = write_csv(tmp_path / "new.csv", table(50, 1))
    for words in ((), (data, "--undo")):
        answer = latentcal("recalibrate", model, *words)
        assert answer.code == 2
        assert "Give either a file of new rows, or --undo without a file." in answer.err


def test_rows_are_split_in_time_by_a_column_or_by_their_order(tmp_path):
    """Outputs rise with time, and x tells nothing: what is predicted is the mean of the rows that train."""
    rows = table()
    rows["y"] = [0.1 * at + 0.01 * value for value, at in zip(rows["x"], rows["when"], strict=True)]
    mixed = np.random.default_rng(0).permutation(N)
    shuffled = {name: [values[i] for i in mixed] for name, values in rows.items()}
    words = ("--recalibration", "none", "--test-share", "0.2")
    means = []
    for name, values, more in (
        ("a", rows, ("--order", "time", "--drop", "when")),
        ("b", shuffled, ("--order", "time", "--drop", "when")),
        ("c", shuffled, ("--order", "when")),
    ):
        data = write_csv(tmp_path / f"{name}.csv", values)
        answer = fit(data, tmp_path / name, *words, *more)
        assert answer.code == 0, answer.err
        trained = load_model(tmp_path / name).estimator.base_model_
        means.append(float(trained.y_mean[0]))
    first = 0.8 * 0.85  # of the rows: without 20 % for the report and 15 % of the others for validation
    assert means[0] == pytest.approx(0.1 * first * N / 2, abs=0.1)
    assert means[2] == pytest.approx(means[0], abs=1e-6)
    assert means[1] > means[0] + 2  # control: rows in no order
    refused(fit(data, tmp_path / "d", *words, "--order", "wen"), "did you mean 'when'")
    text = write_csv(tmp_path / "t.csv", rows | {"name": ["ab", "cd"] * (N // 2)})
    refused(fit(text, tmp_path / "e", *words, "--order", "name"), "numbers or dates")
