import pytest
import torch
from toy_study import load, spec

import latentcal as lc
from studies.tabular import METHODS, calibrate, train_or_load
from studies.tabular.methods import attach, latent_flow

LATENT = [name for name in METHODS if name != "HDR-R"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_or_load(spec(max_epochs=40), load=load, cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def calibrated(run):
    return {name: calibrate(name, run) for name in METHODS}


@pytest.mark.parametrize("name", LATENT)
def test_the_model_of_latents_and_the_one_of_y_are_the_same(name, run, calibrated):
    model = calibrated[name].model
    x, y = run.split.test
    with torch.no_grad():
        from_latents = model(x).log_prob(run.latents.test_z.double()) + run.latents.test_log_det
        from_y = attach(model, run.flow)(x).log_prob(y)
    torch.testing.assert_close(from_y.double(), from_latents, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("LR-KDE", lc.GammaKDE.fit),
        ("LR-spline", lc.SplineRadius.fit),
        ("LR-stacked", lc.StackedRadius.fit),
        ("LR-conditional", lc.ConditionalRadius.fit),
    ],
)
def test_cached_latents_give_what_recalibrate_gives(name, fit, run, calibrated):
    direct = lc.recalibrate(run.flow, *run.split.validation, fit=fit, discrete="ignore")
    x, y = run.split.test
    with torch.no_grad():
        expected = direct(x).log_prob(y)
        own = attach(calibrated[name].model, run.flow)(x).log_prob(y)
    torch.testing.assert_close(own, expected, atol=2e-3, rtol=2e-3)


def test_auto_gives_what_autocalibrate_gives(run, calibrated):
    direct = lc.autocalibrate(run.flow, *run.split.validation, discrete="ignore")
    ladder = direct.recalibration.ladder
    assert calibrated["auto"].detail["rung"] == ladder.names[ladder.chosen]


def test_alignment_puts_right_a_shift_that_no_radius_can(run):
    moved = trained_with_moved_latents(run)
    x, z = moved.split.test.x, moved.latents.test_z.double()
    nll = {
        name: float(-calibrate(name, moved).model(x).log_prob(z).mean())
        for name in ("BASE", "LR-stacked", "LR-aligned")
    }
    assert nll["LR-aligned"] < nll["LR-stacked"] - 0.2
    assert nll["LR-stacked"] < nll["BASE"]


def trained_with_moved_latents(run):
    """The same run whose flow has learned its location wrong."""
    from dataclasses import replace

    latents = replace(run.latents, calibration_z=run.latents.calibration_z + 2, test_z=run.latents.test_z + 2)
    return replace(run, latents=latents)


def test_the_base_is_the_flow_itself(run, calibrated):
    assert calibrated["BASE"].seconds == 0
    assert calibrated["BASE"].model.recalibration is None


def test_hdr_recalibration_counts_all_validation_rows(run, calibrated):
    prerank = calibrated["HDR-R"].prerank
    assert prerank.recalibration.n == len(run.split.validation.y)
    assert prerank.samples == 100
    assert calibrated["HDR-R"].fit_seconds > 0


def test_hdr_recalibration_falls_back_to_float64_with_a_remark(run, monkeypatch):
    from latentcal.flows import ConvexPotentialFlow

    decode = ConvexPotentialFlow.decode

    def steep(flow, z, x=None):
        if z.dtype == torch.float32:
            raise RuntimeError("3 of 100 points could not be decoded")
        return decode(flow, z, x)

    monkeypatch.setattr(ConvexPotentialFlow, "decode", steep)
    result = calibrate("HDR-R", run)
    assert result.prerank.recalibration.n == len(run.split.validation.y)
    assert any("float64" in remark for remark in result.remarks)


def test_both_parts_of_the_time_are_counted(calibrated):
    for name in ("LR-KDE", "auto"):
        result = calibrated[name]
        assert result.encode_seconds > 0
        assert result.seconds == pytest.approx(result.encode_seconds + result.fit_seconds)


def test_the_identity_has_the_base_of_the_flow(run):
    z = torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(latent_flow(run.flow)(None).log_prob(z), run.flow.base.log_prob(z))


def test_an_unknown_method_is_answered_with_the_known_ones(run):
    with pytest.raises(ValueError, match="LR-stacked"):
        calibrate("LR-magic", run)
