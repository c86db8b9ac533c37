"""The comparison of conformal regions: what it measures, and how its table counts."""

import math
from dataclasses import replace

import pytest
import torch
import toy_study

from latentcal.splits import split
from studies.tabular.regions import CQR, SCORES, of_flow, of_quantiles, table


@pytest.mark.parametrize("score", SCORES)
def test_regions_of_a_flow_cover_and_have_a_volume(score, tmp_path):
    found = of_flow(toy_study.spec(), score, load=toy_study.load, cache=tmp_path)
    assert 0.5 < found["coverage"] <= 1
    assert math.isfinite(found["log_volume"])
    assert found["outputs"] == 2


def test_boxes_of_quantile_regression_are_those_of_conformal_calibration():
    # Features that say nothing: the quantiles are those of the training rows, whatever the trees.
    data = toy_study.load("toy")
    parts = split(replace(data, x=torch.zeros_like(data.x)), 0)
    parts = replace(parts, validation=parts.validation._replace(y=2 * parts.validation.y))
    found = of_quantiles(parts, 0)
    levels = torch.tensor([0.05, 0.95], dtype=torch.float64)
    low, high = parts.train.y.double().quantile(levels, dim=0)
    y = parts.validation.y.double()
    scores = torch.maximum(low - y, y - high).amax(1).sort().values
    margin = scores[math.ceil(0.9 * (len(y) + 1)) - 1]
    assert found["log_volume"] == pytest.approx(float((high - low + 2 * margin).log().sum()), abs=0.02)


def test_the_table_compares_volumes_with_those_of_the_latent_norm():
    sizes = dict(zip((*SCORES, CQR), (4.0, 2.0, 1.0, 3.0, 6.0), strict=True))
    rows = [
        {
            "suite": CQR if score == CQR else "maf",
            "dataset": name,
            "seed": "0",
            "score": score,
            "coverage": "0.9",
            "log_volume": str(size + shift),
            "outputs": "2",
            "cpu_seconds": "1",
        }
        for name, shift in (("slump", 0.0), ("edm", 3.0))
        for score, size in sizes.items()
    ]
    lines = table(rows)
    (of_boxes,) = [line for line in lines if "| cqr |" in line]
    assert of_boxes.endswith("| 0.900 | 0.900 | 3.750 | +1.000 |")
    assert "hpd 1.00, density 2.00, pcp 3.00, latent 4.00, cqr 5.00" in lines[-2]
