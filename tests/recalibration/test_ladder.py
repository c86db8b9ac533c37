"""How rungs are compared, and which ones are possible."""

import pytest
import torch

from latentcal.base import standard_normal
from latentcal.fingerprint import Fingerprint
from latentcal.radius import Chi, StackedRadius
from latentcal.recalibration.ladder import LADDER, RungFitter, _compare
from latentcal.recalibration.maps import AffineMap, Chain
from latentcal.recalibration.rows import LatentRows

DIM = 3


def test_each_rung_is_as_far_behind_as_the_gain_of_the_best_is_ahead():
    gains = torch.tensor([0.0, 0.3, 0.5, 0.4], dtype=torch.float64)
    noise = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_likelihood = noise + gains[:, None]
    ladder = _compare(list("abcd"), log_likelihood, torch.ones(60).double(), 5, False, None, [""] * 4)
    assert ladder.gains == pytest.approx(gains.tolist())
    assert ladder.behind == pytest.approx((0.5 - gains).tolist())
    assert (ladder.best, ladder.chosen) == (2, 2)
    refused = _compare(
        list("abcd"), log_likelihood, torch.ones(60).double(), 5, False, None, ["", "", "no", ""]
    )
    assert (refused.best, refused.chosen) == (3, 3)
    assert refused.behind == pytest.approx((0.4 - gains).tolist())


def test_a_wide_tail_has_the_least_weight_that_a_part_has_or_less(generator):
    """Of 7 parts and n rows that is 1 / (7 (n + 1)); for a wider tail 1 % of the variance decides."""
    n = 400
    z = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    rows = LatentRows(z, None, torch.ones(n, dtype=torch.float64), Fingerprint())
    fitter = RungFitter(rows, standard_normal(DIM), None, contiguous=False)
    law = StackedRadius([Chi(DIM)], torch.ones(1), core=Chi(DIM), level=0.01)

    def tail_of(stretch):
        map = Chain([AffineMap(torch.zeros(DIM).double(), torch.full((DIM,), stretch).double())])
        return fitter._with_wide_tail(law, map)

    assert tail_of(1.2) is law
    for stretch, share in ((2.0, 1 / (7 * (n + 1))), (20.0, 0.01 / 20**2)):
        wide = tail_of(stretch)
        assert float(wide.weights[-1]) == pytest.approx(share)
        assert wide.parts[-1].scale == pytest.approx(stretch)


def test_coordinates_are_made_normal_only_where_they_are_not_too_many():
    rung = next(rung for rung in LADDER if "marginals" in rung.maps and rung.law == "stacked")
    for dim, possible in ((2, True), (5000, False)):
        rows = LatentRows(torch.zeros(1000, dim), None, torch.ones(1000), Fingerprint())
        assert rung.is_possible(rows, standard_normal(dim), None) == possible
