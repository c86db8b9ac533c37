"""Input of the questions: a model, its latents of rows, and tests that several questions share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..base import RadialBase, standard_normal
from ..fingerprint import Fingerprint
from ..flow import ConditionalFlow
from ..norms import Euclidean
from ..recalibration.rows import LatentRows
from .effects import MOST_ROWS, HeldOutGains, Repair
from .latents import Latents
from .limits import GroupCalibration
from .measures import Measured
from .permutation_tests import (
    Dependence,
    Outcome,
    affordable_rows,
    base_test,
    direction_columns,
    kernel_columns,
    kernel_rows,
    normal_scores,
    pairs_of_features,
    permutation_test,
    random_part,
    rank_polynomials,
    rank_products,
    round_latents,
    unit_directions,
    usable_rows,
)

_MOST_COORDINATES = 16
_ENOUGH = 50  # a test stops after this many shuffles at least as strong as the data


class ByX(NamedTuple):
    """Result of a test of dependence on x."""

    test: Dependence
    """The test; its blocks are the p features, then pairs of them."""
    rows: Tensor
    """(m,) rows that were used."""
    column: Tensor
    """(m,) function of x with the strongest dependence."""
    trend: float
    """Correlation of this function with the first score."""
    detail: str
    """Description of how the test was made."""


@dataclass(eq=False)
class Case:
    """Input of the questions: a model, its latents of n rows, and settings of the tests.

    Quantities that several questions need are computed once, on first use.
    """

    model: ConditionalFlow
    rows: Latents
    names: Sequence[str]
    """(p,) names of the features."""
    permutations: int
    generator: torch.Generator
    groups: tuple[GroupCalibration, ...] = ()
    labels: Tensor | None = None
    """(n,) index of each row's group."""
    x: Tensor | None = None
    """(n, p) features of the model; for questions about predictions."""
    measured: Measured | None = None
    """Measures of samples; for questions about predictions."""
    coverage: float = 0.9
    """Nominal coverage of the regions for detailed tests."""
    in_time: bool = False
    """Whether the rows are in time order, or appear to be."""

    @property
    def predictions(self) -> Measured:
        """Measures of samples of the predictions."""
        assert self.measured is not None, "questions about predictions come after they are measured"
        return self.measured

    @property
    def features(self) -> Tensor:
        """(n, p) features."""
        assert self.rows.x is not None, "questions about x need x"
        return self.rows.x

    @cached_property
    def no_features(self) -> str:
        """Why dependence on x cannot be tested; empty if it can."""
        x = self.rows.x
        if x is None:
            return "no x was given"
        return "" if bool((x != x[0]).any()) else "every feature is constant"

    @cached_property
    def no_directions(self) -> str:
        """Why directions are not tested; empty if they are."""
        euclidean = isinstance(self.model.base.norm, Euclidean)
        return "" if euclidean else "directions are tested only if the norm of the base is Euclidean"

    @cached_property
    def part(self) -> Tensor:
        """(m,) rows whose directions are tested."""
        return random_part(len(self.rows.z), usable_rows(self.rows.z.shape[1]), self.generator)

    @cached_property
    def omega(self) -> Tensor:
        """(m, d) directions of these rows."""
        return unit_directions(self.rows.z[self.part], self.generator)

    @cached_property
    def few_coordinates(self) -> tuple[Tensor, str]:
        """(m, k) at most 16 coordinates of the directions, and a note on those left out."""
        d = self.omega.shape[1]
        if d <= _MOST_COORDINATES:
            return self.omega, ""
        random = torch.randn(d, _MOST_COORDINATES, dtype=torch.float64, generator=self.generator)
        return self.omega @ torch.linalg.qr(random).Q, f"; {_MOST_COORDINATES} random coordinates"

    @cached_property
    def pairs(self) -> Tensor:
        """(k, 2) pairs of features whose products are tested."""
        return pairs_of_features(self.features.shape[1], self.generator)

    def name_block(self, block: int) -> str:
        """The name of a feature, or of a pair of them."""
        p = len(self.names)
        if block < p:
            return self.names[block]
        j, k = self.pairs[block - p].tolist()
        return f"the product of {self.names[j]} and {self.names[k]}"

    def name_source(self, preposition: str, block: int) -> str:
        """The feature in a dependence, for a sentence; if there are several, the one or two strongest."""
        if len(self.names) == 1:
            return f"{preposition} {self.names[0]}"
        return f"{preposition} the features, mostly {preposition} {self.name_block(block)}"

    @cached_property
    def norm_by_x(self) -> ByX:
        """Test of u against x."""
        n, p = self.features.shape
        part = self.some_rows(n, 2 * p + len(self.pairs), 2)
        return self._test_against_x(part, rank_polynomials(self.rows.logit[part, None])[0])

    @cached_property
    def direction_by_x(self) -> ByX:
        """Test of the direction against x."""
        omega, kept = self.few_coordinates
        part = self.some_rows(len(omega), 2 * len(self.names) + len(self.pairs), omega.shape[1])
        scores = math.sqrt(self.omega.shape[1]) * (omega[part] - omega[part].mean(0))
        return self._test_against_x(self.part[part], scores, kept)

    @cached_property
    def correlation_by_x(self) -> ByX:
        """Test of products of coordinates of the direction against x."""
        omega, kept = self.few_coordinates
        k = omega.shape[1]
        part = self.some_rows(len(omega), 2 * len(self.names) + len(self.pairs), k * (k + 1) // 2)
        columns, blocks, _ = direction_columns(omega[part])
        return self._test_against_x(self.part[part], columns[:, blocks == 1], kept)

    def _test_against_x(self, part: Tensor, scores: Tensor, kept: str = "") -> ByX:
        """Permutation test of scores (m, k) of m rows against their features and products of these."""
        x = self.features[part]
        columns, blocks = rank_polynomials(x)
        products, pair = rank_products(x, self.pairs)
        columns, blocks = torch.cat([columns, products], 1), torch.cat([blocks, x.shape[1] + pair])
        test = self.shuffle(columns, blocks, scores, x.shape[1] + len(self.pairs))
        if not scores.numel():
            return ByX(test, part, columns[:, 0], 0.0, self.shuffles(len(part)) + kept)
        own = columns[:, blocks == test.strongest]
        covariance = own.T @ scores / len(part)
        column = own[:, int((covariance**2).sum(1).argmax())]
        return ByX(test, part, column, float(covariance[0, 0]), self.shuffles(len(part)) + kept)

    @cached_property
    def latents_by_x(self) -> tuple[Dependence, int]:
        """Kernel test of latents against x, and the rows used."""
        part = kernel_rows(len(self.rows.z), self.generator)
        z, norms = self.rows.z[part].double(), self.rows.norms[part, None]
        directions = torch.where(norms > 0, z / torch.where(norms > 0, norms, 1.0), 0.0)
        cloud = round_latents(directions, self.rows.logit[part], self.generator)
        of_z = kernel_columns(cloud, self.generator)
        of_x = kernel_columns(normal_scores(self.features[part]), self.generator)
        one_block = torch.zeros(of_x.shape[1], dtype=torch.long)
        return self.shuffle(of_x, one_block, of_z, 1), len(part)

    @property
    def suspect(self) -> int | None:
        """Index of the single feature on which u depends most; None if there is none."""
        return None if self.no_features else int(self.norm_by_x.test.strength[: len(self.names)].argmax())

    @property
    def mean_direction(self) -> Tensor | None:
        """(d,) mean of z / |z|; None if directions are not tested."""
        return None if self.no_directions else self.omega.mean(0)

    @cached_property
    def against_base(self) -> Outcome:
        """Energy test of latents against draws of the base."""
        return base_test(
            self.model, self.x, self.rows.z, permutations=self.permutations, generator=self.generator
        )

    def some_rows(self, n: int, columns: int, scores: int) -> Tensor:
        """A part of n rows that bounds the cost of a permutation test with these columns and scores."""
        return random_part(n, affordable_rows(columns, scores, self.permutations), self.generator)

    def shuffle(self, columns: Tensor, blocks: Tensor, scores: Tensor, count: int) -> Dependence:
        """Permutation test of columns in blocks against scores."""
        return permutation_test(
            columns,
            blocks,
            scores,
            count=count,
            permutations=self.permutations,
            generator=self.generator,
            enough=_ENOUGH,
        )

    def shuffles(self, n: int) -> str:
        """Description of a permutation test of n rows."""
        return f"up to {self.permutations:,} shuffles of {n:,} rows"

    def estimate_gain(self, repair: Repair) -> tuple[float, float] | None:
        """Gain of a repair on held-out rows in nats per row, with its standard error; None if unknown."""
        gains = self._gains_by_group if "radial by group" in repair.rungs else self._gains
        return gains.estimate(repair)

    @cached_property
    def _gains(self) -> HeldOutGains:
        return HeldOutGains(*self._standard_rows(self.rows.x), in_time=self.in_time)

    @cached_property
    def _gains_by_group(self) -> HeldOutGains:
        assert self.labels is not None
        rows = self._standard_rows(self.labels[:, None].double())
        return HeldOutGains(*rows, groups=0, in_time=self.in_time)

    def _standard_rows(self, x: Tensor | None) -> tuple[LatentRows, RadialBase]:
        """At most 2,000 rows, and the law that their latents should have, which does not depend on x.

        If the law does, norms are mapped to those of the standard normal law with the same PIT, which leaves
        gains of likelihood unchanged.
        """
        part = random_part(len(self.rows.z), MOST_ROWS, torch.Generator().manual_seed(0)).sort().values
        z, base = self.rows.z[part].double(), self.model.base
        if base.radius.given(self.rows.x) is not base.radius:
            normal = standard_normal(base.dim)
            logit = self.rows.logit[part]
            radii = normal.radius.icdf_log_tails(logsigmoid(logit), logsigmoid(-logit))
            z = z * (radii / self.rows.norms[part].clamp(min=1e-100))[:, None]
            base = RadialBase(normal.radius, base.dim, base.norm)
        weights = torch.ones(len(part), dtype=torch.float64)
        return LatentRows(z, None if x is None else x[part], weights, Fingerprint()), base
