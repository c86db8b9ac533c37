"""How rungs are fitted to rows, with wide tails, and which rungs would repeat others."""

import pytest
import torch

from latentcal.base import standard_normal
from latentcal.fingerprint import Fingerprint
from latentcal.recalibration.maps import AffineMap, Chain
from latentcal.recalibration.rows import LatentRows
from latentcal.recalibration.rungs import LADDER, RungFitter, find_rungs

DIM = 3


def make_rows(z, x=None):
    return LatentRows(z, x, torch.ones(len(z), dtype=torch.float64), Fingerprint())


def test_a_wide_tail_has_the_least_weight_that_a_part_has_or_less(generator):
    """Of 7 parts and n rows that is 1 / (7 (n + 1)); for a wider tail 1 % of the variance decides."""
    n = 400
    z = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    fitter = RungFitter(make_rows(z), standard_normal(DIM), None, contiguous=False)

    def tail_of(stretch):
        map = Chain([AffineMap(torch.zeros(DIM).double(), torch.full((DIM,), stretch).double())])
        return fitter._find_tail(map)

    assert tail_of(1.2) is None
    for stretch, share in ((2.0, 1 / (7 * (n + 1))), (20.0, 0.01 / 20**2)):
        tail = tail_of(stretch)
        assert tail.share == pytest.approx(share)
        assert tail.law.scale == pytest.approx(stretch)


def test_a_map_that_stretches_the_last_rows_alone_has_a_wide_tail_too(generator):
    """Of 3,000 rows, sorted by x, the first 1,000 say nothing about a scale that falls at the end."""
    x = torch.linspace(0, 1, 3000, dtype=torch.float64)[:, None]
    z = torch.randn(3000, DIM, generator=generator, dtype=torch.float64)
    z = z * torch.where(x > 0.6, 0.1, 1.0)
    rung = next(rung for rung in LADDER if rung.name == "aligned by x, radial by x")
    shuffled = torch.randperm(3000, generator=generator)
    tails = [
        RungFitter(rows, standard_normal(DIM), None, contiguous=False, nodes=64).fit(rung).tail
        for rows in (make_rows(z, x), make_rows(z[shuffled], x[shuffled]))
    ]
    assert tails[0].law.scale == pytest.approx(tails[1].law.scale, rel=0.2)
    flat = RungFitter(make_rows(z[:1800], x[:1800]), standard_normal(DIM), None, contiguous=False, nodes=64)
    assert flat.fit(rung).tail is None  # control


def test_no_rung_repeats_another_where_there_is_nothing_to_turn(generator):
    z = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    for dim, turned in ((1, False), (2, True)):
        names = [
            rung.name for rung in find_rungs("default", make_rows(z[:, :dim]), standard_normal(dim), None)
        ]
        assert ("aligned, rotated, marginals, radial" in names) == turned
        assert "aligned, marginals, radial" in names
