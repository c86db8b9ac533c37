"""The questions asked about a model: each looks at a case, makes one test and gives one finding.

A new question is a line in the table of ``findings`` (name, sentence, remedy, fault), a function here that
answers it, and a line in one of the two tables at the end. Tests themselves are in ``tests``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..flow import ConditionalFlow
from ..metrics import calibration_error, uniformity_test
from ..norms import Euclidean
from ..recalibration.discrete import Atoms
from . import findings as asked
from .findings import Finding, Question
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
    """Samples of the predictions; for questions about predictions."""

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
        part = random_part(len(x), affordable_rows(2 * x.shape[1], 2, self.permutations), self.generator)
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

    def shuffle(self, columns: Tensor, blocks: Tensor, scores: Tensor, count: int) -> Dependence:
        """Permutation test of columns in so many blocks against scores."""
        return permutation_test(
            columns, blocks, scores, count=count, permutations=self.permutations, generator=self.generator
        )

    def shuffles(self, n: int) -> str:
        """How a permutation test of n rows was made."""
        return f"{self.permutations:,} shuffles of {n:,} rows"


Answer = Finding | str | None
"""A finding; or why the question cannot be asked; or None where it does not arise."""


def ask(
    case: Case, questions: Mapping[Question, Callable[[Case], Answer]]
) -> tuple[list[Finding], dict[str, str]]:
    """Findings of the questions in their order, and for those that cannot be asked the reason."""
    findings, absent = [], {}
    for question, answer in questions.items():
        found = answer(case)
        if isinstance(found, str):
            absent[question.name] = found
        elif found is not None:
            findings.append(found)
    return findings, absent


def ask_uniform(case: Case) -> Answer:
    """Is the PIT uniform over all rows?"""
    u = case.rows.u
    verdict = f"The latent PIT is not uniform over all rows (L-ECE {float(calibration_error(u)):.3f})."
    return asked.UNIFORM.answer(uniformity_test(u, "cvm"), verdict, "Cramér-von Mises")


def ask_features(case: Case) -> Answer:
    """Is the PIT independent of the features?"""
    if case.no_features:
        return case.no_features
    test, trend, n = case.by_feature
    verdict = (
        f"The latent norm depends on x, most on {case.names[test.strongest]} (rank correlation {trend:+.2f}): "
        "predictions are too narrow at some x and too wide at others."
    )
    return asked.FEATURES.answer(test, verdict, case.shuffles(n))


def ask_mean_direction(case: Case) -> Answer:
    """Are latents centred?"""
    if case.no_directions:
        return case.no_directions
    test = mean_direction_test(case.omega, permutations=case.permutations, generator=case.generator)
    mean = case.omega.mean(0)
    most = int(mean.abs().argmax())
    verdict = f"Latents are not centred, most along coordinate {most} (mean of z/|z|: {mean[most]:+.3f})."
    return asked.MEAN.answer(test, verdict, f"{case.permutations:,} changes of sign of {test.n:,} rows")


def ask_spread(case: Case) -> Answer:
    """Are directions equally frequent?"""
    if case.no_directions:
        return case.no_directions
    if case.omega.shape[1] == 1:
        return "for d = 1 a direction is a sign"
    test = second_moment_test(case.omega, simulations=case.permutations, generator=case.generator)
    how = f"{case.permutations:,} simulations" if test.simulated else "chi-squared law"
    verdict = "Latents are stretched or correlated: some directions occur more often than others."
    return asked.SPREAD.answer(test, verdict, f"{how}, {test.n:,} rows")


def ask_pit_and_direction(case: Case) -> Answer:
    """Is the PIT independent of the direction?"""
    if case.no_directions:
        return case.no_directions
    columns, blocks, products = direction_columns(case.omega)
    most = affordable_rows(columns.shape[1], 2, case.permutations)
    part = random_part(len(columns), most, case.generator)
    scores, _ = rank_polynomials(case.rows.logit[case.part][part, None])
    test = case.shuffle(columns[part], blocks, scores, 1 + products)
    left_out = "" if products or case.omega.shape[1] == 1 else "; first moments alone, d is large"
    verdict = (
        "The latent norm depends on the direction: predictions are too narrow on some sides and too wide "
        "on others."
    )
    return asked.PIT_DIRECTION.answer(test, verdict, case.shuffles(len(part)) + left_out)


def ask_direction_and_x(case: Case) -> Answer:
    """Is the direction independent of the features?"""
    if case.no_directions or case.no_features:
        return case.no_directions or case.no_features
    assert case.rows.x is not None
    omega, x, kept = case.omega, case.rows.x[case.part], ""
    d = omega.shape[1]
    if d > _MOST_COORDINATES:
        random = torch.randn(d, _MOST_COORDINATES, dtype=torch.float64, generator=case.generator)
        omega = omega @ torch.linalg.qr(random).Q
        kept = f"; {_MOST_COORDINATES} random coordinates"
    most = affordable_rows(2 * x.shape[1], omega.shape[1], case.permutations)
    part = random_part(len(x), most, case.generator)
    columns, blocks = rank_polynomials(x[part])
    scores = math.sqrt(d) * (omega[part] - omega[part].mean(0))
    test = case.shuffle(columns, blocks, scores, x.shape[1])
    verdict = (
        f"The direction of latents moves with x, most with {case.names[test.strongest]}: predictions are "
        "shifted differently at different x."
    )
    return asked.X_DIRECTION.answer(test, verdict, case.shuffles(len(part)) + kept)


def ask_groups(case: Case) -> Answer:
    """Is every group calibrated by itself?"""
    groups = case.groups
    if not groups:
        return None
    worst = min(groups, key=lambda group: (group.p_value, -group.l_ece / group.limit))
    test = Outcome(worst.l_ece, min(1.0, len(groups) * worst.p_value), worst.n)
    verdict = f"Group {worst.label} is not calibrated (L-ECE {worst.l_ece:.3f}, limit {worst.limit:.3f})."
    return asked.GROUPS.answer(test, verdict, f"{len(groups)} groups, Bonferroni")


def ask_base(case: Case) -> Answer:
    """Are latents distributed like draws of the base?"""
    test = case.against_base
    detail = f"{case.permutations:,} exchanges of {test.n:,} rows"
    return asked.LATENTS.answer(test, "Latents are not distributed like the base.", detail)


def ask_highest_density(case: Case) -> Answer:
    """Do regions of highest density hold what they promise?"""
    side = case.measured
    assert side is not None
    if side.hdr_u is None:
        return "the model has no density"
    error = side["HDR-ECE"].value
    verdict = f"Regions of highest density do not hold what they promise (HDR-ECE {error:.3f})."
    return asked.HDR.answer(
        uniformity_test(side.hdr_u, "cvm"), verdict, f"Cramér-von Mises, {side.rows:,} rows"
    )


def ask_marginals(case: Case) -> Answer:
    """Is the PIT of every output uniform?"""
    side = case.measured
    assert side is not None
    outputs = side.marginals
    worst = min(outputs, key=lambda m: (1.0 if m.p_value is None else m.p_value, -m.value))
    assert worst.p_value is not None
    test = Outcome(worst.value, min(1.0, len(outputs) * worst.p_value), side.rows)
    verdict = f"The PIT of output {worst.name} is not uniform (ECE {worst.value:.3f})."
    detail = f"Cramér-von Mises, {side.rows:,} rows, Bonferroni over {len(outputs)} outputs"
    return asked.MARGINALS.answer(test, verdict, detail)


def find_atoms(repeated: Atoms, names: Sequence[str]) -> tuple[Finding, ...]:
    """Do outputs repeat values? What a density never does has probability 0 and needs no adjustment."""
    if repeated.output is None:
        return ()
    share, name = repeated.share, names[repeated.output]
    verdict = f"{share:.0%} of the rows have the same value of output {name}."
    detail = "equal values have probability 0 under a density"
    return (Finding(asked.ATOMS.name, share, 0.0, verdict, asked.ATOMS.remedy, 0.0, True, detail),)


ABOUT_LATENTS: Mapping[Question, Callable[[Case], Answer]] = {
    asked.UNIFORM: ask_uniform,
    asked.FEATURES: ask_features,
    asked.MEAN: ask_mean_direction,
    asked.SPREAD: ask_spread,
    asked.PIT_DIRECTION: ask_pit_and_direction,
    asked.X_DIRECTION: ask_direction_and_x,
    asked.GROUPS: ask_groups,
}
"""Questions of ``conditional_calibration``; ``diagnose`` asks them, too."""

ABOUT_PREDICTIONS: Mapping[Question, Callable[[Case], Answer]] = {
    asked.LATENTS: ask_base,
    asked.HDR: ask_highest_density,
    asked.MARGINALS: ask_marginals,
}
"""Further questions of ``diagnose``."""
