import math
import statistics
from dataclasses import replace

import pytest
import torch

from latentcal.flow import ConditionalFlow
from latentcal.flows import TrainingLog
from latentcal.metrics import energy_score
from latentcal.splits import split
from studies.tabular import METHODS, RunSpec, TrainedRun, calibrate, evaluate
from studies.tabular.evaluate import CURVE, LEVELS, pooled_energy_score
from studies.tabular.methods import Calibrated, latent_flow
from studies.tabular.sampling import draw_samples
from studies.tabular.trainings import Latents
from toys import scaled_gaussian

ROWS, DIM = 2400, 2


def gaussian_run(scale: float, flow: ConditionalFlow | None = None) -> TrainedRun:
    """Data that are standard normal, and a model that takes their deviation to be ``scale``."""
    source = torch.Generator().manual_seed(3)
    parts = split(
        (
            torch.randn(ROWS, 1, generator=source, dtype=torch.float64),
            torch.randn(ROWS, DIM, generator=source, dtype=torch.float64),
        ),
        seed=0,
    )
    flow = scaled_gaussian(DIM, scale) if flow is None else flow
    encoded = [flow.encode(part.y, part.x) for part in (parts.validation, parts.test)]
    latents = Latents(*encoded[0], *encoded[1])
    return TrainedRun(RunSpec("toy", "maf", 0), flow, parts, TrainingLog(), latents, {}, 0, 0.0, 0.0)


@pytest.fixture(scope="module")
def wide():
    run = gaussian_run(2.0)
    return run, {name: evaluate(run, calibrate(name, run)) for name in METHODS}


@pytest.fixture(scope="module")
def right():
    run = gaussian_run(1.0)
    return run, {name: evaluate(run, calibrate(name, run)) for name in ("BASE", "LR-stacked", "HDR-R")}


def test_the_nll_is_that_of_the_model(wide):
    run, figures = wide
    x, y = run.split.test
    assert figures["BASE"]["nll"] == pytest.approx(float(-run.flow(x).log_prob(y).mean()), abs=1e-9)


def test_recalibration_brings_a_wrong_scale_near_the_truth(wide, right):
    truth = right[1]["BASE"]["nll"]
    for name in METHODS[1:]:
        assert wide[1]["BASE"]["nll"] > truth + 0.4
        limit = 0.2 if name == "HDR-R" else 0.05  # 100 ranks do not resolve the tip of a density
        assert wide[1][name]["nll"] < truth + limit, name


def test_the_paired_difference_is_that_of_the_means(wide):
    base = wide[1]["BASE"]
    assert base["nll_minus_base"] == base["nll_minus_base_se"] == 0
    for name in METHODS[1:]:
        figures = wide[1][name]
        assert figures["nll_minus_base"] == pytest.approx(figures["nll"] - base["nll"], abs=1e-9)
        assert 0 < figures["nll_minus_base_se"] < 0.1


def test_the_terms_sum_to_the_nll(wide):
    for name in METHODS[:-1]:
        figures = wide[1][name]
        terms = figures["nll_latent"] + figures["nll_radial"] + figures["nll_flow"]
        assert terms == pytest.approx(figures["nll"], abs=1e-6), name
    assert wide[1]["BASE"]["nll_radial"] == 0


def test_calibration_errors_see_the_wrong_scale_and_its_repair(wide, right):
    # 360 true uniforms have an error of 0.016 on average.
    for error in ("l_ece", "hdr_ece"):
        assert right[1]["BASE"][error] < 0.04
        assert wide[1]["BASE"][error] > 0.2
        for name in METHODS[1:-1]:
            assert wide[1][name][error] < 0.06, name
    assert wide[1]["HDR-R"]["hdr_ece"] < 0.06
    assert "l_ece" not in wide[1]["HDR-R"]


def test_coverage_and_curve_are_shares_of_the_test_rows(right):
    figures = right[1]["BASE"]
    assert list(figures["coverage"]) == [f"{level:g}" for level in LEVELS]
    for level in LEVELS:
        # Six deviations of a share of the 360 test rows.
        assert abs(figures["coverage"][f"{level:g}"] - level) < 6 * math.sqrt(level * (1 - level) / 360)
    assert len(figures["latent_curve"]) == len(figures["hdr_curve"]) == len(CURVE)
    assert figures["latent_curve"] == sorted(figures["latent_curve"])


def test_the_volume_of_a_gaussian_region_is_known(right, wide):
    area = math.pi * -2 * math.log(0.1)
    for figures, scale in ((right[1]["BASE"], 1.0), (wide[1]["BASE"], 2.0)):
        assert figures["median_volume"] == pytest.approx(area * scale**2, rel=0.05)
        assert figures["log_volume"] == pytest.approx(math.log(area * scale**2), abs=0.05)
    assert wide[1]["LR-stacked"]["log_volume"] == pytest.approx(math.log(area), abs=0.15)


def test_the_energy_score_of_a_gaussian_is_near_its_expectation(right):
    # E|Y'-Y| - E|Y'-Y''|/2 = E|N(0, 2 I)|/2 in two dimensions.
    expected = math.sqrt(math.pi) / 2
    assert right[1]["BASE"]["energy_score"] == pytest.approx(expected, abs=0.08)
    assert right[1]["HDR-R"]["energy_score"] == pytest.approx(right[1]["BASE"]["energy_score"], abs=0.02)


def test_hdr_recalibration_lowers_the_energy_score_of_a_wide_model(wide):
    scores = {name: wide[1][name]["energy_score"] for name in METHODS}
    assert scores["HDR-R"] < scores["BASE"] - 0.05
    assert scores["HDR-R"] == pytest.approx(scores["LR-stacked"], abs=0.03)


def test_one_pool_gives_the_energy_score_itself(generator):
    samples, y = torch.randn(20, 7, 3, generator=generator), torch.randn(7, 3, generator=generator)
    own = pooled_energy_score(samples, y, torch.tensor([20]), torch.ones(1, dtype=torch.float64))
    torch.testing.assert_close(own, energy_score(samples.double(), y.double()))


def test_pools_stand_for_two_sets_drawn_independently(generator):
    """A mixture of a near and a far pool; 20,000 sets leave an error of the mean below 0.003."""
    sizes, shares = torch.tensor([2, 3]), torch.tensor([0.7, 0.3], dtype=torch.float64)
    centre = torch.tensor([0.0, 0.0, 4.0, 4.0, 4.0])[:, None, None]
    samples = centre + torch.randn(5, 20_000, 2, generator=generator)
    own = pooled_energy_score(samples, torch.zeros(20_000, 2), sizes, shares).mean()
    near = torch.rand(2, 20_000, generator=generator) < 0.7
    first, second = (
        torch.where(chosen[:, None], 0.0, 4.0) + torch.randn(20_000, 2, generator=generator)
        for chosen in near
    )
    expected = first.norm(dim=-1).mean() - (first - second).norm(dim=-1).mean() / 2
    assert float(own) == pytest.approx(float(expected), abs=0.05)


def test_hdr_figures_are_those_of_the_algorithm_on_average(wide):
    """Four repetitions each; the difference has a deviation of 0.003."""
    run, _ = wide
    calibrated = calibrate("HDR-R", run)
    x, y = run.split.test
    own, published = [], []
    for seed in range(4):
        source = torch.Generator().manual_seed(seed)
        sets = [calibrated.prerank(x).sample((100,), generator=source) for _ in range(2)]
        published.append(float(energy_score(sets[0], y, sets[1]).mean()))
        figures = evaluate(replace(run, spec=RunSpec("toy", "maf", seed)), calibrated)
        own.append(figures["energy_score"])
    assert statistics.mean(own) == pytest.approx(statistics.mean(published), abs=0.015)
    nll = float(-calibrated.prerank(x).log_prob(y).mean())
    assert figures["nll"] == pytest.approx(nll, abs=0.05)


def test_two_models_share_their_random_numbers(wide):
    run, _ = wide
    base, lr = (calibrate(name, run).model for name in ("BASE", "LR-stacked"))
    first, second = (torch.cat([part.y for part in draw_samples(run, model)], 1) for model in (base, lr))
    along = torch.nn.functional.cosine_similarity(first, second, dim=-1)
    assert float(along.min()) > 0.999
    assert first.shape == (100, len(run.split.test.y), DIM)


def test_densities_of_samples_are_those_of_the_model(wide):
    run, _ = wide
    for part in draw_samples(run, latent_flow(run.flow), samples=7):
        expected = run.flow(run.split.test.x[part.rows]).log_prob(part.y)
        torch.testing.assert_close(part.log_prob, expected)


class Undecodable(ConditionalFlow):
    """A flow that can be measured but not sampled."""

    def __init__(self, flow):
        super().__init__(flow.base)
        self.inner = flow

    def encode(self, y, x=None):
        return self.inner.encode(y, x)

    def decode(self, z, x=None):
        raise RuntimeError("12 of 100 points could not be decoded")


def test_a_flow_that_cannot_be_sampled_keeps_its_other_figures():
    run = gaussian_run(2.0, Undecodable(scaled_gaussian(DIM, 2.0)))
    figures = evaluate(run, calibrate("LR-stacked", run))
    assert "could not be decoded" in figures["sampling_error"]
    assert figures["l_ece"] < 0.06
    assert "energy_score" not in figures


def test_a_figure_that_is_not_a_number_is_an_error(wide, monkeypatch):
    run, _ = wide
    broken = replace(
        run, latents=replace(run.latents, test_log_det=torch.full_like(run.latents.test_log_det, math.nan))
    )
    with pytest.raises(FloatingPointError, match="nll"):
        evaluate(broken, Calibrated("BASE", latent_flow(run.flow)))


def test_figures_of_samples_rest_on_the_first_rows_and_the_nll_on_all(wide, monkeypatch):
    """60 of 360 rows: the NLL of HDR-R is the base's on all rows, and only the step from it on the first."""
    run, whole = wide
    monkeypatch.setattr("studies.tabular.sampling.SAMPLED_ROWS", 60)
    for name in ("BASE", "LR-stacked", "HDR-R"):
        figures = evaluate(run, calibrate(name, run))
        assert figures["sampled_rows"] == 60 < whole[name]["sampled_rows"] == 360
        assert figures["nll"] == pytest.approx(whole[name]["nll"], abs=0.15 if name == "HDR-R" else 1e-9)
        assert figures["nll"] - figures["nll_minus_base"] == pytest.approx(whole["BASE"]["nll"], abs=1e-9)
        assert 0 < abs(figures["energy_score"] - whole[name]["energy_score"]) < 0.2


def test_without_samples_there_is_no_figure_of_them_and_all_others_are_the_same(wide):
    run, whole = wide
    figures = evaluate(run, calibrate("LR-stacked", run), samples=0)
    assert figures["sampling_error"] == "no samples were asked for"
    of_samples = {"sampled_rows", "energy_score", "hdr_ece", "hdr_curve", "log_volume", "median_volume"}
    assert set(whole["LR-stacked"]) - set(figures) == of_samples
    for name in ("nll", "l_ece", "latent_curve", "coverage"):
        assert figures[name] == pytest.approx(whole["LR-stacked"][name])
