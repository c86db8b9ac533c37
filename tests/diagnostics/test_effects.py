"""New tests of dependence hold their level and reject; findings carry the size of what they found."""

import json
import math

import pytest
import torch
from scipy.stats import binom

from latentcal.diagnostics import diagnose
from latentcal.diagnostics.case import Case
from latentcal.diagnostics.effects import gap_between_parts, gap_to_uniform
from latentcal.diagnostics.latents import encode_rows
from latentcal.diagnostics.permutation_tests import permutation_test, rank_polynomials, rank_products
from latentcal.diagnostics.report_page import render_page
from toys import scaled_gaussian

FLOW = scaled_gaussian(2, 1.0)
TESTS = {
    "norm": lambda case: case.norm_by_x.test,
    "direction": lambda case: case.direction_by_x.test,
    "correlation": lambda case: case.correlation_by_x.test,
    "kernels": lambda case: case.latents_by_x[0],
}


def make_case(generator, kind="calibrated", n=60, p=3):
    x = 4 * torch.rand(n, p, dtype=torch.float64, generator=generator) - 2
    z = torch.randn(n, 2, dtype=torch.float64, generator=generator)
    if kind == "norm":
        z = z * torch.exp(0.8 * x[:, :1] * x[:, 1:2])
    elif kind == "direction":
        z[:, 0] += x[:, 0] * x[:, 1]
    elif kind != "calibrated":
        r = 0.9 * torch.sin(1.5 * x[:, 0])
        z[:, 1] = r * z[:, 0] + (1 - r**2).sqrt() * z[:, 1]
    return Case(FLOW, encode_rows(FLOW, x, z), [f"x[{j}]" for j in range(p)], 199, generator)


@pytest.mark.parametrize("kind", TESTS)
def test_a_test_of_dependence_on_x_holds_its_level(kind, generator):
    runs = 200
    rejected = sum(TESTS[kind](make_case(generator)).p_value <= 0.1 for _ in range(runs))
    assert rejected <= binom.isf(1e-4, runs, 0.1)  # which an exact test exceeds in 0.01 %
    assert rejected >= binom.ppf(1e-4, runs, 0.05)  # and a test without any power would fail here


@pytest.mark.parametrize("kind", TESTS)
def test_a_test_of_dependence_on_x_sees_what_it_is_made_for(kind, generator):
    assert TESTS[kind](make_case(generator, kind, n=400)).p_value <= 0.005


def test_a_product_is_named_by_its_two_features(generator):
    case = make_case(generator, "norm", n=400)
    assert case.name_block(case.norm_by_x.test.strongest) == "the product of x[0] and x[1]"


def test_products_are_free_of_what_single_features_explain(generator):
    x = torch.randn(200, 3, dtype=torch.float64, generator=generator)
    x[:, 1] += x[:, 0]
    pairs = torch.tensor([[0, 1], [1, 2]])
    columns, index = rank_products(x, pairs)
    single, of = rank_polynomials(x)
    assert index.tolist() == [0, 1]
    for column, (j, k) in zip(columns.T, pairs.tolist(), strict=True):
        own = single[:, (of == j) | (of == k)]
        torch.testing.assert_close(column @ own / 200, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)
        torch.testing.assert_close((column**2).mean(), torch.tensor(1.0, dtype=torch.float64))
    constant = torch.cat([x[:, :1], torch.ones_like(x[:, :1])], 1)
    assert rank_products(constant, torch.tensor([[0, 1]]))[0].shape[1] == 0


def test_a_test_that_stops_early_agrees_with_one_that_does_not(generator):
    x, u = torch.randn(2, 80, 1, dtype=torch.float64, generator=generator)
    columns, blocks = rank_polynomials(x)
    scores, _ = rank_polynomials(u)
    options = {"count": 1, "permutations": 5000, "generator": generator}
    full = permutation_test(columns, blocks, scores, **options).p_value
    early = permutation_test(columns, blocks, scores, **options, enough=500).p_value
    assert early == pytest.approx(full, rel=5 / math.sqrt(500))  # five standard errors
    turned = permutation_test(
        scores[:, :1], blocks[:1], columns, **options
    ).p_value  # the other side shuffled
    mirror = permutation_test(columns, blocks, scores[:, :1], **options).p_value
    assert turned == pytest.approx(mirror, abs=5 * math.sqrt(0.5 / 5000))


def test_gaps_are_those_of_known_laws_and_vanish_under_noise(generator):
    u = torch.rand(4000, dtype=torch.float64, generator=generator)
    assert gap_to_uniform(u**2).size == pytest.approx(0.25, abs=0.04)
    assert gap_to_uniform(u**2).error == pytest.approx(0.5 / math.sqrt(4000), rel=0.1)  # at F = 1/2
    noise = [gap_to_uniform(part).size for part in u.split(40)]
    assert sum(noise) / 100 < 0.09  # 0.13 without the correction, with a standard error of 0.004
    side = torch.rand(4000, dtype=torch.float64, generator=generator)
    assert gap_between_parts(u, side).size < 0.03
    assert gap_between_parts(u + side.gt(2 / 3).double(), side).size == pytest.approx(2 / 3, abs=0.04)


def test_a_finding_says_what_its_repair_gains(generator):
    n, scale = 1500, 1.5
    y = scale * torch.randn(n, 2, dtype=torch.float64, generator=generator)
    report = diagnose(FLOW, None, y, samples=20, permutations=399)
    finding = report["uniform PIT"]
    truth = scale**2 - 1 - 2 * math.log(scale)  # of N(0, s^2 I) over N(0, I) in two dimensions
    assert abs(finding.gain - truth) < 5 * finding.gain_error
    assert 0.01 < finding.gain_error < 0.1
    beyond = torch.linspace(0, 1, 1001, dtype=torch.float64)  # share outside a region: promised, and true
    gap = float((beyond ** (1 / scale**2) - beyond).abs().max())
    assert finding.coverage_error == pytest.approx(gap, abs=0.06)  # five standard errors
    silent = report["mean direction"]
    assert (silent.gain, silent.gain_error, silent.coverage_error) == (None, None, None)


def test_text_page_and_dictionary_show_the_sizes(generator):
    x = torch.rand(600, 2, dtype=torch.float64, generator=generator)
    y = 1.5 * torch.randn(600, 2, dtype=torch.float64, generator=generator)
    report = diagnose(FLOW, x, y, samples=20, permutations=399)
    gain, error = report["uniform PIT"].sizes
    line = next(line for line in str(report).splitlines() if line.startswith("  uniform PIT"))
    assert gain in line
    assert error in line
    assert "gain (nats)" in str(report)
    page = render_page(report, "Sizes")
    assert gain in page
    assert "Coverage off (points)" in page
    read = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert read["findings"][0]["gain"] == report["uniform PIT"].gain
    fine = diagnose(FLOW, x, y / 1.5, samples=20, permutations=399)
    assert "gain (nats)" not in str(fine) or not fine.calibrated
