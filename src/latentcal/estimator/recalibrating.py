"""Recalibration of a fitted table model: test on held-out rows, recalibrate, undo, describe."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from .._internal.chunks import ROWS
from .._internal.hints import Argument, ArgumentError
from .._internal.names import AUTO, LAWS, find, spell, suggest
from .._internal.validate import as_weights
from ..diagnostics.remedies import Undone
from ..fingerprint import CalibrationReuseWarning, Fingerprint
from ..flow import ConditionalFlow
from ..outputs import recalibrate_incomplete
from ..radius.folds import fold_numbers
from ..recalibration import autocalibrate, latent_norms, recalibrate
from ..recalibration.cross import calibrate_out_of_fold
from ..recalibration.rows import check_order
from .harm import compare_held_out, measure_held_out_change
from .selection import out_of_fold_pairs
from .supports import Supports

_REUSE_LIMIT = 0.05
_FOLDS = 4  # folds of complete rows, if other rows have missing outputs
FEWEST_CALIBRATION = 20
"""Fewest rows for recalibration; a law fitted to fewer is mostly noise."""

Pair = tuple[Tensor, Tensor]
Weighted = tuple[Tensor, Tensor, Tensor | None]
Repair = Callable[..., ConditionalFlow]
Self = TypeVar("Self", bound="Recalibrating")


class FewCalibrationRowsWarning(UserWarning):
    """Raised when a model is not recalibrated because there are too few calibration rows."""


class RecalibrationRefused(UserWarning):
    """Raised when a recalibration is refused because it would make predictions of held-out rows worse."""


class Recalibrating:
    """A flow of a table before and after recalibration; outputs are opened, see :class:`Supports`."""

    recalibration: Any
    model_: ConditionalFlow
    base_model_: ConditionalFlow
    outputs_: Sequence[str]
    _seed: int
    """Seed of the noise within cells, of latent points and of draws."""
    _trained_on: Fingerprint
    _note: str = ""
    """Further remarks about the recalibration."""
    _undone: Undone | None = None
    """The recalibration that was undone, if any."""
    _norms: Tensor
    """Sorted latent norms (n,) of the calibration rows before recalibration; empty without such rows."""

    def _pairs(self, X: Any, y: Any) -> Pair:
        """Features (n, p) and outputs (n, d) that belong together."""
        raise NotImplementedError

    @property
    def _supports(self) -> Supports:
        return Supports(tuple(self.outputs_))

    @property
    def _output_texts(self) -> list[str] | None:
        """Names of the outputs, if they have any."""
        names = getattr(self, "output_names_", None)
        return None if names is None else [str(name) for name in names]

    def recalibrate(
        self: Self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        order: Literal["time"] | None = None,
        force: bool = False,
    ) -> Self:
        """This model, recalibrated on new rows, replacing any earlier recalibration; nothing is trained.

        Recalibration is first tested by cross-validation. If it makes predictions of held-out rows worse, the
        model is left unchanged.

        Args:
            X: (n, p) features, at least 20 rows that the flow was not trained on.
            y: (n, d) or (n,) outputs.
            sample_weight: (n,) weights of the rows, for covariate shift; equal if None. Regions and p-values
                (``predict_region``, ``anomaly_pvalue``) do not use the weights.
            order: ``"time"`` for rows in time order; then the last rows are held out for the test.
            force: recalibrate even if it makes predictions worse.

        Warns:
            RecalibrationRefused: if it would make predictions worse; ``calibration_`` then states this too.
        """
        x, y = self._pairs(X, y)
        check_order(order)
        self._supports.check(y, self._output_texts)
        if len(x) < FEWEST_CALIBRATION:
            raise ValueError(
                f"Recalibration needs at least {FEWEST_CALIBRATION} rows, got {len(x)}: a law fitted to "
                "fewer is mostly noise. Collect more."
            )
        repair = choose_repair(self.recalibration) or recalibrate
        if not self._calibrate(x, y, as_weights(sample_weight, len(x)), repair, order=order, force=force):
            warnings.warn(
                f"The model was left unchanged: {self._note}. Pass force=True to recalibrate anyway.",
                RecalibrationRefused,
                stacklevel=2,
            )
        return self

    def undo_recalibration(self: Self) -> Self:
        """Undo the recalibration: ``model_`` becomes the flow as it was trained.

        Guarantees of regions depend on the calibration rows only and are kept.
        """
        if self.model_.recalibration is not None:
            self._undone = Undone.of(self.model_.recalibration)
        self.model_, self._note = self.base_model_, "the recalibration was undone"
        return self

    @property
    def calibration_(self) -> str:
        """Description of the recalibration."""
        made, note = self.model_.recalibration, f": {self._note}" if self._note else ""
        return ("left as trained" if made is None else f"recalibrated on {made.n:,} rows") + note

    def _calibrate(
        self,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        repair: Callable[..., ConditionalFlow],
        *,
        order: Literal["time"] | None = None,
        force: bool = False,
    ) -> bool:
        """Recalibrate unless that makes held-out rows worse; return whether it was done."""
        use = "used to recalibrate it. Its errors are smaller there, so it becomes overconfident."
        self._warn_of_training_rows(x, y, use, stacklevel=4)
        repair, points = partial(repair, order=order), self._supports.open(y, self._seed)
        change = measure_held_out_change(
            self.base_model_, self.model_, x, points, repair, weights=weights, in_time=order == "time"
        )
        if change.harms and not force:
            self._note = f"recalibration would make it worse ({change})"
            return False
        model = repair(self.base_model_, x, points, weights=weights, batch_size=ROWS)
        self.model_, self._undone = model, None
        self._keep_rows(model, x, y, [(self.base_model_, slice(None))])
        self._note = f"{'even though that makes it worse, ' if change.harms else ''}{change}"
        return True

    def _warn_of_training_rows(self, x: Tensor, y: Tensor, use: str, stacklevel: int) -> None:
        share = self._trained_on.share_of(x, y)
        if share > _REUSE_LIMIT:
            warnings.warn(
                f"About {share:.0%} of the training rows of the flow are {use} Use new rows.",
                CalibrationReuseWarning,
                stacklevel=stacklevel,
            )

    def _calibrate_out_of_fold(
        self, rows: Weighted, flows: Sequence[ConditionalFlow], fold: Tensor, repair: Repair
    ) -> None:
        """Recalibrate with out-of-fold flows, unless that makes held-out rows worse."""
        x, y, weights = rows
        points = self._supports.open(y, self._seed)
        law = None if repair is autocalibrate else repair.keywords["fit"]  # type: ignore[attr-defined]

        def calibrate(
            flow: ConditionalFlow, others: list[ConditionalFlow], fold: Tensor, own: Tensor
        ) -> ConditionalFlow:
            share = None if weights is None else weights[own]
            return calibrate_out_of_fold(flow, others, fold, x[own], points[own], fit=law, weights=share)

        trials = (
            (own, flow, partial(calibrate, flow, others, numbers, ~own))
            for own, flow, others, numbers in out_of_fold_pairs(flows, fold)
        )
        model = calibrate(self.base_model_, list(flows), fold, torch.ones_like(fold, dtype=torch.bool))
        self._keep_rows(model, x, y, [(flow, fold == number) for number, flow in enumerate(flows)])
        change = compare_held_out(trials, x, points, weights=weights)
        if change.harms:
            self._note = f"recalibration would make it worse ({change})"
        else:
            self.model_, self._note = model, str(change)

    def _calibrate_incomplete(
        self, x: Tensor, y: Tensor, repair: Repair, order: Literal["time"] | None
    ) -> None:
        """Recalibrate on rows (n, d) with missing outputs, unless that makes held-out complete rows worse."""
        whole = ~torch.isnan(y).any(1)
        if int(whole.sum()) < FEWEST_CALIBRATION:
            self._note = f"{int(whole.sum())} complete calibration rows, fewer than {FEWEST_CALIBRATION}"
            return
        if repair is autocalibrate:  # its maps are learned from complete rows
            self._calibrate(x[whole], y[whole], None, repair, order=order)
            return
        law, points = repair.keywords["fit"], self._supports.open(y, self._seed)  # type: ignore[attr-defined]
        missing = torch.isnan(points)
        lower, upper = points.masked_fill(missing, -torch.inf), points.masked_fill(missing, torch.inf)

        def calibrate(rows: Tensor) -> ConditionalFlow:
            bounds = (lower[rows], upper[rows])
            return recalibrate_incomplete(self.base_model_, x[rows], *bounds, kinds=self.outputs_, fit=law)

        complete = whole.nonzero().reshape(-1)
        fold = fold_numbers(torch.cat([x, points], 1)[complete], _FOLDS)
        every = torch.arange(len(x))
        trials = (
            (own, self.base_model_, partial(calibrate, every[~torch.isin(every, complete[own])]))
            for own in (fold == number for number in range(_FOLDS))
        )
        change = compare_held_out(trials, x[complete], points[complete])
        told = f"{change}; {int((~whole).sum()):,} rows have missing outputs"
        if change.seems_worse:  # few held-out rows, and a large standard error
            self._note = f"recalibration would make it worse ({told})"
            return
        self.model_, self._note = calibrate(every), told
        self._keep_rows(self.model_, x[whole], y[whole], [(self.base_model_, slice(None))])

    def _keep_rows(
        self, model: ConditionalFlow, x: Tensor, y: Tensor, parts: Sequence[tuple[ConditionalFlow, Any]]
    ) -> None:
        """Keep the norms of calibration rows for regions, and their fingerprint in the model's record.

        If single values have a probability, the fingerprint is that of points within cells, and a region is
        calibrated on the middles of cells.

        Args:
            model: the recalibrated model.
            x: (n, p) features.
            y: (n, d) outputs.
            parts: flows, each with the rows whose norms it gives.
        """
        record = model.recalibration
        if not self._supports.are_mixed and record.norms is not None and len(record.norms) == len(y):
            self._norms = record.norms.double().sort().values
            return
        middle, _ = self._supports.middle(y)
        norms = [latent_norms(flow, x[own], middle[own]).double() for flow, own in parts]
        self._norms = torch.cat(norms).sort().values
        if self._supports.are_mixed:
            model.recalibration = record.with_fields(fingerprint=Fingerprint.of(x, y))

    def _calibration_norms(self) -> Tensor:
        """Ascending norms of the calibration rows; raises if there are none."""
        if len(self._norms) == 0:
            raise ArgumentError(
                "Guarantees need calibration rows, but this model was fitted without any. Recalibrate it on "
                "new rows, or fit it with ",
                Argument("recalibration", "stacked"),
                ".",
            )
        return self._norms


def choose(what: str, value: Any, places: Mapping[str, str]) -> Callable[..., Any]:
    """A function, given directly or by its name in a table of import paths."""
    if callable(value):
        return value
    if isinstance(value, str) and spell(value) in places:
        return find(places[spell(value)])
    raise ValueError(f"{what} must be a name or a function, got {value!r}; {suggest(str(value), places)}")


def choose_repair(value: Any) -> Callable[..., ConditionalFlow] | None:
    """The recalibration with this name, a function of (flow, x, y); None for no recalibration."""
    if value is None or value is False:
        return None
    law = next(iter(LAWS)) if value is True else value
    chosen = choose("recalibration", law, {AUTO: "recalibration:autocalibrate", **LAWS})
    return chosen if chosen is autocalibrate else partial(recalibrate, fit=chosen)
