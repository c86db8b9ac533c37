"""Calibration rows: reading them, at once or in batches, and the form that maps and laws use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._internal.numerics import as_tensor
from .._internal.progress_bar import ProgressBar
from .._internal.validate import as_floating, as_rows, as_weights, as_whole
from ..fingerprint import Fingerprint, warn_of_reuse
from ..flow import ConditionalFlow, FlowDistribution, as_context, evaluation_mode
from ..radius.folds import fold_numbers, sorted_order

_KEYS = 8  # columns of latents, and of features, used to distinguish rows


def visit_norms(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    batch_size: int | None,
    progress: bool,
    visit: Callable[[Tensor | None, Tensor, Tensor], None],
    jitter: Callable[[Tensor], Tensor] | None = None,
    statistic: Callable[[FlowDistribution, Tensor], Tensor] = FlowDistribution.latent_norm,
) -> None:
    """Call ``visit(x, y, norms)`` for each batch; norms are on the CPU, and of jittered y.

    ``statistic`` replaces the norm by another function of prediction and y, such as
    ``FlowDistribution.latent``.
    """
    if not isinstance(flow, ConditionalFlow):
        raise TypeError(
            f"flow must be a ConditionalFlow, got {type(flow).__name__}. The arguments are (flow, x, y); "
            "wrap a model of another library with an adapter first."
        )
    batch_size = None if batch_size is None else as_whole(batch_size, "batch_size")
    batches, total = row_batches(x if y is None else flow.read_features(x), y)
    row = 0
    with (
        torch.no_grad(),
        evaluation_mode(flow),
        ProgressBar(total=total, desc="latent norms", unit=" points", progress=progress) as bar,
    ):
        for batch_x, batch_y in batches:
            batch_x, batch_y = as_rows(flow.read_features(batch_x), batch_y, outputs=flow.base.dim, fewest=0)
            size = batch_size or max(len(batch_y), 1)
            for start in range(0, len(batch_y), size):
                part_x = None if batch_x is None else batch_x[start : start + size]
                part_y = batch_y[start : start + size]
                norms = statistic(flow(part_x), part_y if jitter is None else jitter(part_y)).cpu()
                _check_norms(norms, row)
                visit(part_x, part_y, norms)
                row += len(norms)
                bar.update(len(norms))
    if row == 0:
        raise ValueError("There are no calibration points: x and y, or the iterable, are empty.")


class Gathered(NamedTuple):
    """A statistic of all calibration rows, with their features, outputs and fingerprint."""

    values: Tensor
    """(n,) or (n, k), on the CPU."""
    x: Tensor | None
    """(n, q) features as laws and maps see them."""
    fingerprint: Fingerprint
    outputs: Outputs | None = None
    """None if they were not requested."""


def gather(
    flow: ConditionalFlow,
    x: Any,
    y: Any,
    *,
    statistic: Callable[[FlowDistribution, Tensor], Tensor],
    jitter: Callable[[Tensor], Tensor] | None,
    batch_size: int | None,
    progress: bool,
    keep_y: bool = False,
) -> Gathered:
    """The statistic of all rows; warns the caller's caller if the flow was already recalibrated on them."""
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    features: list[Tensor] = []
    summaries: list[Tensor] = []
    fingerprint = Fingerprint()
    previous = getattr(flow, "recalibration", None)
    seen: set[int] = set()

    def keep(batch_x: Tensor | None, batch_y: Tensor, value: Tensor) -> None:
        nonlocal fingerprint
        values.append(value)
        if keep_y:
            outputs.append(batch_y.cpu())
        if batch_x is not None:
            context = as_context(flow, batch_x)
            summaries.append(flow.summarize(context).cpu())  # the form the law gets in prediction
            if keep_y:
                features.append(context.cpu())
        fingerprint = fingerprint.merge(Fingerprint.of(batch_x, batch_y))
        if previous is not None:
            seen.update(previous.fingerprint.matches(batch_x, batch_y))

    visit_norms(flow, x, y, batch_size, progress, keep, jitter, statistic)
    if previous is not None:
        warn_of_reuse(
            len(seen) / max(len(previous.fingerprint.hashes), 1),
            "A second recalibration on the same rows only fits their noise more closely.",
            stacklevel=5,
        )
    return Gathered(
        torch.cat(values),
        torch.cat(summaries) if summaries else None,
        fingerprint,
        Outputs.of(torch.cat(outputs), torch.cat(features) if features else None, flow) if outputs else None,
    )


@dataclass(frozen=True)
class Outputs:
    """Outputs of calibration rows, and the flows that decode latents of these rows.

    Args:
        y: (n, d) outputs.
        x: (n, p) features of the flows, or None.
        flows: flows that encoded the rows.
        encoder: (n,) index of the flow that encoded each row.
    """

    y: Tensor
    x: Tensor | None
    flows: tuple[ConditionalFlow, ...]
    encoder: Tensor

    @classmethod
    def of(cls, y: Tensor, x: Tensor | None, flow: ConditionalFlow) -> Outputs:
        """Outputs encoded by one flow."""
        return cls(y, x, (flow,), torch.zeros(len(y), dtype=torch.long))

    def take(self, rows: Tensor) -> Outputs:
        """Some of the rows, by a mask (n,) or by their numbers."""
        x = None if self.x is None else self.x[rows]
        return Outputs(self.y[rows], x, self.flows, self.encoder[rows])

    def decode(self, z: Tensor) -> Tensor:
        """Decoded latents (s, n, d) at the features of the rows, (s, n, d) float64."""
        y = torch.empty_like(z)
        for number, flow in enumerate(self.flows):
            rows = self.encoder == number
            if bool(rows.any()):
                with evaluation_mode(flow):
                    x = None if self.x is None else self.x[rows]
                    y[:, rows] = flow(x).decode(z[:, rows]).to(y)
        return y


@dataclass(frozen=True)
class LatentRows:
    """Calibration rows in the form that maps and laws use."""

    z: Tensor
    """(n, d) float64 latents."""
    x: Tensor | None
    """(n, q) features as laws and maps see them."""
    weights: Tensor
    """(n,) weights with mean 1."""
    fingerprint: Fingerprint
    outputs: Outputs | None = None
    """The outputs that the latents were encoded from; None if they are not needed."""

    @classmethod
    def of(cls, gathered: Gathered, weights: Tensor | None, outputs: Outputs | None = None) -> LatentRows:
        """Rows with their weights; rows whose weight is, or rounds to, 0 are left out."""
        z, x, fingerprint, _ = gathered
        weight = as_weights(weights, len(z))
        if weight is None:
            return cls(z, x, torch.ones(len(z), dtype=torch.float64), fingerprint, outputs)
        weight = weight.cpu()
        kept = weight > 1e-12 * weight.max()
        return cls(z, x, weight / weight[kept].mean(), fingerprint, outputs).take(kept)

    def take(self, rows: Tensor) -> LatentRows:
        """Some of the rows, by a mask (n,) or by their numbers."""
        x = None if self.x is None else self.x[rows]
        outputs = None if self.outputs is None else self.outputs.take(rows)
        return LatentRows(self.z[rows], x, self.weights[rows], self.fingerprint, outputs)

    def folds(self, count: int, *, contiguous: bool, seed: int = 0) -> Tensor:
        """Fold of each row, (n,); see :func:`fold_numbers`."""
        return fold_numbers(self._keys(), count, contiguous=contiguous, seed=seed)

    def spread_out(self, most: int, *, contiguous: bool) -> Tensor:
        """Indices of at most ``most`` rows, equally spaced when sorted (or in their order if contiguous)."""
        n = len(self)
        count = min(n, most)
        places = torch.arange(count) * n // count
        return places if contiguous else sorted_order(self._keys())[places]

    def _keys(self) -> Tensor:
        """(n, k) values that distinguish rows."""
        columns = [self.z[:, :_KEYS]] if self.x is None else [self.z[:, :_KEYS], self.x[:, :_KEYS].double()]
        return torch.cat(columns, 1)

    def __len__(self) -> int:
        return len(self.z)


def check_order(order: str | None) -> None:
    """Raise if the order of rows is neither "time" nor None."""
    if order not in (None, "time"):
        raise ValueError(f"order must be 'time' or None, got {order!r}.")


def join_rows(x: Any, y: Any) -> tuple[Tensor | None, Tensor]:
    """All rows of the data, x (n, p) or None and y (n, d); raises if there are none."""
    pairs = [as_rows(x, y, fewest=0) for x, y in row_batches(x, y)[0]]
    if not any(len(y) for _, y in pairs):
        raise ValueError("There are no calibration points: x and y, or the iterable, are empty.")
    if len({(None if x is None else x.shape[1], y.shape[1]) for x, y in pairs}) > 1:
        raise ValueError("All batches must have the same number of features and outputs.")
    xs, ys = zip(*pairs, strict=True)
    return (None if xs[0] is None else torch.cat(xs)), as_floating(torch.cat(ys))


def row_batches(x: Any, y: Any) -> tuple[Iterable[tuple[Tensor | None, Tensor]], int | None]:
    """Pairs of tensors (x, y) from data or an iterable of batches, and the number of points if known."""
    if y is not None:
        pair = (None if x is None else as_tensor(x, "x"), as_tensor(y, "y"))
        return [pair], (len(pair[1]) if pair[1].dim() else None)
    if x is None or isinstance(x, Tensor) or hasattr(x, "__array__") or not isinstance(x, Iterable):
        raise ValueError(
            "y is missing. The arguments are (flow, x, y), or (flow, None, y) for an unconditional flow; "
            "only an iterable of batches, such as a DataLoader, is passed without y."
        )
    return map(_as_pair, x), None


def _as_pair(batch: Any) -> tuple[Tensor | None, Tensor]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return (None if batch[0] is None else as_tensor(batch[0], "x")), as_tensor(batch[1], "y")
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        return None, as_tensor(batch[0], "y")
    if isinstance(batch, Tensor) or hasattr(batch, "__array__"):
        return None, as_tensor(batch, "y")
    raise TypeError(f"A batch must be a pair (x, y), or y alone; got {type(batch).__name__}.")


def _check_norms(norms: Tensor, first_row: int) -> None:
    infinite = torch.isinf(norms) if norms.dim() == 1 else torch.isinf(norms).any(-1)
    if bool(infinite.any()):
        rows = (first_row + infinite.nonzero().reshape(-1)[:5]).tolist()
        raise ValueError(
            f"{int(infinite.sum())} of {len(norms)} latent norms are infinite (first rows: {rows}): y lies "
            "outside the flow's support, or encode overflows. Drop those rows, or clip y."
        )
