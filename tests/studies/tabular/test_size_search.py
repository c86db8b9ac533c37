"""The search of sizes: what a cut search does again, and that its trainings are those of the study."""

import math

import pytest
import torch
from toy_study import load

from latentcal.flows import GRIDS
from latentcal.splits import split
from studies.tabular import RunSpec, size_choice, train_or_load
from studies.tabular.size_choice import Trial, chosen_sizes, full_grid, halving, path_of, read_trials, replay
from studies.tabular.size_search import PausedTraining, compare, search
from studies.tabular.spec import FLOWS

GRID = {"hidden": [4, 8], "layers": [2], "learning_rate": [0.05, 0.02]}


@pytest.fixture
def _small_grid(monkeypatch, tmp_path):
    monkeypatch.setattr(size_choice, "RESULTS", tmp_path)
    monkeypatch.setattr(size_choice, "RUNGS", (2, 10))
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
def test_a_combination_that_diverges_is_not_chosen(monkeypatch):
    monkeypatch.setitem(GRIDS, FLOWS["convex-potential"], {**GRID, "learning_rate": [1e30, 0.02]})
    trials = search("toy", "convex-potential", load=load)
    diverged = [trial for trial in trials if trial.stopped.startswith("diverged")]
    assert {trial.sizes["learning_rate"] for trial in diverged} == {1e30}
    assert {trial.nll for trial in diverged} == {None}
    assert chosen_sizes("toy", "convex-potential")["learning_rate"] == 0.02
    text = path_of("toy", "convex-potential").read_text()
    assert "Infinity" not in text
    assert "NaN" not in text
    assert read_trials(path_of("toy", "convex-potential"))[0].loss_at(100) == math.inf


@pytest.mark.usefixtures("_small_grid")
def test_two_epochs_are_enough_for_the_misspecified_suite():
    trials = search("toy", "convex-potential", until=2, load=load)
    assert {trial.epochs for trial in trials} == {2}
    assert chosen_sizes("toy", "convex-potential") is None
    best = min(trials, key=lambda trial: trial.losses[2])
    assert chosen_sizes("toy", "convex-potential", 2) == best.sizes


@pytest.mark.usefixtures("_small_grid")
def test_flow_matching_is_chosen_by_its_nll_not_by_the_error_of_its_velocity(monkeypatch):
    monkeypatch.setattr(size_choice, "RUNGS", (2,))
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


RATES = (5e-3, 1e-3, 2e-4)


def known_trials(order):
    """A full grid of nine sizes: with a rate 1/5 of another, a size takes 5 times the epochs to its NLL.

    Args:
        order: how good a size is at a rate, the lower the better.
    """
    trials = []
    for rate in RATES:
        epochs = round(100 * RATES[0] / rate)
        for hidden in range(9):
            nll = order(hidden, rate)
            losses = {rung: nll + 10 * (1 - rung / epochs) for rung in size_choice.RUNGS if rung < epochs}
            sizes = {"hidden": hidden, "learning_rate": rate}
            trials.append(Trial(sizes, losses, epochs, epochs - 61, nll, nll, "no better", float(epochs)))
    return trials


def test_halving_finds_a_slow_winner_at_less_than_half_of_the_cost():
    """All losses with the smallest rate are the highest of their epoch until the others have long ended."""
    trials = known_trials(lambda hidden, rate: abs(hidden - 3) - 0.1 * RATES.index(rate))
    full, everything = replay(trials, full_grid)
    best, seconds = replay(trials, halving)
    assert best is full
    assert best.sizes == {"hidden": 3, "learning_rate": RATES[-1]}
    assert everything == sum(trial.cpu_seconds for trial in trials)
    assert seconds == pytest.approx(9 * 100 + 6 * 500 + 3 * 2500 + 2 * (3 + 6))  # two epochs of the others
    assert seconds < 0.45 * everything


def test_halving_tries_the_smallest_rate_only_where_the_one_before_helped():
    trials = known_trials(lambda hidden, rate: abs(hidden - 3) - 0.1 * (rate == RATES[-1]))
    best, seconds = replay(trials, halving)
    assert best.sizes == {"hidden": 3, "learning_rate": RATES[0]}
    assert seconds == pytest.approx(9 * 100 + 6 * 500 + 2 * (3 + 9))


def test_halving_goes_on_to_smaller_rates_where_the_largest_diverges():
    trials = known_trials(lambda hidden, rate: abs(hidden - 3) - 0.1 * RATES.index(rate))
    for trial in trials:
        if trial.sizes["learning_rate"] == RATES[0]:
            trial.nll, trial.stopped = None, "diverged"
    best, _ = replay(trials, halving)
    assert best.sizes == {"hidden": 3, "learning_rate": RATES[-1]}


def test_halving_loses_a_size_that_is_good_with_a_small_rate_alone():
    trials = known_trials(lambda hidden, rate: hidden if rate == RATES[0] else -hidden)
    best, _ = replay(trials, halving)
    assert best.sizes["hidden"] == 5  # the last of the better two thirds with the largest rate
    assert replay(trials, full_grid)[0].sizes["hidden"] == 8


@pytest.mark.usefixtures("_small_grid")
def test_a_search_by_halving_trains_the_better_sizes_to_the_end(monkeypatch):
    monkeypatch.setitem(GRIDS, FLOWS["convex-potential"], {**GRID, "hidden": [2, 4, 8]})
    trials = search("toy", "convex-potential", keep=halving, load=load)
    ended = [trial for trial in trials if trial.stopped]
    first = sorted((t for t in trials if t.sizes["learning_rate"] == 0.05), key=lambda trial: trial.nll)
    second = {trial.sizes["hidden"] for trial in ended if trial.sizes["learning_rate"] == 0.02}
    assert len(ended) == 5
    assert second == {trial.sizes["hidden"] for trial in first[:2]}
    assert chosen_sizes("toy", "convex-potential") in [trial.sizes for trial in ended]
    assert all(2 in trial.losses for trial in trials)
    assert len(compare([RunSpec("toy", "convex-potential", 0)])) == 2  # no full grid to compare with
