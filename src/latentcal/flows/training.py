"""Maximum-likelihood training of a flow with early stopping at the best weights."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._internal.chunks import ROWS
from .._internal.progress_bar import ProgressBar
from .._internal.validate import as_rows, as_weights, as_whole
from ..flow import ConditionalFlow, as_context, evaluation_mode, tensor_options
from ..plots import training_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INITIAL_ROWS = 1 << 16  # a small batch may miss rare values, and the scale would be wrong where they occur

_FUSED = ("cpu", "cuda")  # devices for which every supported torch has the kernel


class TrainingWarning(UserWarning):
    """Raised when training ends early for a reason that should be checked."""


@dataclass
class TrainingLog:
    """Record of a training, epoch by epoch.

    Attributes:
        train_loss: mean loss of each epoch's batches, while the weights were changing.
        validation_loss: mean negative log-likelihood on the validation part after each epoch (or the flow's
            own ``validation_loss``).
        best_epoch: index of the lowest validation loss; -1 if there was none.
        seconds: duration of training.
        stopped: why training ended.
    """

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    best_epoch: int = -1
    seconds: float = 0.0
    stopped: str = ""

    @property
    def best_loss(self) -> float:
        """Lowest validation loss; infinite if there was none."""
        known = 0 <= self.best_epoch < len(self.validation_loss)
        return self.validation_loss[self.best_epoch] if known else math.inf

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot both losses against the epoch, with the best epoch marked."""
        return training_curves(self.train_loss, self.validation_loss, self.best_epoch, ax=ax)

    def __str__(self) -> str:
        return (
            f"{len(self.train_loss)} epochs in {self.seconds:.1f} s, best validation loss "
            f"{self.best_loss:.4f} after epoch {self.best_epoch + 1}; stopped: {self.stopped}"
        )


def train_flow(
    flow: ConditionalFlow,
    x: Tensor | None,
    y: Tensor,
    *,
    validation: tuple[Tensor | None, Tensor] | tuple[Tensor | None, Tensor, Tensor | None],
    weights: Tensor | None = None,
    learning_rate: float = 1e-3,
    batch_size: int = 1024,
    max_epochs: int = 1000,
    patience: int = 30,
    clip: float | None = 10.0,
    schedule: Callable[[torch.optim.Optimizer], Any] | None = None,
    restore_best: bool = True,
    seed: int = 0,
    progress: bool = False,
    on_epoch: Callable[[int, TrainingLog], bool | None] | None = None,
) -> TrainingLog:
    """Log of training a flow in place with Adam until the validation NLL stops falling.

    The flow ends in evaluation mode with the weights of its best epoch, also after an interrupt (Ctrl-C) or
    divergence, which the log reports. On one machine, the same seed gives bit-identical weights. If a flow
    has a method ``initialize(x, y)``, it is called with at most 65,536 rows before the first step. If a flow
    has methods ``loss(x, y, generator)`` and ``validation_loss(x, y)``, these are used for training and early
    stopping instead of the mean NLL.

    Args:
        flow: the flow to train.
        x: (n, p) features, or None.
        y: (n, d) outputs.
        validation: pair (x, y), or (x, y, weights), for early stopping.
        weights: (n,) weights of the rows: in every epoch, n rows are drawn with probabilities proportional to
            them, whatever the flow's loss. None to use each row once.
        learning_rate: learning rate of Adam.
        batch_size: number of points in a step.
        max_epochs: largest number of epochs; 2 gives a deliberately poor model.
        patience: number of epochs without improvement after which training stops.
        clip: largest norm of the gradient; None for no limit.
        schedule: function that makes a learning-rate scheduler from the optimiser; stepped once per epoch.
        restore_best: whether to restore the weights of the best epoch at the end, instead of keeping the last
            ones.
        seed: seed of the order of the points.
        progress: show a progress bar.
        on_epoch: called after each epoch with its index and the log so far; training ends if it returns True.

    Returns:
        The log of the training.
    """
    x, y = as_training_rows(flow, x, y, "training")
    weights = as_weights(weights, len(y))
    held_out = _as_validation_rows(flow, *validation)
    for name, value in (("batch_size", batch_size), ("max_epochs", max_epochs), ("patience", patience)):
        as_whole(value, name)
    generator = torch.Generator(device=y.device).manual_seed(seed)
    optimizer = adam(flow.parameters(), learning_rate)
    scheduler = None if schedule is None else schedule(optimizer)
    log, best = TrainingLog(), _snapshot(flow)
    start = time.perf_counter()
    initialize = getattr(flow, "initialize", None)
    if initialize is not None:
        initialize(None if x is None else x[:_INITIAL_ROWS], y[:_INITIAL_ROWS])
    with ProgressBar(total=max_epochs, desc="training", unit=" epochs", progress=progress) as bar:
        try:
            for epoch in range(max_epochs):
                log.train_loss.append(_epoch(flow, x, y, weights, optimizer, batch_size, clip, generator))
                log.validation_loss.append(_validate(flow, *held_out))
                if not math.isfinite(log.train_loss[-1] + log.validation_loss[-1]):
                    log.stopped = f"diverged in epoch {epoch + 1}: {_likely_cause(y, learning_rate)}"
                    break
                if log.validation_loss[-1] < log.best_loss:
                    log.best_epoch, best = epoch, _snapshot(flow)
                elif epoch - log.best_epoch >= patience:
                    log.stopped = f"no better for {patience} epochs"
                    break
                if scheduler is not None:
                    scheduler.step()
                bar.update()
                bar.set_postfix(
                    train=f"{log.train_loss[-1]:.4f}",
                    validation=f"{log.validation_loss[-1]:.4f}",
                    best=f"{log.best_loss:.4f}",
                    refresh=False,
                )
                if on_epoch is not None and on_epoch(epoch, log):
                    log.stopped = f"stopped by on_epoch in epoch {epoch + 1}"
                    break
            else:
                log.stopped = f"reached max_epochs = {max_epochs}"
        except KeyboardInterrupt:
            log.stopped = f"interrupted in epoch {len(log.train_loss) + 1}"
    diverged = log.stopped.startswith("diverged")
    if restore_best or diverged:
        flow.load_state_dict(best)
    flow.eval()
    log.seconds = time.perf_counter() - start
    if diverged:
        warnings.warn(
            f"Training {log.stopped} The best weights so far are kept.", TrainingWarning, stacklevel=2
        )
    return log


@torch.no_grad()
def mean_nll(flow: ConditionalFlow, x: Tensor | None, y: Tensor, weights: Tensor | None = None) -> float:
    """Mean negative log-likelihood of y (n, d) given x, in evaluation mode and in batches."""
    with evaluation_mode(flow):
        if weights is None:
            return sum(float(_nll(flow, *part).sum()) for part in _batches(x, y, ROWS)) / len(y)
        losses = torch.cat([_nll(flow, *part) for part in _batches(x, y, ROWS)]).double()
        return float((weights.to(losses) * losses)[weights > 0].sum() / weights.sum())


@torch.no_grad()
def _validate(flow: ConditionalFlow, x: Tensor | None, y: Tensor, weights: Tensor | None) -> float:
    own = getattr(flow, "validation_loss", None)
    if own is None:
        return mean_nll(flow, x, y, weights)
    with evaluation_mode(flow):
        return float(own(x, y))


def _as_validation_rows(
    flow: ConditionalFlow, x: Any, y: Any, weights: Any = None
) -> tuple[Tensor | None, Tensor, Tensor | None]:
    """Rows and their weights; for a flow with its own loss, rows repeated according to their weights."""
    x, y = as_training_rows(flow, x, y, "validation")
    weights = as_weights(weights, len(y))
    if weights is None or not hasattr(flow, "validation_loss"):
        return x, y, None if weights is None else weights.to(y.device)
    chosen = _rows_at((torch.arange(len(y), device=y.device) + 0.5) / len(y), weights)
    return None if x is None else x[chosen], y[chosen], None


def _epoch(
    flow: ConditionalFlow,
    x: Tensor | None,
    y: Tensor,
    weights: Tensor | None,
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    clip: float | None,
    generator: torch.Generator,
) -> float:
    flow.train()
    if weights is None:
        order = torch.randperm(len(y), generator=generator, device=y.device)
    else:
        levels = torch.rand(len(y), generator=generator, device=y.device, dtype=torch.float64)
        order = _rows_at(levels, weights)
    loss_of = getattr(flow, "loss", None)
    total = torch.zeros((), device=y.device, dtype=torch.float64)
    for part_x, part_y in _batches(None if x is None else x[order], y[order], batch_size):
        loss = loss_of(part_x, part_y, generator) if loss_of else _nll(flow, part_x, part_y).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(flow.parameters(), clip)
        optimizer.step()
        total += loss.detach() * len(part_y)
    return float(total) / len(y)


def _rows_at(levels: Tensor, weights: Tensor) -> Tensor:
    """Indices of the rows at which the cumulative share of the weights (n,) reaches the levels (m,)."""
    shares = (weights / weights.sum()).cumsum(0)
    return torch.searchsorted(shares.to(levels.device), levels.double()).clamp(max=len(weights) - 1)


def _nll(flow: ConditionalFlow, x: Tensor | None, y: Tensor) -> Tensor:
    z, log_abs_det = flow.encode(y, x)
    if bool(torch.isnan(z).any()):
        return z.sum(-1)  # the training has diverged, as its log states
    return -(flow.base.given(x).log_prob(z) + log_abs_det)


def _batches(x: Tensor | None, y: Tensor, size: int) -> Iterator[tuple[Tensor | None, Tensor]]:
    for start in range(0, len(y), size):
        yield None if x is None else x[start : start + size], y[start : start + size]


def adam(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Adam:
    """Adam, fused into one kernel where supported, because its steps dominate the time of small flows."""
    parameters = list(parameters)
    fused = all(values.device.type in _FUSED and values.is_floating_point() for values in parameters)
    return torch.optim.Adam(parameters, lr=learning_rate, fused=fused or None)


def _snapshot(flow: ConditionalFlow) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in flow.state_dict().items()}


def as_training_rows(flow: ConditionalFlow, x: Any, y: Any, part: str) -> tuple[Tensor | None, Tensor]:
    """x (n, p), or None, and y (n, d) in the dtype and on the device of the flow; raises for wrong shapes."""
    x, y = as_rows(x, y, outputs=flow.base.dim, part=part)
    dtype, device = tensor_options(flow)
    return as_context(flow, x), y.to(dtype=dtype, device=device)


def _likely_cause(y: Tensor, learning_rate: float) -> str:
    largest = float(y.abs().max())
    if largest > 1e3:
        return f"y reaches {largest:.1g}; standardise it."
    if any(len(torch.unique(column)) < len(column) / 2 for column in y.T):
        return "an output has many equal values, where a density can grow without bound; add noise to it."
    return f"the learning rate {learning_rate:g} is probably too high."
