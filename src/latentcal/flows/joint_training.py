"""Joint training of several flows, each without other rows, with early stopping on the held-out rows."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..flow import tensor_options
from .autoregressive import AutoregressiveFlow, AutoregressiveStack
from .training import TrainingLog, TrainingWarning, adam

_KEPT = 0.99  # decay of the averaged weights at each step; smaller at the beginning


class _Rows(NamedTuple):
    """Rows of each flow: their indices (m, k) and weights (m, k), which are 0 for padding."""

    numbers: Tensor
    share: Tensor


def train_side_by_side(
    flows: Sequence[AutoregressiveFlow],
    x: Tensor,
    y: Tensor,
    held_out: Tensor,
    *,
    weights: Tensor | None = None,
    learning_rate: float = 3e-3,
    batch_size: int = 64,
    max_epochs: int = 1000,
    patience: int = 30,
    clip: float = 10.0,
    seed: int = 0,
) -> TrainingLog:
    """Log of the joint training of flows of one transform, in place, each on the rows it does not hold out.

    All flows take their Adam steps together, which costs little more than one flow if rows are few. Weights
    are averaged over steps (exponential mean), which gains 0.02 nats and allows larger steps. All flows end
    with the weights of one common epoch, that with the smallest mean NLL of the held-out rows. This curve is
    less noisy than those of single flows, and the number of epochs depends very little on any single row, so
    the held-out rows can still be used for evaluation.

    Args:
        flows: m flows of the same sizes.
        x: (n, p) features.
        y: (n, d) outputs.
        held_out: (m, n) mask of the rows that each flow holds out.
        weights: (n,) weights of the rows: rows of an epoch are drawn with probabilities proportional to them;
            equal if None.
        learning_rate: learning rate of Adam.
        batch_size: number of rows of each flow in a step.
        max_epochs: largest number of epochs.
        patience: number of epochs without improvement after which training ends.
        clip: largest norm of a flow's gradient.
        seed: seed of the order of the rows.
    """
    dtype = tensor_options(flows[0])[0]
    x, y = x.to(dtype), y.to(dtype)
    stack = AutoregressiveStack(flows, trains=True)
    optimizer = adam(stack.parameters, learning_rate)
    generator = torch.Generator().manual_seed(seed)
    counts = torch.ones(len(y), dtype=torch.float64) if weights is None else weights
    judges = _gather(held_out, counts)
    chances = (~held_out).double() * counts
    rows = int((chances > 0).sum(1).min())
    log, best, start, steps = TrainingLog(), _copy(stack), time.perf_counter(), 0
    smooth = copy.copy(stack)
    smooth.parameters = _copy(stack)
    try:
        for epoch in range(max_epochs):
            if weights is None:  # a random order of the training rows
                order = (torch.rand(held_out.shape, generator=generator) + held_out).argsort(1)[:, :rows]
            else:
                order = torch.multinomial(chances, rows, replacement=True, generator=generator)
            total = 0.0
            for part in order.split(batch_size, 1):
                loss = _nll(stack, x[part], y[part]).mean(1)
                optimizer.zero_grad(set_to_none=True)
                loss.sum().backward()
                _clip(stack.parameters, clip)
                optimizer.step()
                steps += 1
                share = max(1 - _KEPT, 9 / (10 + steps))
                for mean, value in zip(smooth.parameters, stack.parameters, strict=True):
                    mean.lerp_(value.detach(), share)
                total += float(loss.detach().mean()) * part.shape[1]
            log.train_loss.append(total / rows)
            with torch.no_grad():
                nll = _nll(smooth, x[judges.numbers], y[judges.numbers]).double()
            log.validation_loss.append(float(((judges.share * nll).sum(1) / judges.share.sum(1)).mean()))
            if not math.isfinite(log.train_loss[-1] + log.validation_loss[-1]):
                log.stopped = f"diverged in epoch {epoch + 1}."
                break
            if log.validation_loss[-1] < log.best_loss:
                log.best_epoch, best = epoch, _copy(smooth)
            elif epoch - log.best_epoch >= patience:
                log.stopped = f"no better for {patience} epochs"
                break
        else:
            log.stopped = f"reached max_epochs = {max_epochs}"
    except KeyboardInterrupt:
        log.stopped = f"interrupted in epoch {len(log.train_loss) + 1}"
    stack.write(best)
    for flow in flows:
        flow.eval()
    log.seconds = time.perf_counter() - start
    if log.stopped.startswith("diverged"):
        warnings.warn(
            f"Training {log.stopped} The best weights so far are kept.", TrainingWarning, stacklevel=2
        )
    return log


def _nll(stack: AutoregressiveStack, x: Tensor, y: Tensor) -> Tensor:
    """NLL (m, b) of rows (m, b, p) and (m, b, d)."""
    z, log_slope = stack.at(x, own=True).every_own(y)
    return -(stack.flows[0].base.log_prob(z) + log_slope.sum(-1))


def _gather(chosen: Tensor, counts: Tensor) -> _Rows:
    """Indices of the chosen rows (m, n), padded to equal numbers for each flow."""
    most = int(chosen.sum(1).max())
    index = chosen.double().argsort(1, descending=True)[:, :most]
    return _Rows(index, chosen.gather(1, index) * counts[index])


def _clip(parameters: Sequence[Tensor], most: float) -> None:
    """Bound the norm of each flow's gradient, over parameters (m, ...)."""
    gradients = [values.grad for values in parameters if values.grad is not None]
    norm = sum(gradient.flatten(1).square().sum(1) for gradient in gradients).sqrt()  # type: ignore[union-attr]
    factor = (most / (norm + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factor.reshape(-1, *[1] * (gradient.dim() - 1)))


def _copy(stack: AutoregressiveStack) -> list[Tensor]:
    return [values.detach().clone() for values in stack.parameters]
