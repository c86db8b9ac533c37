import pytest
import torch
from toy_study import load, spec

import same
from latentcal.flows import ConvexPotentialFlow, FlowMatching, LinearGaussianFlow, TrainingLog, train_flow
from latentcal.flows.training import mean_nll
from latentcal.splits import split
from latentcal.tables import Dataset
from studies.tabular import is_trained, train_or_load, trainings

LONG = {"sizes": (("hidden", 8), ("learning_rate", 0.05)), "max_epochs": 400}


def weights_of(run):
    return torch.cat([parameter.detach().reshape(-1) for parameter in run.flow.parameters()])


@pytest.fixture(scope="module")
def long_cache(tmp_path_factory):
    """A training that overfits and stops by itself, both choices of weights."""
    folder = tmp_path_factory.mktemp("cache")
    run = train_or_load(spec(**LONG), load=load, cache=folder)
    return folder, run, train_or_load(spec(**LONG, weights="last"), load=load, cache=folder)


def test_the_second_time_nothing_is_trained(tmp_path, monkeypatch):
    first = train_or_load(spec(), load=load, cache=tmp_path)
    monkeypatch.setattr(trainings, "train_flow", None)
    again = train_or_load(spec(), load=load, cache=tmp_path)
    assert is_trained(spec(), tmp_path)
    assert same.copied(weights_of(first), weights_of(again))
    assert again.log == first.log
    assert same.copied(again.latents.test_z, first.latents.test_z)


def test_training_is_the_same_in_every_cache_and_leaves_random_numbers_alone(tmp_path):
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    runs = [train_or_load(spec(), load=load, cache=tmp_path / name) for name in "ab"]
    assert same.repeated(weights_of(runs[0]), weights_of(runs[1]))
    assert same.drawn(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_the_best_weights_are_those_that_train_flow_restores(long_cache):
    _, run, _ = long_cache
    parts = split(load("toy"), 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flow = ConvexPotentialFlow(2, 2, hidden=8, layers=2)
        log = train_flow(
            flow,
            *parts.train,
            validation=parts.validation,
            learning_rate=0.05,
            max_epochs=400,
            patience=60,
            seed=0,
        )
    assert run.epoch == log.best_epoch
    assert len(run.log.train_loss) == len(log.train_loss)
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in flow.parameters()])
    assert same.repeated(weights_of(run), expected)
    assert mean_nll(run.flow, *parts.validation) == pytest.approx(log.best_loss, abs=1e-5)


def test_the_last_weights_are_those_after_thirty_epochs_without_a_new_best(long_cache):
    _, best, last = long_cache
    losses = best.log.validation_loss
    assert len(losses) == best.epoch + 1 + 60  # patience of the training itself
    record = min(range(last.epoch + 1), key=losses.__getitem__)
    assert last.epoch - record == 30
    assert same.different(weights_of(best), weights_of(last))
    assert mean_nll(last.flow, *last.split.validation) == pytest.approx(losses[last.epoch], abs=1e-5)


STOPS = {
    "the best epoch comes first": ([3.0, 2.0, 1.0] + [1.5] * 60, 2, 32),
    "a better epoch comes after the stop": ([1.0] + [1.5] * 40 + [0.5] + [1.5] * 60, 41, 30),
    "a new best in time puts the stop off": ([1.0] + [1.5] * 29 + [0.9] + [1.5] * 60, 30, 60),
    "the stop is the first of two": ([1.0] + [1.5] * 50 + [0.5] + [1.5] * 60, 51, 30),
}


@pytest.mark.parametrize(("losses", "best", "last"), STOPS.values(), ids=STOPS.keys())
def test_the_published_stop_is_the_first_epoch_thirty_past_the_best_so_far(losses, best, last):
    """Whether the best epoch of the longer training comes before or after it; weights are their epoch's."""
    flow = LinearGaussianFlow(None, torch.zeros(1), torch.eye(1))
    snapshots, log = trainings.Snapshots(flow), TrainingLog()
    for epoch, loss in enumerate(losses):
        if loss < log.best_loss:
            log.best_epoch = epoch
        log.train_loss.append(loss)
        log.validation_loss.append(loss)
        flow.bias.fill_(epoch)
        snapshots(epoch, log)
    snapshots.complete(log)
    assert snapshots.epoch == {"best": best, "last": last}
    assert {choice: float(state["bias"]) for choice, state in snapshots.state.items()} == snapshots.epoch


def test_a_smoothed_loss_passes_over_a_lucky_epoch_and_ends_the_training_itself(tmp_path):
    """A single low loss among noisy ones is the best epoch as published, and is none of a mean of five."""
    losses = [5.0 - epoch / 10 for epoch in range(20)] + [1.0] + [3.1 + epoch / 100 for epoch in range(60)]
    found = {}
    for smooth in (1, 5):
        flow, log = LinearGaussianFlow(None, torch.zeros(1), torch.eye(1)), TrainingLog()
        snapshots = trainings.Snapshots(flow, spec(smooth=smooth, patience=40))
        for epoch, loss in enumerate(losses):
            log.validation_loss.append(loss)
            if snapshots(epoch, log):
                break
        found[smooth] = (snapshots.epoch["best"], epoch)
    assert found[1] == (20, len(losses) - 1)  # train_flow itself would end it
    assert found[5] == (23, 63)
    run = train_or_load(spec(**{**LONG, "smooth": 5}), load=load, cache=tmp_path)
    means = torch.tensor(run.log.validation_loss).unfold(0, 5, 1).mean(1)
    assert run.epoch == int(means.argmin()) + 4
    assert len(run.log.validation_loss) == run.epoch + 1 + 60
    assert mean_nll(run.flow, *run.split.validation) == pytest.approx(
        run.log.validation_loss[run.epoch], abs=1e-5
    )


def test_where_training_ends_first_the_last_weights_are_those_of_its_end(tmp_path):
    last = train_or_load(spec(weights="last"), load=load, cache=tmp_path)
    assert last.epoch == 4
    assert last.log.stopped == "reached max_epochs = 5"


def test_a_diverged_training_keeps_its_best_weights_for_both(tmp_path):
    fields = {"sizes": (("hidden", 8), ("learning_rate", 1e30)), "max_epochs": 50}
    best, last = (
        train_or_load(spec(**fields, weights=w), load=load, cache=tmp_path) for w in ("best", "last")
    )
    assert best.log.stopped.startswith("diverged")
    assert same.copied(weights_of(best), weights_of(last))


def test_cached_latents_are_those_of_the_flow(long_cache):
    for run in long_cache[1:]:
        with torch.no_grad():
            for part, z, log_det in (
                (run.split.validation, run.latents.calibration_z, run.latents.calibration_log_det),
                (run.split.test, run.latents.test_z, run.latents.test_log_det),
            ):
                own_z, own_log_det = run.flow.encode(part.y, part.x)
                torch.testing.assert_close(own_z, z)
                torch.testing.assert_close(own_log_det, log_det)


def test_a_changed_data_set_is_noticed(tmp_path):
    train_or_load(spec(), load=load, cache=tmp_path)

    def changed(name):
        data = load(name)
        y = data.y.clone()
        y[7, 1] += 1e-3
        return Dataset(name, "", data.x, y, ("a", "b"), ("c", "d"), "none", "toy")

    with pytest.raises(ValueError, match="Remove that folder"):
        train_or_load(spec(), load=changed, cache=tmp_path)


def test_a_changed_split_is_noticed(tmp_path, monkeypatch):
    train_or_load(spec(), load=load, cache=tmp_path)
    monkeypatch.setattr(trainings, "split", lambda data, seed, shares: split(data, seed + 1, shares))
    with pytest.raises(ValueError, match="another split"):
        train_or_load(spec(), load=load, cache=tmp_path)


def test_an_entry_without_latents_of_one_choice_keeps_the_other(tmp_path, monkeypatch):
    encoded, calls = trainings._encode, []

    def failing_second(flow, parts):
        calls.append(1)
        if len(calls) == 2:
            raise ArithmeticError("too steep")
        return encoded(flow, parts)

    monkeypatch.setattr(trainings, "_encode", failing_second)
    assert train_or_load(spec(), load=load, cache=tmp_path).epoch == 4
    with pytest.raises(RuntimeError, match="too steep"):
        train_or_load(spec(weights="last"), load=load, cache=tmp_path)


def test_latents_that_are_not_finite_are_not_kept(tmp_path, monkeypatch):
    class Overflowing(trainings.Snapshots):
        def complete(self, log):
            super().complete(log)
            for state in self.state.values():
                state["last_shift"].fill_(torch.inf)

    monkeypatch.setattr(trainings, "Snapshots", Overflowing)
    with pytest.raises(RuntimeError, match="not finite"):
        train_or_load(spec(), load=load, cache=tmp_path)


def test_an_interrupt_leaves_no_entry(tmp_path, monkeypatch):
    def interrupted(*arguments, **options):
        log = train_flow(*arguments, **options)
        log.stopped = "interrupted in epoch 3"
        return log

    monkeypatch.setattr(trainings, "train_flow", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_or_load(spec(), load=load, cache=tmp_path)
    assert not is_trained(spec(), tmp_path)


def test_flow_matching_and_splines_are_trained_too(tmp_path):
    for flow in ("maf", "flow-matching"):
        run = train_or_load(
            trainings.RunSpec("toy", flow, 0, (("hidden", 8),), max_epochs=2), load=load, cache=tmp_path
        )
        assert run.latents.test_z.shape == run.split.test.y.shape
    assert isinstance(run.flow, FlowMatching)
