import sys
from functools import partial

import pytest
from toy_study import load, spec

from latentcal.experiments import is_trained, train_suite, trained
from latentcal.experiments.train_suite import failure_of, train, waiting


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("LATENTCAL_CACHE", str(tmp_path))
    monkeypatch.setattr(train_suite, "trained", partial(trained, load=load))


def test_a_training_is_in_the_cache_and_the_words_say_how_it_went():
    message = train(spec())
    assert message.startswith(f"{spec().key}: 5 epochs, best")
    assert is_trained(spec())


def test_a_failure_is_noted_skipped_and_tried_again_on_demand(monkeypatch):
    def damaged(name):
        raise ValueError("damaged file")

    good = train_suite.trained
    monkeypatch.setattr(train_suite, "trained", partial(trained, load=damaged))
    assert train(spec(1)).startswith("FAILED")
    assert "damaged file" in failure_of(spec(1)).read_text()
    assert waiting([spec(1)]) == []
    assert waiting([spec(1)], retry_failed=True) == [spec(1)]
    monkeypatch.setattr(train_suite, "trained", good)
    train(spec(1))
    assert not failure_of(spec(1)).exists()
    assert waiting([spec(1)], retry_failed=True) == []


def test_runs_of_one_training_are_trained_once():
    runs = [spec(0), spec(0, weights="last"), spec(1)]
    assert [own.key for own in waiting(runs)] == [spec(0).key, spec(1).key]


def test_the_command_does_all_suites_of_a_seed_before_the_next(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(train_suite, "run_all", lambda specs, task, **options: done.extend(specs))
    command = "train_suite misspecified maf --seeds 0 1 --datasets slump edm"
    monkeypatch.setattr(sys, "argv", command.split())
    train_suite.main()
    expected = [
        (seed, flow, name)
        for seed in (0, 1)
        for flow in ("convex-potential", "maf")
        for name in ("slump", "edm")
    ]
    assert [(own.seed, own.flow, own.dataset) for own in done] == expected
    assert "8 of 8" in capsys.readouterr().out
