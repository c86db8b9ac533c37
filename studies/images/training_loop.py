"""Maximum-likelihood training of a TarFlow on images, which can be interrupted and resumes exactly."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from latentcal.flows import TarFlow, TrainingWarning
from latentcal.metrics import bits_per_dim

from .pixels import image_grid, write_png
from .recipe import ImageRecipe
from .source import ImageSource, evaluation_mode, generator_for, rows_at, tensor_options
from .state import ImageTrainingLog, TrainingState

_NOISE, _VALIDATION, _SAMPLES = 1, 2, 3  # purposes of a generator; 0 is the order of the images
_EVALUATION_BATCH = 256
_GRID = 8  # images in a row or a column


def train_images(
    flow: TarFlow,
    images: Any,
    labels: Any = None,
    *,
    recipe: ImageRecipe,
    validation: tuple[Any, Any] | None = None,
    folder: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 500,
    sample_every: int | None = None,
    minutes: float | None = None,
    progress: bool = False,
    on_step: Callable[[int, ImageTrainingLog], bool | None] | None = None,
) -> ImageTrainingLog:
    """Train a flow in place on images; it ends in evaluation mode with the moving average of its weights.

    With a folder the training can be interrupted (Ctrl-C, the time budget, a crash) at any time: the same
    call again goes on from the last checkpoint, and ends with the same bits as a training that was never
    interrupted, on one machine with one number of threads. A call on a finished training only loads it.
    A step whose loss or gradient is not finite is not taken; training ends there, with a warning.

    Args:
        flow: the flow to train.
        images: (n, c, h, w) or (n, c h w) tensor in [-1, 1], or a ``Dataset`` of pairs (image, class), which
            is read as it is needed.
        labels: (n,) or (n, 1) classes; None for a flow without classes or a dataset that gives them.
        recipe: everything that decides the result.
        validation: pair (images, labels), measured with the recipe's noise at every checkpoint.
        folder: where the checkpoint and the sample grids (``samples/``) are kept; None keeps none.
        checkpoint_every: steps between checkpoints.
        sample_every: steps between grids of samples, drawn from the same latents each time; None for none.
        minutes: this call ends after so long, at the end of a step.
        progress: show a progress bar.
        on_step: called after each step with the number of steps done and the log; training ends where it
            returns True.

    Returns:
        The log of the training, from its first step on.
    """
    if checkpoint_every < 1 or (sample_every is not None and sample_every < 1):
        raise ValueError(f"Steps between events must be >= 1, got {checkpoint_every} and {sample_every}.")
    if minutes is not None and not minutes > 0:
        raise ValueError(f"minutes must be positive, got {minutes}.")
    if sample_every is not None and folder is None:
        raise ValueError("Sample grids are files: give a folder to keep them in.")
    source = ImageSource(images, labels, flow.image_shape, flow.num_classes)
    held_out = None
    if validation is not None:
        held_out = ImageSource(*validation, flow.image_shape, flow.num_classes, name="validation")
    where = None if folder is None else Path(folder).expanduser()
    state = TrainingState(flow, recipe, source.fingerprint())
    if where is not None:
        state.restore(where)
    log, before, start = state.log, state.log.seconds, time.perf_counter()
    updating = False
    flow.train()
    with tqdm(
        total=recipe.steps, initial=state.step, desc="training", unit=" steps", disable=not progress
    ) as bar:
        try:
            while True:
                log.seconds = before + time.perf_counter() - start
                last = state.step == recipe.steps
                if last or state.step % checkpoint_every == 0:
                    _measure_and_save(state, held_out, where)
                if (
                    where is not None
                    and sample_every is not None
                    and (last or state.step % sample_every == 0)
                ):
                    _draw_samples(state, where / "samples" / f"step-{state.step:08d}.png")
                if last:
                    log.stopped = f"reached steps = {recipe.steps}"
                    break
                if minutes is not None and time.perf_counter() - start > 60 * minutes:
                    log.stopped = f"reached minutes = {minutes:g} after step {state.step}"
                    break
                bpd, norm = _gradient(state, source)
                if not math.isfinite(bpd + norm):
                    log.stopped = f"diverged in step {state.step + 1}: loss {bpd:g}, gradient {norm:g}"
                    break
                updating = True
                _update(state, bpd)
                updating = False
                bar.update()
                bar.set_postfix(bpd=f"{bpd:.3f}", **_last_validation(log))
                if on_step is not None and on_step(state.step, log):
                    log.stopped = f"stopped by on_step after step {state.step}"
                    break
        except KeyboardInterrupt:
            if updating and where is not None:
                state.restore(where)  # some weights are a step ahead of the others
            log.stopped = f"interrupted after step {state.step}"
    flow.zero_grad(set_to_none=True)
    log.seconds = before + time.perf_counter() - start
    if where is not None:
        state.save(where)
    state.ema.apply()
    flow.eval()
    if log.stopped.startswith("diverged"):
        warnings.warn(
            f"Training {log.stopped}. The averaged weights so far are kept; try a lower learning rate, "
            "a longer warm-up or more noise.",
            TrainingWarning,
            stacklevel=2,
        )
    return log


def _gradient(state: TrainingState, source: ImageSource) -> tuple[float, float]:
    """Leave the clipped gradient of the next batch in the weights; its bits per dimension and the norm."""
    flow, recipe, step = state.flow, state.recipe, state.step
    size = recipe.batch_size_at(step)
    images, label = source.take(rows_at(recipe.images_before(step), size, len(source), recipe.seed))
    # All noise of the step is drawn before the batch is divided, so that micro_batch changes no draw.
    generator = generator_for(recipe.seed, _NOISE, step)
    y, x = _prepare(state, images, label, generator)
    if x is not None and recipe.drop_label:
        hidden = torch.rand(x.shape, generator=generator) < recipe.drop_label
        x = x.masked_fill(hidden.to(x.device), -1)
    state.optimizer.zero_grad(set_to_none=True)
    total, micro = 0.0, recipe.micro_batch or size
    for start in range(0, size, micro):
        part_x = None if x is None else x[start : start + micro]
        nll = _nll(flow, part_x, y[start : start + micro]).sum()
        (nll / (size * y.shape[1])).backward()
        total += float(nll.detach())
    limit = math.inf if recipe.clip is None else recipe.clip
    norm = torch.nn.utils.clip_grad_norm_(flow.parameters(), limit)
    bpd = bits_per_dim(total / size, y.shape[1]) if math.isfinite(total) else total
    return bpd, float(norm)


def _nll(flow: Any, x: Tensor | None, y: Tensor) -> Tensor:
    z, log_abs_det = flow.encode(y, x)
    if bool(torch.isnan(z).any()):
        return z.sum(-1)  # NaN as well: such a step is not taken
    return -(flow.base.given(x).log_prob(z) + log_abs_det)


def _update(state: TrainingState, bpd: float) -> None:
    for group in state.optimizer.param_groups:
        group["lr"] = state.recipe.learning_rate_at(state.step)
    state.optimizer.step()
    state.ema.update(state.recipe.ema_at(state.step))
    state.log.train_bpd.append(bpd)


def _prepare(
    state: TrainingState, images: Tensor, label: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, Tensor | None]:
    """Flat images (b, d) with the recipe's noise, and classes (b, 1), where the flow is."""
    dtype, device = tensor_options(state.flow)
    augment = state.recipe.augment
    noisy = images if augment is None else augment(images, generator)
    if noisy.shape != images.shape:
        raise ValueError(
            f"augment made {tuple(noisy.shape)} of images {tuple(images.shape)}; keep the shape."
        )
    x = None if label is None else label.to(device)
    return noisy.flatten(1).to(dtype=dtype, device=device), x


def _measure_and_save(state: TrainingState, held_out: ImageSource | None, where: Path | None) -> None:
    measured = state.log.validation_bpd
    if held_out is not None and state.step and (not measured or measured[-1][0] < state.step):
        measured.append((state.step, _validate(state, held_out)))
        state.saved_step = None
    if where is not None:
        state.save(where)


@torch.no_grad()
def _validate(state: TrainingState, source: ImageSource) -> float:
    """Bits per dimension with the averaged weights, with the same noise every time."""
    generator = generator_for(state.recipe.seed, _VALIDATION)
    total, dim = 0.0, math.prod(source.image_shape)
    with state.ema.applied(), evaluation_mode(state.flow):
        for rows in torch.arange(len(source)).split(state.recipe.micro_batch or _EVALUATION_BATCH):
            y, x = _prepare(state, *source.take(rows), generator)
            total += float(_nll(state.flow, x, y).sum())
    return bits_per_dim(total / len(source), dim)


@torch.no_grad()
def _draw_samples(state: TrainingState, path: Path) -> None:
    """Write a grid of samples of the averaged flow; with classes, one row a class."""
    if path.exists() or not state.step:
        return
    flow: TarFlow = state.flow  # type: ignore[assignment]
    rows = min(flow.num_classes, 10) or _GRID
    dtype, device = tensor_options(flow)
    z = flow.base.sample((rows * _GRID,), generator=generator_for(state.recipe.seed, _SAMPLES))
    x = torch.arange(rows).repeat_interleave(_GRID)[:, None].to(device) if flow.num_classes else None
    with state.ema.applied(), evaluation_mode(flow):
        samples = flow.decode(z.to(dtype=dtype, device=device), x).reshape(-1, *flow.image_shape)
    if bool(torch.isnan(samples).any()):
        warnings.warn(
            f"Samples after step {state.step} have NaN; no grid was written.", TrainingWarning, stacklevel=3
        )
        return
    write_png(image_grid(samples, columns=_GRID), path)


def _last_validation(log: ImageTrainingLog) -> dict[str, str]:
    return {"validation": f"{log.validation_bpd[-1][1]:.3f}"} if log.validation_bpd else {}
