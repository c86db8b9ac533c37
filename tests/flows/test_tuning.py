import functools
import itertools
import math

import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import (
    GRIDS,
    AutoregressiveFlow,
    ConvexPotentialFlow,
    FlowMatching,
    mean_nll,
    train_flow,
    tune_flow,
    tuning,
)

optuna = pytest.importorskip("optuna")
pd = pytest.importorskip("pandas")

GRID = {"hidden": [2, 4], "learning_rate": [1e-2, 1e-4]}


def data(n: int = 200, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return lc.toy.heteroscedastic_linear().sample(n, torch.Generator().manual_seed(seed))


VALIDATION = data(100, seed=1)


def tune(make_flow=ConvexPotentialFlow, **options) -> lc.flows.Tuning:
    return tune_flow(
        make_flow, *data(), **({"validation": VALIDATION, "grid": GRID, "max_epochs": 4} | options)
    )


def weights(flow: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in flow.parameters()])


def with_layers(layers: int):
    return lambda dim, features, **sizes: ConvexPotentialFlow(dim, features, layers=layers, **sizes)


class Turns:
    """Makes convex potential flows, counts them, and has an accident at one of the turns.

    The flow of the check before the search is not counted.
    """

    def __init__(self, accident: BaseException | None = None, at: int = -1) -> None:
        self.made, self.accident, self.at = -1, accident, at

    def __call__(self, dim: int, features: int, **params) -> ConvexPotentialFlow:
        self.made += 1
        if self.made == self.at and self.accident is not None:
            raise self.accident
        return ConvexPotentialFlow(dim, features, **params)


def test_the_grids_are_those_of_the_paper_and_every_flow_of_them_can_be_made():
    sizes = {ConvexPotentialFlow: 27, AutoregressiveFlow: 24, FlowMatching: 18}
    assert set(GRIDS) == set(sizes)
    for make_flow, grid in GRIDS.items():
        assert math.prod(len(values) for values in grid.values()) == sizes[make_flow]
        for pick in (min, max):
            make_flow(
                2, 1, **{name: pick(values) for name, values in grid.items() if name != "learning_rate"}
            )


def test_the_flow_with_the_lowest_validation_nll_is_chosen_and_all_are_in_the_table(finished):
    tuned, _ = finished
    table = tuned.table
    assert list(table.columns) == ["hidden", "learning_rate", "nll", "epochs", "seconds", "state", "stopped"]
    assert sorted(zip(table.hidden, table.learning_rate, strict=True)) == sorted(
        itertools.product(*GRID.values())
    )
    assert table.nll.is_monotonic_increasing
    assert tuned.nll == tuned.log.best_loss == table.nll.min()
    assert mean_nll(tuned.flow, *VALIDATION) == pytest.approx(tuned.nll, rel=1e-6)
    assert tuned.params == {"hidden": table.hidden[0], "learning_rate": 1e-2}
    assert tuned.flow.hidden == tuned.params["hidden"]
    assert (table.epochs == 4).all()
    assert (table.seconds > 0).all()
    assert tuned.finished
    assert not tuned.flow.training
    assert "4 combinations: 4 complete" in str(tuned)


def test_every_training_is_the_one_that_its_seed_gives_alone():
    table = tune(seed=5).table
    for row in table.itertuples():
        torch.manual_seed(5)
        flow = ConvexPotentialFlow(2, 1, hidden=row.hidden)
        options = {"learning_rate": row.learning_rate, "max_epochs": 4, "seed": 5}
        log = train_flow(flow, *data(), validation=VALIDATION, **options)
        assert log.best_loss == pytest.approx(row.nll, rel=1e-6)


def test_the_search_leaves_randomness_and_logging_as_they_were(capfd):
    state, verbosity = torch.get_rng_state(), optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        tune()
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
    finally:
        optuna.logging.set_verbosity(verbosity)
    assert same.drawn(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")


def test_progress_is_shown_on_request(capfd, monkeypatch):
    monkeypatch.setattr("latentcal._internal.progress_bar.SECONDS_BETWEEN_LINES", 0.0)
    tune(progress=True)
    assert "4/4" in capfd.readouterr().err


def test_an_interrupted_search_keeps_what_is_done_and_goes_on_there(tmp_path):
    whole = tune(Turns(), storage=tmp_path / "whole")
    cut = tune(Turns(KeyboardInterrupt(), at=3), storage=tmp_path / "cut")
    assert not cut.finished
    assert sorted(cut.table.state) == ["complete", "complete", "not trained", "not trained"]
    assert cut.nll == pytest.approx(mean_nll(cut.flow, *VALIDATION), rel=1e-6)
    turns = Turns()
    resumed = tune(turns, storage=tmp_path / "cut")
    assert turns.made == 2 + 1  # two trained, one made for the weights of the best
    assert resumed.finished
    pd.testing.assert_frame_equal(*(each.table.drop(columns="seconds") for each in (resumed, whole)))
    assert same.repeated(weights(resumed.flow), weights(whole.flow))


class InterruptedInTraining(ConvexPotentialFlow):
    """Somebody presses Ctrl-C in the second epoch of the third training."""

    calls = 0

    def encode(self, y, x=None):
        type(self).calls += 1
        if self.calls == 2 * 4 * 2 + 3:
            raise KeyboardInterrupt
        return super().encode(y, x)


def test_an_interrupt_in_the_middle_of_a_training_does_not_count_it_as_done():
    tuned = tune(InterruptedInTraining)
    assert sorted(tuned.table.state) == ["complete", "complete", "not trained", "not trained"]


def test_an_interrupt_before_anything_is_done_stays_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        tune(Turns(KeyboardInterrupt(), at=1))


def test_a_search_that_died_goes_on_where_it_was(tmp_path):
    with pytest.raises(SystemExit):
        tune(Turns(SystemExit(), at=3), storage=tmp_path)
    turns = Turns()
    assert tune(turns, storage=tmp_path).finished
    assert turns.made == 2 + 1


def test_an_error_is_raised_as_it_is_and_the_combination_tried_again(tmp_path):
    with pytest.raises(ZeroDivisionError, match="not mine"):
        tune(Turns(ZeroDivisionError("not mine"), at=2), storage=tmp_path)
    turns = Turns()
    assert (tune(turns, storage=tmp_path).table.state == "complete").all()
    assert turns.made == 3 + 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search that is over, and its folder, which no test changes."""
    folder = tmp_path_factory.mktemp("finished")
    return tune(storage=folder), folder


def test_a_finished_search_is_read_and_not_done_again(finished, monkeypatch):
    first, folder = finished
    assert len(list(folder.glob("*.safetensors"))) == 1  # only the best weights are kept
    monkeypatch.setattr(tuning, "train_flow", None)
    again = tune(storage=folder)
    assert same.copied(weights(again.flow), weights(first.flow))
    assert again.log == first.log
    assert again.table.equals(first.table)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"hidden": [2, 5], "learning_rate": [1e-2, 1e-4]}}, r"grid .*\[2, 4\].*now.*\[2, 5\]"),
        ({"validation": data(100, seed=2)}, "other data"),
        ({"seed": 1}, "seed 0, now 1"),
        ({"max_epochs": 5}, "training .*4.*now.*5"),
        ({"make_flow": FlowMatching}, "flow ConvexPotentialFlow, now FlowMatching"),
    ],
)
def test_another_task_in_the_same_storage_is_noticed(finished, change, message):
    with pytest.raises(ValueError, match=message):
        tune(storage=finished[1], **change)


class Bursting(ConvexPotentialFlow):
    """Loses its head where it has two units."""

    def encode(self, y, x=None):
        z, log_abs_det = super().encode(y, x)
        return z, log_abs_det * (math.nan if self.hidden == 2 else 1.0)


def test_a_training_that_diverges_is_a_row_of_the_table(tmp_path):
    for _ in range(2):  # the second time from the storage
        table = tune(Bursting, storage=tmp_path).table
        assert list(table.state) == ["complete", "complete", "diverged", "diverged"]
        assert list(table.hidden) == [4, 4, 2, 2]
        assert table.stopped[3].startswith("diverged in epoch 1")


def test_a_grid_on_which_everything_diverges_raises_with_the_cause():
    with pytest.raises(
        RuntimeError, match=r"None of the 2 trainings succeeded: diverged in epoch 1: the learning rate"
    ):
        tune(Bursting, grid=GRID | {"hidden": [2]})


def test_pruned_trainings_are_shorter_and_never_chosen():
    everything = tune(max_epochs=20, batch_size=100)
    at_ten = min(everything.log.validation_loss[:10])
    pruner = optuna.pruners.ThresholdPruner(upper=at_ten + 1e-3, n_warmup_steps=10)
    tuned = tune(max_epochs=20, batch_size=100, pruner=pruner)
    assert tuned.params == everything.params
    assert tuned.nll == pytest.approx(everything.nll, rel=1e-6)
    pruned = tuned.table[tuned.table.state == "pruned"]
    assert set(tuned.table.index[tuned.table.learning_rate == 1e-4]) <= set(pruned.index)
    assert (pruned.epochs == 10).all()
    assert (pruned.stopped == "stopped by on_epoch in epoch 10").all()
    assert (pruned.nll > at_ten).all()


def test_flow_matching_is_chosen_by_its_nll_and_not_by_its_loss():
    pytest.importorskip("torchdiffeq")

    def quick(dim, features, **params):
        return FlowMatching(dim, features, steps=5, **params)

    tuned = tune(quick, grid={"hidden": [8, 16]}, max_epochs=20, batch_size=50)
    nll = mean_nll(tuned.flow, *VALIDATION)
    assert tuned.nll == pytest.approx(nll, rel=1e-6)
    assert nll < tuned.log.best_loss - 0.1  # control: the loss is another number
    pruner = optuna.pruners.ThresholdPruner(upper=(nll + tuned.log.best_loss) / 2)
    with pytest.raises(RuntimeError, match="stopped by on_epoch in epoch 10"):
        tune(quick, grid={"hidden": [8, 16]}, max_epochs=20, batch_size=50, pruner=pruner)


class Unsolvable(FlowMatching):
    """Trains, but its equation cannot be solved."""

    def encode(self, y, x=None):
        raise ArithmeticError("no step is small enough")


def test_an_equation_that_cannot_be_solved_is_no_flow_to_choose():
    with pytest.raises(RuntimeError, match="None of the 2 trainings succeeded"):
        tune(Unsolvable, grid={"hidden": [2, 4]}, max_epochs=2)


def test_a_flow_without_features_is_tuned():
    tuned = tune_flow(
        ConvexPotentialFlow,
        None,
        data()[1],
        validation=(None, VALIDATION[1]),
        grid={"hidden": [2, 3], "batch_size": [50]},
        max_epochs=2,
    )
    assert tuned.flow.features == 0
    assert tuned.params["batch_size"] == 50


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"make_flow": Turns(), "grid": None},
            ValueError,
            r"No default grid for .*Turns, only for ConvexPotentialFlow",
        ),
        ({"epochs": 3}, TypeError, r"\['epochs'\] are not accepted"),
        (
            {"learning_rate": 1e-3},
            ValueError,
            r"\['learning_rate'\] are both in the grid and in the arguments",
        ),
        ({"grid": {"hidden": []}}, ValueError, "grid's hidden must be a list"),
        ({"grid": {"hidden": [torch.tensor(3)]}}, ValueError, "grid's hidden must be a list"),
        ({"validation": (None, torch.zeros(3, 1))}, ValueError, "of the validation part"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_written(options, kind, message, tmp_path):
    with pytest.raises(kind, match=message):
        tune(**options, storage=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_missing_optuna_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ImportError, match=r"latentcal\[studies\]"):
        tune()


SMALL = {"hidden": [2], "learning_rate": [1e-2]}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (
            functools.partial(ConvexPotentialFlow, base=lc.base.standard_normal(2)),
            functools.partial(ConvexPotentialFlow, base=lc.base.student_t(2, 3.0)),
            (None, None),
        ),
        (
            lambda dim, features, **sizes: ConvexPotentialFlow(dim, features, layers=1, **sizes),
            lambda dim, features, **sizes: ConvexPotentialFlow(dim, features, layers=2, **sizes),
            ("one layer", "two layers"),
        ),
        (with_layers(1), with_layers(2), ("one layer", "two layers")),
    ],
    ids=["partial", "lambda", "closure"],
)
def test_flows_that_differ_in_their_settings_alone_are_told_apart(first, second, names, tmp_path):
    before = tune(first, grid=SMALL, storage=tmp_path, name=names[0])
    again = tune(first, grid=SMALL, storage=tmp_path, name=names[0])
    assert again.log.best_loss == before.log.best_loss
    with pytest.raises(ValueError, match="flow"):
        tune(second, grid=SMALL, storage=tmp_path, name=names[1])


def test_a_function_without_a_name_of_its_own_needs_one_where_trials_are_kept(tmp_path):
    for function in (with_layers(1), functools.partial(with_layers(1), base=None)):
        with pytest.raises(ValueError, match=r"with_layers.*<lambda> has no unique name to identify.*name="):
            tune(function, grid=SMALL, storage=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    assert tune(with_layers(1), grid=SMALL).finished  # nothing is kept, so nothing is to be told apart
