"""The search of sizes: what a cut search does again, and that its trainings are those of the study."""

import math

import pytest
import torch
from toy_study import load

from latentcal.flows import GRIDS
from latentcal.splits import split
from studies.tabular import RunSpec, size_choice, size_search, train_or_load
from studies.tabular.size_choice import chosen_sizes, path_of, read_trials
from studies.tabular.size_search import PausedTraining, search
from studies.tabular.spec import FLOWS

GRID = {"hidden": [4, 8], "layers": [2], "learning_rate": [0.05, 0.02]}


@pytest.fixture
def _small_grid(monkeypatch, tmp_path):
    monkeypatch.setattr(size_choice, "RESULTS", tmp_path)
    monkeypatch.setattr(size_search, "RUNGS", (2, 10))
    for flow in FLOWS.values():
        sizes = {name: values for name, values in GRID.items() if name in GRIDS[flow]}
        monkeypatch.setitem(GRIDS, flow, sizes)


@pytest.mark.usefixtures("_small_grid")
def test_the_chosen_combination_has_the_lowest_nll_and_is_the_training_of_the_study(tmp_path):
    trials = search("toy", "convex-potential", load=load)
    assert len(trials) == 4
    best = min(trials, key=lambda trial: trial.nll)
    sizes = chosen_sizes("toy", "convex-potential")
    assert sizes == best.sizes
    run = train_or_load(
        RunSpec("toy", "convex-potential", 0, tuple(sizes.items())), load=load, cache=tmp_path
    )
    assert (run.epoch, len(run.log.train_loss)) == (best.best_epoch, best.epochs)
    assert run.log.best_loss == pytest.approx(best.nll, abs=1e-6)
    assert best.losses[2] == pytest.approx(min(run.log.validation_loss[:2]), abs=1e-6)


@pytest.mark.usefixtures("_small_grid")
def test_a_search_that_was_cut_trains_nothing_twice_to_the_end(monkeypatch):
    advance, ends = PausedTraining.advance, []

    def cut(training, epochs):
        if epochs == math.inf and len(ends) == 2:
            raise KeyboardInterrupt
        ends.extend([0] * (epochs == math.inf))
        advance(training, epochs)

    monkeypatch.setattr(PausedTraining, "advance", cut)
    with pytest.raises(KeyboardInterrupt):
        search("toy", "convex-potential", load=load)
    assert chosen_sizes("toy", "convex-potential") is None
    kept = [trial for trial in read_trials(path_of("toy", "convex-potential")) if trial.stopped]
    monkeypatch.setattr(PausedTraining, "advance", advance)
    made = []
    start = PausedTraining.__init__
    monkeypatch.setattr(PausedTraining, "__init__", lambda *args: (made.append(1), start(*args))[1])
    trials = search("toy", "convex-potential", load=load)
    assert len(kept) == 2
    assert len(made) == 4 - len(kept)
    assert all(trial.stopped for trial in trials)
    assert chosen_sizes("toy", "convex-potential") is not None


@pytest.mark.usefixtures("_small_grid")
def test_two_epochs_are_enough_for_the_misspecified_suite():
    trials = search("toy", "convex-potential", until=2, load=load)
    assert {trial.epochs for trial in trials} == {2}
    assert chosen_sizes("toy", "convex-potential") is None
    best = min(trials, key=lambda trial: trial.losses[2])
    assert chosen_sizes("toy", "convex-potential", 2) == best.sizes


@pytest.mark.usefixtures("_small_grid")
def test_flow_matching_is_chosen_by_its_nll_not_by_the_error_of_its_velocity(monkeypatch):
    monkeypatch.setattr(size_search, "RUNGS", (2,))
    trials = search("toy", "flow-matching", load=load)
    best = min(trials, key=lambda trial: trial.nll)
    parts = split(load("toy"), 0)
    training = PausedTraining(RunSpec("toy", "flow-matching", 0, tuple(best.sizes.items())), parts)
    training.advance(math.inf)
    assert training.nll() == pytest.approx(best.nll, abs=1e-4)
    assert abs(best.nll - best.loss) > 0.1  # control: the loss is another number
    assert torch.isfinite(torch.tensor([trial.nll for trial in trials])).all()


def test_an_error_in_a_training_is_raised_and_not_waited_for():
    parts = split(load("toy"), 0)
    training = PausedTraining(RunSpec("toy", "convex-potential", 0), parts)
    training._flow.encode = None
    with pytest.raises(TypeError):
        training.advance(3)
