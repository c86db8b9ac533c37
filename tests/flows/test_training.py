import math

import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import ConvexPotentialFlow, train_flow
from latentcal.flows.training import TrainingWarning, mean_nll


def data(n: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return lc.toy.heteroscedastic_linear().sample(n, torch.Generator().manual_seed(seed))


def small_flow(seed: int = 0) -> ConvexPotentialFlow:
    torch.manual_seed(seed)
    x, y = data(10)
    return ConvexPotentialFlow(y.shape[1], x.shape[1], hidden=5)


def weights(flow: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in flow.parameters()])


def test_training_lowers_the_validation_loss_and_keeps_the_best_weights():
    flow, validation = small_flow(), data(200, seed=1)
    before = mean_nll(flow, *validation)
    log = train_flow(flow, *data(50), validation=validation, max_epochs=40, learning_rate=0.05, patience=40)
    assert log.best_loss < before - 0.1
    assert log.validation_loss[-1] > log.best_loss + 1e-3  # control: the last epoch was not the best
    assert log.best_loss == min(log.validation_loss)
    assert mean_nll(flow, *validation) == pytest.approx(log.best_loss, rel=1e-6)
    assert not flow.training


def test_the_last_weights_stay_on_request():
    flow, validation = small_flow(), data(200, seed=1)
    log = train_flow(
        flow,
        *data(50),
        validation=validation,
        max_epochs=80,
        learning_rate=0.05,
        patience=80,
        restore_best=False,
    )
    assert log.best_epoch < 79  # control: the last epoch was not the best
    assert mean_nll(flow, *validation) == pytest.approx(log.validation_loss[-1], rel=1e-6)
    assert log.validation_loss[-1] > log.best_loss + 1e-3


def test_the_same_seed_gives_the_same_weights_to_the_last_bit():
    runs = []
    for seed in (3, 3, 4):
        flow = small_flow()
        train_flow(flow, *data(), validation=data(100, seed=1), max_epochs=3, batch_size=64, seed=seed)
        runs.append(weights(flow))
    assert same.repeated(runs[0], runs[1])
    assert same.different(runs[0], runs[2])


def test_training_stops_when_patience_runs_out():
    log = train_flow(
        small_flow(), *data(30), validation=data(100, seed=1), learning_rate=0.05, patience=4, max_epochs=500
    )
    assert len(log.train_loss) == log.best_epoch + 5
    assert log.stopped == "no better for 4 epochs"


def test_two_epochs_are_two_epochs():
    log = train_flow(small_flow(), *data(), validation=data(100, seed=1), max_epochs=2)
    assert len(log.train_loss) == len(log.validation_loss) == 2
    assert log.stopped == "reached max_epochs = 2"


class Bursting(ConvexPotentialFlow):
    """Loses its head in the third epoch."""

    def encode(self, y, x=None):
        z, log_abs_det = super().encode(y, x)
        self.calls = getattr(self, "calls", 0) + 1
        return z, log_abs_det * (math.nan if self.calls > 4 else 1.0)


def test_an_output_that_the_first_batch_lacks_is_not_taken_for_a_constant():
    """3 of 1,000 rows differ in the second output, none of them in the first batch."""
    y = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    y[:, 1] = 0.0
    y[997:, 1] = 1.0
    y = (y - y.mean(0)) / y.std(0)
    torch.manual_seed(0)
    flow = ConvexPotentialFlow(2, 0, hidden=8, layers=2)
    log = train_flow(flow, None, y, validation=(None, y), batch_size=100, max_epochs=1)
    assert log.validation_loss[0] < 5  # 50 where the scale is that of the first batch


def test_divergence_stops_names_the_epoch_and_keeps_the_best_weights():
    torch.manual_seed(0)
    x, y = data()
    flow = Bursting(y.shape[1], x.shape[1], hidden=5)
    with pytest.warns(TrainingWarning, match="diverged in epoch 3: the learning rate 0.001"):
        log = train_flow(flow, x, y, validation=data(100, seed=1))
    assert log.best_epoch == 1
    assert torch.isfinite(weights(flow)).all()


@pytest.mark.filterwarnings("ignore::latentcal.flows.training.TrainingWarning")
def test_the_likely_cause_of_a_divergence_is_looked_for():
    x, y = data()
    for outputs, cause in ((1e6 * y, "standardise it"), (y.round(), "many equal values")):
        flow = Bursting(y.shape[1], x.shape[1], hidden=5)
        flow.calls = 5
        assert cause in train_flow(flow, x, outputs, validation=(x, outputs)).stopped


class Interrupted(ConvexPotentialFlow):
    """Somebody presses Ctrl-C in the third epoch."""

    def encode(self, y, x=None):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 4:
            raise KeyboardInterrupt
        return super().encode(y, x)


def test_an_interrupt_keeps_the_best_so_far():
    x, y = data()
    flow = Interrupted(y.shape[1], x.shape[1], hidden=5)
    log = train_flow(flow, x, y, validation=(x, y))
    assert log.stopped == "interrupted in epoch 3"
    assert len(log.validation_loss) == 2


def test_a_hook_sees_every_epoch_and_can_end_training():
    seen = []

    def on_epoch(epoch, log):
        seen.append((epoch, log.validation_loss[-1]))
        return epoch == 2

    log = train_flow(small_flow(), *data(), validation=data(50, seed=1), on_epoch=on_epoch)
    assert seen == list(enumerate(log.validation_loss))
    assert log.stopped == "stopped by on_epoch in epoch 3"


def test_a_schedule_changes_the_learning_rate():
    seen = []

    def schedule(optimizer):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        step = scheduler.step
        scheduler.step = lambda: (step(), seen.append(optimizer.param_groups[0]["lr"]))
        return scheduler

    train_flow(
        small_flow(),
        *data(),
        validation=data(50, seed=1),
        max_epochs=2,
        learning_rate=1e-2,
        schedule=schedule,
    )
    assert seen == [5e-3, 2.5e-3]


def test_the_log_prints_and_plots():
    pytest.importorskip("matplotlib").use("Agg")
    log = train_flow(small_flow(), *data(), validation=data(100, seed=1), max_epochs=2)
    assert "2 epochs in" in str(log)
    ax = log.plot()
    assert ax.get_xlabel() == "Epoch"
    import matplotlib.pyplot as plt

    plt.close(ax.figure)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(3, 1), torch.zeros(4, 2), "of the training part"),
        (torch.zeros(0, 1), torch.zeros(0, 2), "of the training part"),
        (torch.zeros(3, 1), torch.tensor([[0.0, math.nan]] * 3), "y of the training part has NaN"),
    ],
)
def test_data_that_cannot_be_trained_on_are_refused(x, y, message):
    with pytest.raises(ValueError, match=message):
        train_flow(ConvexPotentialFlow(2, 1), x, y, validation=(torch.zeros(3, 1), torch.zeros(3, 2)))


def two_groups(n: int = 400) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, y and weights: y is about +2 in rows of weight 1, about -2 in those of weight 0."""
    generator = torch.Generator().manual_seed(0)
    x, own = torch.randn(n, 1, generator=generator), torch.arange(n) % 2
    return x, 4.0 * own[:, None] - 2 + 0.3 * torch.randn(n, 1, generator=generator), own.double()


@pytest.mark.parametrize("kind", ["likelihood", "own loss"])
def test_rows_count_by_their_weights_whatever_the_loss(kind):
    x, y, own = two_groups()
    found = []
    for chosen in (own, None):
        torch.manual_seed(0)
        flow = (
            ConvexPotentialFlow(1, 1, hidden=5)
            if kind == "likelihood"
            else lc.flows.FlowMatching(1, 1, hidden=16, layers=2, steps=8)
        )
        train_flow(
            flow,
            *(x, y),
            validation=(x, y, chosen),
            weights=chosen,
            max_epochs=60,
            batch_size=100,
            learning_rate=0.02,
        )
        draws = flow(x[:50]).sample((40,), torch.Generator().manual_seed(0))
        found.append(float(draws.mean()))
    assert found[0] > 1.2  # two is the mean of the rows that count
    assert abs(found[1]) < 0.8  # control: all rows count


def test_the_weighted_likelihood_is_that_of_repeated_rows():
    x, y = data(60)
    counts = torch.arange(60) % 4
    flow = small_flow()
    repeated = [part.repeat_interleave(counts, 0) for part in (x, y)]
    assert mean_nll(flow, x, y, counts.double()) == pytest.approx(mean_nll(flow, *repeated), rel=1e-5)
    assert mean_nll(flow, x, y) != pytest.approx(mean_nll(flow, *repeated), rel=1e-5)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [([1.0] * 9, "one for each point"), ([-1.0] * 50, "not negative"), ([0.0] * 50, "not all zero")],
)
def test_wrong_weights_are_refused(wrong, says):
    pair = data(50)
    with pytest.raises(ValueError, match=says):
        train_flow(small_flow(), *pair, validation=pair, weights=torch.tensor(wrong))
    with pytest.raises(ValueError, match=says):
        train_flow(small_flow(), *pair, validation=(*pair, torch.tensor(wrong)))
