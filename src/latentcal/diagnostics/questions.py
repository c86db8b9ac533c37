"""The questions about a model: each makes one test on a case and gives one finding.

A new question is one function here, decorated by ``@question`` with its name, actions and fault, and listed
in one of the tuples at the end. Its docstring is the question in words. It returns a test, the meaning of a
rejection, and how the p-value was computed. The gain of its repair is estimated from rungs of the ladder, the
coverage error by a function of the case. Tests are in ``permutation_tests``, sizes in ``effects``, the words
for actions in ``remedies``; advice based on all findings together is in ``advice``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..metrics import UniformityTest, calibration_error, uniformity_test
from .case import ByX, Case
from .effects import (
    Gap,
    Repair,
    gap_along,
    gap_between_parts,
    gap_of_sign,
    gap_to_uniform,
    main_axis,
    side_pit,
    unit,
    width_pit,
)
from .findings import Finding
from .permutation_tests import (
    Dependence,
    Outcome,
    direction_columns,
    mean_direction_test,
    rank_polynomials,
    second_moment_test,
)

_MARGINALS = ("aligned, marginals, radial", "aligned, rotated, marginals, radial")
_BY_X = (
    *("radial by x", "aligned, radial by x"),
    *("aligned by x, radial by x", "correlated by x, radial by x"),
)
_REPAIR = Repair(("radial", "aligned, radial", "aligned, marginals, radial", *_BY_X))
_REPAIR_OF_DIRECTION = Repair(("aligned, radial",), ("radial",))
_REPAIR_OF_NORM_BY_X = Repair(("radial by x",), ("radial",))


Answer = tuple[Outcome | Dependence | UniformityTest, str, str] | str | None
"""A test, its meaning and how it was made; or why it cannot be made; None if it does not apply."""


@dataclass(frozen=True)
class Question:
    """A question about a model, with the name and the repairs of the fault behind it."""

    name: str
    """Name of the test."""
    text: str
    """The question as a sentence."""
    actions: tuple[str, ...]
    """Names of repairs in ``remedies``, the most direct first."""
    fault: str | None
    """Name of the fault behind it; None if several faults can cause it."""
    repair: Repair | None
    """Repair whose gain is estimated; None if no repair of the latent is known."""
    coverage_error: Callable[[Case], Gap] | None
    """Function for the largest coverage error behind a finding, or None."""
    omnibus: bool
    """Whether the test detects differences of any kind."""
    answer: Callable[[Case], Answer]
    """Function that makes the test on a case."""


def question(
    name: str,
    *,
    actions: tuple[str, ...],
    fault: str | None = None,
    repair: Repair | None = None,
    coverage_error: Callable[[Case], Gap] | None = None,
    omnibus: bool = False,
) -> Callable[[Callable[[Case], Answer]], Question]:
    """Decorator: the question that a function answers; its docstring is the sentence."""
    return lambda answer: Question(
        name, answer.__doc__ or name, actions, fault, repair, coverage_error, omnibus, answer
    )


def ask(case: Case, questions: Sequence[Question]) -> tuple[list[Finding], dict[str, str]]:
    """Findings of the questions in their order, and reasons for those that cannot be tested."""
    findings, absent = [], {}
    for each in questions:
        answer = each.answer(case)
        if isinstance(answer, str):
            absent[each.name] = answer
        elif answer is not None:
            test, verdict, detail = answer
            findings.append(
                Finding(each.name, test.statistic, test.p_value, verdict, detail=detail, omnibus=each.omnibus)
            )
    return findings, absent


def measure_effects(case: Case, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with gain and coverage error if something was found."""
    asked = {question.name: question for question in QUESTIONS}
    sized = []
    for finding in findings:
        about = asked[finding.name]
        if finding.found and about.repair is not None:
            gain, error = case.estimate_gain(about.repair) or (None, None)
            finding = replace(finding, gain=gain, gain_error=error)
        if finding.found and about.coverage_error is not None:
            gap = about.coverage_error(case)
            finding = replace(finding, coverage_error=gap.size, coverage_uncertainty=gap.error)
        sized.append(finding)
    return tuple(sized)


def _error_of_norm(case: Case) -> Gap:
    """Coverage error of latent regions over all rows."""
    return gap_to_uniform(case.rows.u)


def _error_of_norm_by_x(case: Case) -> Gap:
    """Coverage error of latent regions in thirds of the strongest function of x, beyond the overall one."""
    found = case.norm_by_x
    return gap_between_parts(case.rows.u[found.rows], found.column)


def _error_of_groups(case: Case) -> Gap:
    """Coverage error of latent regions in the worst group."""
    assert case.labels is not None
    return max(gap_to_uniform(case.rows.u[case.labels == label]) for label in case.labels.unique())


def _error_of_mean(case: Case) -> Gap:
    """Coverage error of half-spaces along the mean direction."""
    omega = case.omega
    d = omega.shape[1]

    def gap(rows: Tensor, axis: Tensor) -> Gap:
        along = omega[rows] @ axis
        return gap_of_sign(along) if d == 1 else gap_to_uniform(side_pit(along, d))

    return gap_along(lambda rows: unit(omega[rows].mean(0)), gap, len(omega))


def _error_of_spread(case: Case) -> Gap:
    """Coverage error of bands around the origin, across the most or least frequent direction."""
    omega = case.omega
    d = omega.shape[1]
    level = torch.eye(d, dtype=omega.dtype) / d

    def axis(rows: Tensor) -> Tensor:
        return main_axis(omega[rows].T @ omega[rows] / len(rows) - level)

    return gap_along(axis, lambda rows, axis: gap_to_uniform(width_pit(omega[rows] @ axis, d)), len(omega))


def _error_of_norm_by_direction(case: Case) -> Gap:
    """Coverage error of latent regions on one side or near one axis, beyond the overall error."""
    omega, u = case.omega, case.rows.u[case.part]
    score = rank_polynomials(case.rows.logit[case.part, None])[0][:, :1]
    if not score.numel():
        return Gap(0.0, 0.5)

    def side(rows: Tensor) -> Tensor:
        return unit((omega[rows] * score[rows]).mean(0))

    def axis(rows: Tensor) -> Tensor:
        return main_axis(omega[rows].T @ (omega[rows] * score[rows]))

    one_sided = gap_along(side, lambda rows, axis: gap_between_parts(u[rows], omega[rows] @ axis), len(omega))
    if omega.shape[1] == 1:
        return one_sided
    two_sided = gap_along(
        axis, lambda rows, axis: gap_between_parts(u[rows], (omega[rows] @ axis).abs()), len(omega)
    )
    return max(one_sided, two_sided)


def _error_by_x(case: Case, found: ByX, *, two_sided: bool) -> Gap:
    """Coverage error of half-spaces or bands in thirds of the strongest function of x, beyond the overall."""
    place = torch.empty(len(case.rows.u), dtype=torch.long)
    place[case.part] = torch.arange(len(case.part))
    omega, column = case.omega[place[found.rows]], found.column[:, None]

    def axis(rows: Tensor) -> Tensor:
        if two_sided:
            return main_axis(omega[rows].T @ (omega[rows] * column[rows]))
        return unit((omega[rows] * column[rows]).mean(0))

    def gap(rows: Tensor, axis: Tensor) -> Gap:
        along = omega[rows] @ axis
        return gap_between_parts(along.abs() if two_sided else along, found.column[rows])

    return gap_along(axis, gap, len(omega))


def _error_of_latents(case: Case) -> Gap:
    """The largest coverage error over all rows."""
    errors = [_error_of_norm(case)]
    if not case.no_directions:
        errors.append(_error_of_mean(case))
        if case.omega.shape[1] > 1:
            errors.append(_error_of_spread(case))
    return max(errors)


def _error_of_dense_regions(case: Case) -> Gap:
    """Coverage error of highest-density regions over all rows."""
    assert case.predictions.hdr_u is not None
    return gap_to_uniform(case.predictions.hdr_u)


def _error_of_outputs(case: Case) -> Gap:
    """Coverage error of one-sided intervals of the worst output."""
    return max(gap_to_uniform(column) for column in case.predictions.marginal_u.T)


@question(
    "uniform PIT",
    actions=("recalibrate",),
    fault="scale",
    repair=Repair(("radial",)),
    coverage_error=_error_of_norm,
)
def uniform_pit(case: Case) -> Answer:
    """Do regions of all levels have their nominal coverage, over all rows?"""
    from scipy.stats import binomtest

    u, level = case.rows.u, case.coverage
    inside = int((u <= level).sum())
    verdict = (
        f"The latent PIT is not uniform over all rows (L-ECE {float(calibration_error(u)):.3f}): "
        f"{100 * level:g} % regions contain {100 * inside / len(u):.1f} % of the rows."
    )
    test = uniformity_test(u, "cvm")
    # This test weighs all levels equally and misses errors in the outer regions only.
    p_value = min(1.0, 2 * min(test.p_value, float(binomtest(inside, len(u), level).pvalue)))
    detail = f"Cramér-von Mises, and binomial at {100 * level:g} %, Bonferroni"
    return UniformityTest(test.statistic, p_value), verdict, detail


@question(
    "PIT and x",
    actions=("auto", "by_x"),
    fault="x-dependence",
    repair=_REPAIR_OF_NORM_BY_X,
    coverage_error=_error_of_norm_by_x,
)
def pit_and_x(case: Case) -> Answer:
    """Is the latent norm independent of each feature, and of products of two?"""
    if case.no_features:
        return case.no_features
    found = case.norm_by_x
    verdict = (
        f"The latent norm depends {case.name_source('on', found.test.strongest)} (rank correlation "
        f"{found.trend:+.2f}): predictions are too narrow for some rows and too wide for others."
    )
    return found.test, verdict, found.detail


@question(
    "mean direction",
    actions=("align", "auto"),
    fault="direction",
    repair=_REPAIR_OF_DIRECTION,
    coverage_error=_error_of_mean,
)
def mean_direction(case: Case) -> Answer:
    """Are latents centred?"""
    if case.no_directions:
        return case.no_directions
    test = mean_direction_test(case.omega, permutations=case.permutations, generator=case.generator)
    mean = case.omega.mean(0)
    most = int(mean.abs().argmax())
    verdict = (
        f"Latents are not centred, mostly along coordinate {most} (mean of z/|z|: {mean[most]:+.3f}): "
        "predictions are shifted."
    )
    return test, verdict, f"{case.permutations:,} changes of sign of {test.n:,} rows"


@question(
    "spread of directions",
    actions=("align", "auto"),
    fault="direction",
    repair=_REPAIR_OF_DIRECTION,
    coverage_error=_error_of_spread,
)
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


@question(
    "PIT and direction",
    actions=("align", "auto"),
    fault="direction",
    repair=Repair(("aligned, radial", *_MARGINALS), ("radial",)),
    coverage_error=_error_of_norm_by_direction,
)
def pit_and_direction(case: Case) -> Answer:
    """Is the latent norm independent of the direction?"""
    if case.no_directions:
        return case.no_directions
    columns, blocks, products = direction_columns(case.omega)
    part = case.some_rows(len(columns), columns.shape[1], 2)
    scores, _ = rank_polynomials(case.rows.logit[case.part][part, None])
    test = case.shuffle(columns[part], blocks, scores, 1 + products)
    left_out = "" if products or case.omega.shape[1] == 1 else "; first moments only, because d is large"
    verdict = (
        "The latent norm depends on the direction: predictions are too narrow on some sides and too wide "
        "on others."
    )
    return test, verdict, case.shuffles(len(part)) + left_out


@question(
    "direction and x",
    actions=("auto", "train"),
    fault="x-dependence",
    repair=Repair(("aligned by x, radial by x",), ("radial by x", "aligned, radial by x")),
    coverage_error=lambda case: _error_by_x(case, case.direction_by_x, two_sided=False),
)
def direction_and_x(case: Case) -> Answer:
    """Is the direction of latents independent of each feature, and of products of two?"""
    if case.no_directions or case.no_features:
        return case.no_directions or case.no_features
    found = case.direction_by_x
    verdict = (
        f"The direction of latents moves {case.name_source('with', found.test.strongest)}: predictions are "
        "shifted, in different ways for different rows."
    )
    return found.test, verdict, found.detail


@question(
    "correlation and x",
    actions=("auto", "train"),
    fault="x-dependence",
    # "aligned by x" repairs scales of single outputs that depend on x, which this test also detects.
    repair=Repair(
        ("correlated by x, radial by x", "aligned by x, radial by x"), ("radial by x", "aligned, radial by x")
    ),
    coverage_error=lambda case: _error_by_x(case, case.correlation_by_x, two_sided=True),
)
def correlation_and_x(case: Case) -> Answer:
    """Are the spread and the correlation of latents independent of each feature, and of products of two?"""
    if case.no_directions or case.no_features:
        return case.no_directions or case.no_features
    if case.omega.shape[1] == 1:
        return "for d = 1 a direction is a sign"
    found = case.correlation_by_x
    verdict = (
        "The correlation of the outputs, or the shape of the latent cloud, depends "
        f"{case.name_source('on', found.test.strongest)}."
    )
    return found.test, verdict, found.detail


@question(
    "groups",
    actions=("by_group", "auto"),
    fault="x-dependence",
    repair=Repair(("radial by group",), ("radial",)),
    coverage_error=_error_of_groups,
)
def every_group(case: Case) -> Answer:
    """Is each group calibrated?"""
    if not case.groups:
        return None
    worst = min(case.groups, key=lambda group: (group.p_value, -group.l_ece / group.limit))
    count = len(case.groups)
    test = Outcome(worst.l_ece, min(1.0, count * worst.p_value), worst.n)
    verdict = f"Group {worst.label} is not calibrated (L-ECE {worst.l_ece:.3f}, limit {worst.limit:.3f})."
    return test, verdict, f"{count} groups, Bonferroni"


@question(
    "latents and x",
    actions=("auto", "auto_all", "train"),
    fault="x-dependence",
    repair=Repair(_BY_X, ("radial", "aligned, radial")),
    coverage_error=_error_of_norm_by_x,
    omnibus=True,
)
def latents_and_x(case: Case) -> Answer:
    """Are latents independent of x in every respect?"""
    if case.no_features:
        return case.no_features
    test, n = case.latents_by_x
    return test, "Latents depend on the features.", f"kernels, {case.shuffles(n)}"


@question(
    "latents and base",
    actions=("auto", "train"),
    repair=_REPAIR,
    coverage_error=_error_of_latents,
    omnibus=True,
)
def latents_and_base(case: Case) -> Answer:
    """Are latents distributed like draws of the base?"""
    test = case.against_base
    detail = f"{case.permutations:,} exchanges of {test.n:,} rows"
    return test, "Latents do not follow the law that the model assumes.", detail


@question(
    "uniform HDR-PIT",
    actions=("recalibrate", "prerank"),
    repair=_REPAIR,
    coverage_error=_error_of_dense_regions,
)
def uniform_hdr_pit(case: Case) -> Answer:
    """Do highest-density regions have their nominal coverage?"""
    side = case.predictions
    if side.hdr_u is None:
        return "the model has no density"
    error = side["HDR-ECE"].value
    verdict = f"Highest-density regions do not have their nominal coverage (HDR-ECE {error:.3f})."
    return uniformity_test(side.hdr_u, "cvm"), verdict, f"Cramér-von Mises, {side.rows:,} rows"


@question(
    "marginal PITs",
    actions=("auto", "marginals"),
    repair=Repair(_MARGINALS, ("radial",)),
    coverage_error=_error_of_outputs,
)
def marginal_pits(case: Case) -> Answer:
    """Is each output calibrated?"""
    side = case.predictions
    outputs = side.marginals
    worst = min(outputs, key=lambda m: (1.0 if m.p_value is None else m.p_value, -m.value))
    test = Outcome(worst.value, min(1.0, len(outputs) * (worst.p_value or 0.0)), side.rows)
    verdict = (
        f"The PIT of {worst.name} is not uniform (ECE {worst.value:.3f}): its marginal intervals are wrong."
    )
    detail = f"Cramér-von Mises, {side.rows:,} rows, Bonferroni over {len(outputs)} outputs"
    return test, verdict, detail


ABOUT_LATENTS = (
    *(uniform_pit, pit_and_x, mean_direction, spread_of_directions),
    *(pit_and_direction, direction_and_x, correlation_and_x, latents_and_x, every_group),
)
"""Questions of ``conditional_calibration``, and of ``diagnose``."""

ABOUT_PREDICTIONS = (latents_and_base, uniform_hdr_pit, marginal_pits)
"""Further questions of ``diagnose``."""

QUESTIONS = (*ABOUT_LATENTS, *ABOUT_PREDICTIONS)
"""All questions."""
