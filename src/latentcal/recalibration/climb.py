"""Trial of rungs: the rows to fit and evaluate each on, and when a rung is dropped or refused."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .._internal.progress_bar import ProgressBar
from ..base import RadialBase
from ..metrics import uniformity_test
from ..metrics.autocorrelation import autocorrelation_test
from ..radius.calibration_sample import DiscreteOutputWarning
from ..radius.law import RadiusLaw
from .draws import DrawComparison
from .ladder import Comparison, Ladder
from .maps import FOLDS
from .rows import LatentRows
from .rungs import FittedRung, Groups, Rung, RungFitter, find_rungs

_LARGEST = 3
_COARSE = 128  # nodes of laws used only for the comparison
_FIRST_BLOCKS = 2  # first blocks of time, which are not held out
_FEWEST_RACING = 400  # fewest rows to drop rungs before all folds are evaluated


def contradiction(radii: Tensor, law: RadiusLaw) -> float:
    r"""p-value of the hypothesis that radii (n,) are independent draws from a law.

    .. math:: p = \min\Bigl(1, 4 \min\bigl(p_\text{KS},
              P(N_{r_{(n)}} \ge 1), P(N_{r_{(n-1)}} \ge 2), P(N_{r_{(n-2)}} \ge 3)\bigr)\Bigr), \qquad
              N_r \sim \operatorname{Binomial}(n, 1 - F(r))

    The Kolmogorov-Smirnov test checks the bulk of the radii. It does not detect that an overconfident model
    loses likelihood at the three largest radii, which are tested separately. The factor 4 corrects for the
    four tests.
    """
    from scipy.stats import binom

    n = len(radii)
    largest = radii.topk(min(_LARGEST, n)).values
    beyond = torch.exp(law.log_sf(largest))
    tails = [float(binom.sf(count, n, float(share))) for count, share in enumerate(beyond)]
    bulk = uniformity_test(law.cdf(radii).clamp(0, 1)).p_value
    return min(1.0, (1 + _LARGEST) * min(float(bulk), *tails))


class Validation(NamedTuple):
    """Pairs of rows to fit to and rows to evaluate on."""

    parts: list[tuple[Tensor, Tensor]]
    """Masks (n,) of the rows to fit to and of those held out."""
    in_time: bool

    @property
    def held_out(self) -> Tensor:
        """(n,) mask of the rows that are held out in any part."""
        return torch.stack([held_out for _, held_out in self.parts]).any(0)

    @property
    def fold(self) -> Tensor:
        """(n,) number of the part that holds a row out; -1 for rows that are never held out."""
        number = torch.full((len(self.parts[0][0]),), -1)
        for part, (_, held_out) in enumerate(self.parts):
            number[held_out] = part
        return number


def plan_validation(rows: LatentRows, base: RadialBase, folds: int, *, in_time: bool) -> Validation:
    """Folds of the rows; in time order, blocks that are predicted from earlier rows.

    Each block is preceded by a gap as long as the autocorrelation of the latent PIT, because rows just before
    a block carry more information about it than would be available later.
    """
    folds = min(folds, len(rows))
    if not in_time or len(rows) < 2 * (folds + _FIRST_BLOCKS):
        fold = rows.folds(folds, contiguous=in_time)
        return Validation([(fold != number, fold == number) for number in range(folds)], in_time)
    n, place = len(rows), torch.arange(len(rows))
    block = place * (folds + _FIRST_BLOCKS) // n
    gap = min(measure_autocorrelation_time(rows, base), n // (2 * (folds + _FIRST_BLOCKS)))
    parts = []
    for number in range(_FIRST_BLOCKS, folds + _FIRST_BLOCKS):
        held_out = block == number
        parts.append((place < int(held_out.nonzero()[0]) - gap, held_out))
    return Validation(parts, in_time)


def measure_autocorrelation_time(rows: LatentRows, base: RadialBase) -> int:
    """Autocorrelation time of the latent PIT in rows; 0 if the rows are independent."""
    u = base.radius.cdf(base.norm_of(rows.z)).clamp(0, 1)
    if len(u) < 10 or bool((u == u[0]).all()):
        return 0
    time = len(u) / autocorrelation_test(u).effective_n
    return 0 if time <= 1 else math.ceil(time)


class Climb(NamedTuple):
    """The chosen rung, the record of the choice, and PIT values of held-out rows under the rung."""

    rung: Rung
    ladder: Ladder
    u: Tensor | None
    """Held-out latent PIT under the chosen rung, in the order of rows; None if nothing was compared."""
    weights: Tensor
    """Weights of the rows of u."""


def climb(
    rows: LatentRows,
    base: RadialBase,
    *,
    groups: Groups = None,
    folds: int = FOLDS,
    contiguous: bool = False,
    rungs: str | Sequence[str] = "default",
    from_affine: bool = False,
    progress: bool = False,
) -> Climb:
    """The rung chosen by held-out likelihood, and the record of the choice."""
    tried = find_rungs(rungs, rows, base, groups, from_affine=from_affine)
    if len(tried) == 1:
        only = Ladder([tried[0].name], [0.0], [0.0], [0.0], [0.0], 0, len(rows), 0)
        return Climb(tried[0], only, None, rows.weights)
    validation = plan_validation(rows, base, folds, in_time=contiguous)
    folds = len(validation.parts)
    kept = validation.held_out
    log_likelihood = torch.full((len(tried), int(kept.sum())), math.nan, dtype=torch.float64)
    exchangeable = not contiguous and bool((rows.weights == rows.weights[0]).all())
    comparison = Comparison(
        [rung.name for rung in tried],
        log_likelihood,
        rows.weights[kept],
        folds,
        contiguous,
        contradiction(base.norm_of(rows.z), base.radius) if exchangeable else None,
    )
    fitted: list[list[FittedRung]] = [[] for _ in tried]

    def judge(numbers: Sequence[int], part: int) -> None:
        seen, held_out = validation.parts[part]
        fitter = RungFitter(rows.take(seen), base, groups, contiguous=contiguous, nodes=_COARSE)
        for i in numbers:
            fitted[i].append(fitter.fit(tried[i]))
            log_likelihood[i, held_out[kept]] = fitted[i][-1].log_likelihood(rows.take(held_out), base)

    with silent_about_ties(), ProgressBar(total=folds * len(tried), desc="ladder", progress=progress) as bar:
        racing = list(range(len(tried)))
        for part in range(folds):
            judge(racing, part)
            bar.update(len(tried))
            if not contiguous and len(rows) >= _FEWEST_RACING:
                racing = comparison.drop_hopeless(racing)
        draws = DrawComparison(rows, base, validation.fold, contiguous=contiguous)
        last = validation.fold[kept] == folds - 1
        refusals = comparison.refuse_by_last_block(last) if contiguous else [""] * len(tried)
        while True:
            ladder = comparison.choose(refusals)
            if ladder.chosen == 0:
                break
            plain = tried[ladder.chosen].is_plain
            refusals[ladder.chosen] = draws.refusal(fitted[ladder.chosen], plain=plain)
            if not refusals[ladder.chosen]:
                ladder = replace(ladder, unexamined=draws.obstacle)
                break
            # Rungs that were dropped because of a rung that is now refused are reinstated.
            again = comparison.drop_hopeless([i for i, why in enumerate(refusals) if not why])
            for part in range(folds):
                judge([i for i in again if len(fitted[i]) == part], part)
    u = torch.empty(len(rows), dtype=torch.float64)
    for (_, held_out), rung_of_part in zip(validation.parts, fitted[ladder.chosen], strict=True):
        u[held_out] = rung_of_part.pit(rows.take(held_out), base)
    return Climb(tried[ladder.chosen], ladder, u[kept], rows.weights[kept])


@contextmanager
def silent_about_ties() -> Iterator[None]:
    """Suppress warnings about ties in every fit; one warning is raised when the rows are first read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscreteOutputWarning)
        yield
