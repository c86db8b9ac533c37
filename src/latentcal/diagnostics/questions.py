"""The questions asked about a model: each looks at a case, makes one test and gives one finding.

A new question is one function here, under ``@question`` with its name, remedy and fault, and its place in
one of the tuples at the end. Its docstring is the question in words. It gives a test, what it means if the
test rejects, and how the p-value was made. Tests themselves are in ``tests``; advice that looks at all
findings together is in ``advice``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..metrics import UniformityTest, calibration_error, uniformity_test
from ..norms import Euclidean
from ..recalibration.discrete import Atoms
from .findings import Finding
from .latents import Latents
from .limits import GroupCalibration
from .measures import Measured
from .tests import (
    Dependence,
    Outcome,
    affordable_rows,
    base_test,
    direction_columns,
    mean_direction_test,
    permutation_test,
    random_part,
    rank_polynomials,
    second_moment_test,
    unit_directions,
    usable_rows,
)

_MOST_COORDINATES = 16
_ALIGN = "align, then recalibrate; or autocalibrate"


@dataclass(eq=False)
class Case:
    """What questions look at: a model, what it makes of n rows, and how tests are made.

    What several questions need is computed once, by the first that asks for it.
    """

    model: ConditionalFlow
    rows: Latents
    names: Sequence[str]
    """(p,) of the features."""
    permutations: int
    generator: torch.Generator
    groups: tuple[GroupCalibration, ...] = ()
    x: Tensor | None = None
    """(n, p) features as the model takes them; for questions about predictions."""
    measured: Measured | None = None
    """What samples of the predictions say; for questions about predictions."""
    atoms: Atoms | None = None
    """Values that outputs repeat; for questions about predictions."""

    @property
    def predictions(self) -> Measured:
        """What samples of the predictions say."""
        assert self.measured is not None, "questions about predictions come after they are measured"
        return self.measured

    @cached_property
    def no_features(self) -> str:
        """Why nothing can depend on x; empty where something can."""
        x = self.rows.x
        if x is None:
            return "no x was given"
        return "" if bool((x != x[0]).any()) else "every feature is constant"

    @cached_property
    def no_directions(self) -> str:
        """Why directions are not tested; empty where they are."""
        euclidean = isinstance(self.model.base.norm, Euclidean)
        return "" if euclidean else "directions are tested where the norm of the base is Euclidean"

    @cached_property
    def part(self) -> Tensor:
        """(m,) rows whose directions are looked at."""
        return random_part(len(self.rows.z), usable_rows(self.rows.z.shape[1]), self.generator)

    @cached_property
    def omega(self) -> Tensor:
        """(m, d) directions of these rows."""
        return unit_directions(self.rows.z[self.part], self.generator)

    @cached_property
    def by_feature(self) -> tuple[Dependence, float, int]:
        """Test of u against x, the rank correlation with the feature that matters most, and the rows used."""
        x = self.rows.x
        assert x is not None
        part = self.some_rows(len(x), 2 * x.shape[1], 2)
        columns, blocks = rank_polynomials(x[part])
        scores, _ = rank_polynomials(self.rows.logit[part, None])
        test = self.shuffle(columns, blocks, scores, x.shape[1])
        if not scores.numel():
            return test, 0.0, len(part)
        trend = (columns[:, blocks == test.strongest][:, 0] * scores[:, 0]).mean()
        return test, float(trend), len(part)

    @property
    def suspect(self) -> int | None:
        """Index of the feature on which u depends most; None where there is none."""
        return None if self.no_features else self.by_feature[0].strongest

    @property
    def mean_direction(self) -> Tensor | None:
        """(d,) mean of z / |z|; None where directions are not tested."""
        return None if self.no_directions else self.omega.mean(0)

    @cached_property
    def against_base(self) -> Outcome:
        """Energy test of latents against draws of the base."""
        return base_test(
            self.model, self.x, self.rows.z, permutations=self.permutations, generator=self.generator
        )

    def some_rows(self, n: int, columns: int, scores: int) -> Tensor:
        """Of n rows those on which a permutation test of so many columns and scores is affordable."""
        return random_part(n, affordable_rows(columns, scores, self.permutations), self.generator)

    def shuffle(self, columns: Tensor, blocks: Tensor, scores: Tensor, count: int) -> Dependence:
        """Permutation test of columns in so many blocks against scores."""
        return permutation_test(
            columns, blocks, scores, count=count, permutations=self.permutations, generator=self.generator
        )

    def shuffles(self, n: int) -> str:
        """How a permutation test of n rows was made."""
        return f"{self.permutations:,} shuffles of {n:,} rows"


Answer = tuple[Outcome | Dependence | UniformityTest, str, str] | str | None
"""A test, what its rejection means, how it was made; why it cannot be made; None where nothing is asked."""


@dataclass(frozen=True)
class Question:
    """What is asked about a model, and what a fault in this respect is called and takes."""

    name: str
    """Of the test, in few words."""
    text: str
    """The question as a sentence."""
    remedy: str
    """What to do where the test rejects."""
    fault: str | None
    """Name of the fault behind it; None where several faults show in it."""
    answer: Callable[[Case], Answer]
    """The test, made on a case."""


def question(
    name: str, *, remedy: str, fault: str | None = None
) -> Callable[[Callable[[Case], Answer]], Question]:
    """Decorator: the question that a function answers; its docstring is the sentence."""
    return lambda answer: Question(name, answer.__doc__ or name, remedy, fault, answer)


def ask(case: Case, questions: Sequence[Question]) -> tuple[list[Finding], dict[str, str]]:
    """Findings of the questions in their order, and for those that cannot be asked the reason."""
    findings, absent = [], {}
    for each in questions:
        answer = each.answer(case)
        if isinstance(answer, str):
            absent[each.name] = answer
        elif answer is not None:
            test, verdict, detail = answer
            findings.append(
                Finding(each.name, test.statistic, test.p_value, verdict, each.remedy, detail=detail)
            )
    return findings, absent


@question("uniform PIT", remedy="recalibrate", fault="scale")
def uniform_pit(case: Case) -> Answer:
    """Do regions of every coverage hold what they promise, over all rows?"""
    u = case.rows.u
    verdict = f"The latent PIT is not uniform over all rows (L-ECE {float(calibration_error(u)):.3f})."
    return uniformity_test(u, "cvm"), verdict, "Cramér-von Mises"


@question(
    "PIT and x", remedy="autocalibrate, or recalibrate with ConditionalRadius.fit", fault="x-dependence"
)
def pit_and_x(case: Case) -> Answer:
    """Is the latent norm independent of each feature?"""
    if case.no_features:
        return case.no_features
    test, trend, n = case.by_feature
    verdict = (
        f"The latent norm depends on x, most on {case.names[test.strongest]} (rank correlation "
        f"{trend:+.2f}): predictions are too narrow at some x and too wide at others."
    )
    return test, verdict, case.shuffles(n)


@question("mean direction", remedy=_ALIGN, fault="direction")
def mean_direction(case: Case) -> Answer:
    """Are latents centred?"""
    if case.no_directions:
        return case.no_directions
    test = mean_direction_test(case.omega, permutations=case.permutations, generator=case.generator)
    mean = case.omega.mean(0)
    most = int(mean.abs().argmax())
    verdict = f"Latents are not centred, most along coordinate {most} (mean of z/|z|: {mean[most]:+.3f})."
    return test, verdict, f"{case.permutations:,} changes of sign of {test.n:,} rows"


@question("spread of directions", remedy=_ALIGN, fault="direction")
def spread_of_directions(case: Case) -> Answer:
    """Are latents equally spread in all directions?"""
    if case.no_directions:
        return case.no_directions
    if case.omega.shape[1] == 1:
        return "for d = 1 a direction is a sign"
    test = second_moment_test(case.omega, simulations=case.permutations, generator=case.generator)
    how = f"{case.permutations:,} simulations" if test.simulated else "chi-squared law"
    verdict = "Latents are stretched or correlated: some directions occur more often than others."
    return test, verdict, f"{how}, {test.n:,} rows"


@question("PIT and direction", remedy=_ALIGN, fault="direction")
def pit_and_direction(case: Case) -> Answer:
    """Is the latent norm independent of the direction?"""
    if case.no_directions:
        return case.no_directions
    columns, blocks, products = direction_columns(case.omega)
    part = case.some_rows(len(columns), columns.shape[1], 2)
    scores, _ = rank_polynomials(case.rows.logit[case.part][part, None])
    test = case.shuffle(columns[part], blocks, scores, 1 + products)
    left_out = "" if products or case.omega.shape[1] == 1 else "; first moments alone, d is large"
    verdict = (
        "The latent norm depends on the direction: predictions are too narrow on some sides and too wide "
        "on others."
    )
    return test, verdict, case.shuffles(len(part)) + left_out


@question(
    "direction and x",
    remedy="autocalibrate, whose maps may depend on x; or train the flow longer",
    fault="x-dependence",
)
def direction_and_x(case: Case) -> Answer:
    """Is the direction of latents independent of each feature?"""
    if case.no_directions or case.rows.x is None or case.no_features:
        return case.no_directions or case.no_features
    omega, x, kept = case.omega, case.rows.x[case.part], ""
    d = omega.shape[1]
    if d > _MOST_COORDINATES:
        random = torch.randn(d, _MOST_COORDINATES, dtype=torch.float64, generator=case.generator)
        omega = omega @ torch.linalg.qr(random).Q
        kept = f"; {_MOST_COORDINATES} random coordinates"
    part = case.some_rows(len(x), 2 * x.shape[1], omega.shape[1])
    columns, blocks = rank_polynomials(x[part])
    scores = math.sqrt(d) * (omega[part] - omega[part].mean(0))
    test = case.shuffle(columns, blocks, scores, x.shape[1])
    verdict = (
        f"The direction of latents moves with x, most with {case.names[test.strongest]}: predictions are "
        "shifted differently at different x."
    )
    return test, verdict, case.shuffles(len(part)) + kept


@question(
    "groups",
    remedy="recalibrate with ConditionalRadius.fit by groups, or autocalibrate",
    fault="x-dependence",
)
def every_group(case: Case) -> Answer:
    """Is every group calibrated by itself?"""
    if not case.groups:
        return None
    worst = min(case.groups, key=lambda group: (group.p_value, -group.l_ece / group.limit))
    count = len(case.groups)
    test = Outcome(worst.l_ece, min(1.0, count * worst.p_value), worst.n)
    verdict = f"Group {worst.label} is not calibrated (L-ECE {worst.l_ece:.3f}, limit {worst.limit:.3f})."
    return test, verdict, f"{count} groups, Bonferroni"


@question("latents and base", remedy="autocalibrate, which picks the map that this takes")
def latents_and_base(case: Case) -> Answer:
    """Are latents distributed like draws of the base?"""
    test = case.against_base
    detail = f"{case.permutations:,} exchanges of {test.n:,} rows"
    return test, "Latents are not distributed like the base.", detail


@question("uniform HDR-PIT", remedy="recalibrate; recalibrate_prerank where only these regions matter")
def uniform_hdr_pit(case: Case) -> Answer:
    """Do regions of highest density hold what they promise?"""
    side = case.predictions
    if side.hdr_u is None:
        return "the model has no density"
    error = side["HDR-ECE"].value
    verdict = f"Regions of highest density do not hold what they promise (HDR-ECE {error:.3f})."
    return uniformity_test(side.hdr_u, "cvm"), verdict, f"Cramér-von Mises, {side.rows:,} rows"


@question("marginal PITs", remedy="autocalibrate, or align with maps=('affine', 'marginals')")
def marginal_pits(case: Case) -> Answer:
    """Is every output calibrated by itself?"""
    side = case.predictions
    outputs = side.marginals
    worst = min(outputs, key=lambda m: (1.0 if m.p_value is None else m.p_value, -m.value))
    test = Outcome(worst.value, min(1.0, len(outputs) * (worst.p_value or 0.0)), side.rows)
    verdict = f"The PIT of output {worst.name} is not uniform (ECE {worst.value:.3f})."
    detail = f"Cramér-von Mises, {side.rows:,} rows, Bonferroni over {len(outputs)} outputs"
    return test, verdict, detail


@question(
    "atoms",
    remedy="dequantise: Dequantizer.fit(y).jitter(y) for training, recalibration and this report alike",
    fault="atoms",
)
def repeated_values(case: Case) -> Answer:
    """Do outputs repeat values, which no density does?"""
    side, found = case.predictions, case.atoms
    if found is None or found.output is None:
        return None
    name = side.marginals[found.output].name
    verdict = f"{found.share:.0%} of the rows have the same value of output {name}."
    test = Outcome(found.share, 0.0, len(case.rows.u))
    return test, verdict, "equal values have probability 0 under a density"


ABOUT_LATENTS = (
    *(uniform_pit, pit_and_x, mean_direction, spread_of_directions),
    *(pit_and_direction, direction_and_x, every_group),
)
"""Questions of ``conditional_calibration``, and of ``diagnose``."""

ABOUT_PREDICTIONS = (latents_and_base, uniform_hdr_pit, marginal_pits)
"""Further questions of ``diagnose``."""

QUESTIONS = (*ABOUT_LATENTS, *ABOUT_PREDICTIONS, repeated_values)
"""All questions. The last has p = 0 wherever it finds anything, and is not counted in the adjustment."""
