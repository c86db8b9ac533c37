"""Kinds of targets on the command line: declared or guessed at the fit, kept to by every answer."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("click")
pytest.importorskip("sklearn")

from terminal import latentcal, write_csv

from latentcal.cli.options import Kinds
from latentcal.cli.where import WhereError, parse_where


def shop(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    visits = rng.poisson(np.exp(0.5 + 0.4 * x))
    return {"x": x.tolist(), "price": np.exp(x + rng.normal(size=n)).tolist(), "visits": visits.tolist()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("shop")
    write_csv(place / "shop.csv", shop(400))
    write_csv(place / "new.csv", {"x": [-1.0, 0.0, 1.0]})
    answer = latentcal(
        *("fit", place / "shop.csv", "--targets", "price,visits", "--outputs", "price:positive,visits:count"),
        *("--flow", "linear-gaussian", "--test-share", "0.1", "--out", place / "model"),
    )
    assert answer.code == 0, answer.err
    assert "Outputs: price: positive" in answer.err
    assert "Guessed" not in answer.err
    return place


def column(answer, name):
    assert answer.code == 0, answer.err
    return np.array([float(row[name]) for row in answer.rows()])


def test_answers_keep_to_the_kinds_and_the_card_tells_them(folder):
    model, new = folder / "model", folder / "new.csv"
    kinds = json.loads((model / "model.json").read_text())["table"]["outputs"]
    assert {name: kind.split("(")[0] for name, kind in kinds.items()} == {
        "price": "positive",
        "visits": "count",
    }
    assert "visits count" in latentcal("info", model).out
    answer = latentcal("predict", model, new)
    assert (column(answer, "price_q0.05") > 0).all()
    for name in ("visits_q0.05", "visits_q0.95"):
        assert (column(answer, name) == column(answer, name).round()).all()
    draws = latentcal("sample", model, new, "--draws", 20)
    assert (column(draws, "visits") == column(draws, "visits").round()).all()
    bounds = latentcal("regions", model, new)
    assert (column(bounds, "visits_low") == column(bounds, "visits_low").round()).all()


def test_single_values_and_strict_bounds_have_their_probabilities(folder):
    def chance(where):
        return column(
            latentcal("probability", folder / "model", folder / "new.csv", "--where", where), "probability"
        )

    none, some, at_least = chance("visits = 0"), chance("visits > 0"), chance("visits >= 0")
    np.testing.assert_allclose(none + some, 1, atol=1e-6)
    np.testing.assert_allclose(at_least, 1, atol=1e-6)
    assert (none > 0.02).all()
    np.testing.assert_allclose(chance("visits != 0"), some, atol=1e-6)
    refused = latentcal(
        "probability", folder / "model", folder / "new.csv", "--where", "price = 1"
    )  # of which a density gives no value a probability
    assert refused.code == 2
    assert "probability 0" in refused.err


def test_recalibration_and_report_take_the_kinds(folder, tmp_path):
    model, other = folder / "model", write_csv(tmp_path / "other.csv", shop(120, seed=1))
    report = latentcal("diagnose", model, other)
    assert report.code == 0, report.err
    assert "visits: count" in report.out
    assert "have the value" not in report.out
    answer = latentcal("recalibrate", model, other, "--force", "--out", tmp_path / "again")
    assert answer.code == 0, answer.err
    wrong = write_csv(tmp_path / "wrong.csv", {**shop(120), "visits": [0.5] * 120})
    assert "is declared as count" in latentcal("recalibrate", model, wrong).err


def test_repeated_values_are_guessed_and_said(tmp_path):
    data = write_csv(tmp_path / "shop.csv", shop(300))
    words = ("fit", data, "--targets", "price,visits", "--flow", "linear-gaussian", "--test-share", "0")
    answer = latentcal(*words, "--out", tmp_path / "model")
    assert answer.code == 0, answer.err
    assert "visits: count" in answer.err
    assert "use --outputs to declare kinds" in answer.err
    real = latentcal(*words, "--outputs", "real", "--out", tmp_path / "real")
    assert "Outputs:" not in real.err
    wrong = latentcal(*words, "--outputs", "visit:count", "--out", tmp_path / "wrong")
    assert wrong.code != 0
    assert "did you mean 'visits'" in wrong.err


def test_kinds_are_read_with_the_commas_of_their_brackets():
    read = Kinds().convert
    assert read("count", None, None) == "count"
    assert read("a:interval(0, 10),b:positive + 0", None, None) == {
        "a": "interval(0, 10)",
        "b": "positive + 0",
    }
    assert read('"a,b":count', None, None) == {"a,b": "count"}


def test_conditions_on_values_of_a_grid():
    names, kinds = ["n", "r", "y"], ["rounded(0.1)", "positive + 0", "real"]
    three = 3 * 0.1  # 0.30000000000000004
    points = torch.tensor([[three, 0.0, 1.0], [0.4, 2.0, 1.0]], dtype=torch.float64)

    def inside(text):
        return parse_where(text, names, kinds).contains(points).tolist()

    assert inside("n <= 0.3") == [True, False]
    assert inside("n > 0.3") == [False, True]
    assert inside("n = 0.3") == [True, False]
    assert inside("r > 0") == [False, True]
    assert inside("r = 0") == [True, False]
    assert inside("n + r < 0.3") == [False, False]
    with pytest.raises(WhereError, match="probability 0"):
        inside("y = 1")
