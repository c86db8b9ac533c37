"""Advice worded for users of flows, of the estimator and of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from .._internal.hints import shell_words
from ..radius.conditional import GroupedRadius
from ..radius.smooth import SmoothRadius
from ..recalibration import Alignment, AutoRecalibration

if TYPE_CHECKING:
    from .findings import Finding

Audience = Literal["flow", "estimator", "command line"]

_WORDS: dict[str, dict[str, str]] = {
    "recalibrate": {
        "flow": "`recalibrate` {flow} on held-out rows{time}",
        "estimator": "`model.recalibrate(X, y{order})` with held-out rows",
        "command line": "`latentcal recalibrate {folder} new.csv{option}`",
    },
    "again": {
        "flow": "`recalibrate` {flow} on more than the {n:,} rows used last time, or on newer rows{time}",
        "estimator": "{plain}`model.recalibrate(X, y{order})` with more than the {n:,} rows used last time, "
        "or newer rows",
        "command line": "`latentcal recalibrate {folder} new.csv{option}` with more than the {n:,} rows used "
        "last time, or newer rows",
    },
    "latest": {
        "estimator": "{plain}`model.recalibrate(X, y{order})` with the latest rows",
        "command line": "`latentcal recalibrate {folder} new.csv{option}` with the latest rows",
    },
    "by_x": {
        "flow": "`recalibrate` {flow} with `fit=ConditionalRadius.fit`{time}",
        "estimator": "set `model.recalibration = ConditionalRadius.fit`, then `model.recalibrate(X, "
        "y{order})` with held-out rows",
    },
    "by_group": {
        "flow": "`recalibrate` {flow} with `ConditionalRadius.fit` and its `groups`{time}",
        "estimator": "`recalibrate` the flow `model.base_model_` with `ConditionalRadius.fit` and its "
        "`groups`",
    },
    "align": {"flow": "`align` {flow}, then `recalibrate` on other rows"},
    "marginals": {
        "flow": '`align` {flow} with `maps=("affine", "marginals")`, then `recalibrate` on other rows'
    },
    "auto": {
        "flow": "`autocalibrate` {flow} on held-out rows{time}",
        "estimator": 'set `model.recalibration = "auto"`, then `model.recalibrate(X, y{order})` with '
        "held-out rows",
        "command line": "`latentcal recalibrate {folder} new.csv --recalibration auto`",
    },
    "auto_all": {"flow": '`autocalibrate` {flow} with `rungs="all"`{time}'},
    "prerank": {"flow": "`recalibrate_prerank` {flow} where only regions of highest density matter"},
    "train": {
        "flow": "train the flow longer or on more rows, or use a more flexible one",
        "estimator": "fit again with more rows, more epochs (`max_epochs`) or another `flow`",
        "command line": "run `latentcal fit` again with more rows, more `--epochs` or another `--flow`",
    },
    "lags": {
        "flow": "train the flow with lagged outputs, or a variable for the season, as features",
        "estimator": "fit again with lagged outputs, or a variable for the season, as features",
        "command line": "run `latentcal fit` again with lagged outputs, or the season, as columns",
    },
    "undo": {
        "flow": "`{undo}`",
        "estimator": "`model.undo_recalibration()`",
        "command line": "`latentcal recalibrate {folder} --undo`",
    },
}
_TRIED_BY_AUTO = {"recalibrate", "by_x", "align", "marginals", "auto", "auto_all"}


class Undone(NamedTuple):
    """A recalibration that was undone because it had made the model worse."""

    n: int
    """Number of its rows."""
    actions: tuple[str, ...]
    """Its action."""

    @classmethod
    def of(cls, record: Any) -> Undone:
        """The recalibration in a record."""
        return cls(record.n, tuple(sorted(Situation(record=record).done)))


@dataclass(frozen=True)
class Situation:
    """Context of the advice apart from the findings."""

    audience: Audience = "flow"
    record: Any = None
    """Record of the last recalibration; None for a flow that was not recalibrated."""
    undo: str = ""
    """Python name of the model before, if recalibration made it worse; otherwise empty."""
    within_noise: bool = False
    """Whether the noise of the calibration rows explains the findings."""
    in_time: bool = False
    """Whether the rows are in time order, or appear to be."""
    model: str | None = None
    """Folder of the model, for commands."""
    drifts: bool = False
    """Whether the rows drift."""
    undone: Undone | None = None
    """The recalibration that was undone, if the flow is as trained."""

    def __post_init__(self) -> None:
        if self.audience not in get_args(Audience):
            raise ValueError(f"audience must be one of {get_args(Audience)}, got {self.audience!r}.")

    def say(self, action: str) -> str:
        """The words for an action; empty if there are none for this audience."""
        words = dict.fromkeys(("time", "order", "option", "plain"), "")
        if self.in_time:  # repair the norm only: maps that `auto` learns in one season fail in others
            words["time"], words["order"] = ', with `order="time"`', ', order="time"'
            words["option"] = " --order time --recalibration stacked"
            words["plain"] = 'set `model.recalibration = "stacked"`, then '
        n, flow = 0 if self.undone is None else self.undone.n, "the flow"
        if self.record is not None:
            n = self.record.n
            flow = "the model" if isinstance(self.record, Alignment) else "the original flow"
        words["folder"] = "MODEL" if self.model is None else shell_words([self.model])
        return _WORDS[action].get(self.audience, "").format(n=n, flow=flow, undo=self.undo, **words)

    @property
    def done(self) -> frozenset[str]:
        """Actions that have been done already, or undone."""
        record = self.record
        if record is None:
            return frozenset(() if self.undone is None else self.undone.actions)
        if isinstance(record, AutoRecalibration):
            by_group = record.ladder is not None and any("group" in name for name in record.ladder.names)
            return frozenset(_TRIED_BY_AUTO | ({"by_group"} if by_group else set()))
        if isinstance(record, Alignment):
            return frozenset({"align", *({"marginals"} & {*record.maps})})
        law = {SmoothRadius: "by_x", GroupedRadius: "by_group"}.get(type(record.law))
        return frozenset({"recalibrate"} if law is None else {"recalibrate", law})


def choose_remedy(actions: Sequence[str], finding: Finding, situation: Situation) -> str:
    """What to do about a finding, without a full stop.

    Actions that have been done already, or are not expected to help, are not advised.

    Args:
        actions: actions that repair such a fault, the most direct first.
        finding: the finding, with its sizes.
        situation: situation of the model and the reader.
    """
    if situation.undo:
        return "undo the recalibration first, then diagnose again"
    if situation.drifts:  # future rows will differ from the latest ones too
        return f"{situation.say('lags')} (the rows drift, so a recalibration may not hold for later rows)"
    if situation.within_noise:
        return situation.say("again")
    # A new law of the norm repairs coverage, whatever its gain; but in time order, later rows may differ.
    # Other repairs assume exchangeable rows, except those of `autocalibrate`, which flows can be given.
    law, unclear = "recalibrate" in actions, finding.gain is not None and not finding.is_repairable
    if situation.in_time and (unclear or not (law or situation.audience == "flow")):
        return f"{situation.say('lags')} (no repair after training is known to help with rows in time order)"
    if situation.in_time and situation.audience != "flow":
        return f"{situation.say('latest')}; or {situation.say('train')}"
    if unclear and not law:
        return f"{situation.say('train')} (no repair after training is known to help)"
    left = [action for action in actions if action not in situation.done and situation.say(action)]
    if "recalibrate" in {*actions} & situation.done or not {*left} - {"train"}:
        again = [] if situation.record is None and situation.undone is None else ["again"]
        left = [*again, *(action for action in left if action != "train"), "train"]
    return "; or ".join(map(situation.say, left[:2]))
