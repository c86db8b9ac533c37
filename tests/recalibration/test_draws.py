"""Rungs whose draws explode: likelihood alone chose them."""

import math
from types import SimpleNamespace

import pytest
import torch

import latentcal as lc
from latentcal.base import standard_normal, uniform_ball
from latentcal.fingerprint import Fingerprint
from latentcal.flow import ConditionalFlow
from latentcal.radius import Chi, ScaledRadius
from latentcal.radius.mixture import MixtureRadius
from latentcal.recalibration.draws import MOST_OUTPUTS, DrawComparison
from latentcal.recalibration.maps import Chain
from latentcal.recalibration.rows import LatentRows, Outputs
from latentcal.recalibration.rungs import FittedRung
from toys import scaled_gaussian

FOLDS = 2


class Cliff(ConditionalFlow):
    """The identity up to 3.5 of the first latent; beyond, the first output grows without measure."""

    def __init__(self, failing: bool = False):
        super().__init__(standard_normal(2))
        self.failing = failing

    def encode(self, y, x=None):
        return y, y.new_zeros(y.shape[:-1])

    def decode(self, z, x=None):
        beyond = (z[..., :1] - 3.5).clamp(min=0)
        if self.failing and bool((beyond > 1.5).any()):
            raise RuntimeError("no solution")
        return torch.cat([z[..., :1] * torch.exp(8 * beyond), z[..., 1:]], -1)


def long_latents(n=28):
    """Latents twice as long as the flow thinks, none of them beyond the cliff; too few rows for maps."""
    z = 2 * torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.stack([-z[:, 0].abs(), z[:, 1]], 1)


def comparison(flow, y, **more) -> DrawComparison:
    rows = LatentRows(
        flow.latent(y), None, torch.ones(len(y)).double(), Fingerprint.of(None, y), Outputs.of(y, None, flow)
    )
    return DrawComparison(rows, flow.base, torch.arange(len(y)) % FOLDS, contiguous=False, **more)


def wider(scale: float, dim: int = 2) -> list[FittedRung]:
    return [FittedRung(Chain([]), ScaledRadius(Chi(dim), scale))] * FOLDS


def test_a_rung_whose_draws_explode_is_refused_and_the_record_says_why():
    y = long_latents()
    tame = lc.autocalibrate(scaled_gaussian(2, 1.0), None, y).recalibration.ladder
    assert tame.names[tame.chosen] == "radial"  # control: by likelihood, and these draws stay near
    model = lc.autocalibrate(Cliff(), None, y)
    ladder = model.recalibration.ladder
    assert ladder.names[ladder.chosen] == "unchanged"
    assert [bool(why) for why in ladder.refusals] == [False, True]
    assert not ladder.is_refuted
    text = str(model.recalibration)
    assert "Refused: radial;" in text
    assert "by more than 3 times their range" in text
    assert "the best that was not refused" in text
    assert float(model().sample((4000,), torch.Generator().manual_seed(0)).abs().max()) < 1e3


def test_refusals_are_saved_with_the_model(tmp_path):
    flow = Cliff()
    lc.save(lc.autocalibrate(flow, None, long_latents()), tmp_path / "model")
    ladder = lc.load(tmp_path / "model", flow=flow).recalibration.ladder
    assert "3 times their range" in ladder.refusals[1]


def test_a_rung_that_raises_the_energy_score_is_refused():
    y = torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    compared = comparison(scaled_gaussian(2, 1.0), y)
    assert "raises the energy score" in compared.refusal(wider(2.5))
    assert "times their range" in compared.refusal(wider(40.0))
    assert compared.refusal(wider(1.0)) == ""


def test_the_plain_law_is_refused_for_clear_harm_only():
    y = torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    compared = comparison(scaled_gaussian(2, 1.0), y)
    law = MixtureRadius([Chi(2), ScaledRadius(Chi(2), 40.0)], torch.tensor([0.995, 0.005]).double())
    rare = FittedRung(Chain([]), law)
    assert "times their range" in compared.refusal([rare] * FOLDS)  # far draws are about 1 in 200
    assert compared.refusal([rare] * FOLDS, plain=True) == ""
    assert "times their range" in compared.refusal(wider(40.0), plain=True)  # control: nearly all are far
    assert "raises the energy score" in compared.refusal(wider(2.5), plain=True)


def test_a_rung_that_lacks_the_fit_of_a_fold_is_an_error_and_not_a_comparison_with_other_draws():
    y = torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match="2 folds need 2 fits of a rung, got 1"):
        comparison(scaled_gaussian(2, 1.0), y).refusal(wider(2.5)[:1])


def test_a_flow_that_is_out_of_range_itself_does_not_block_a_rung_that_is_no_worse():
    y = 0.02 * torch.randn(300, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    compared = comparison(scaled_gaussian(2, 1.0), y)
    assert compared.refusal(wider(0.02)) == ""
    assert compared.refusal(wider(0.9)) == ""  # still far out, and less so
    assert float(compared.unchanged[1].mean()) > 0.5
    assert compared.refusal(wider(3.0)) != ""


@pytest.mark.parametrize("error", [NotImplementedError(), RuntimeError("no inverse")])
def test_a_flow_that_cannot_decode_is_recalibrated_and_the_record_says_so(error):
    class OneWay(Cliff):
        def decode(self, z, x=None):
            raise error

    ladder = lc.autocalibrate(OneWay(), None, long_latents()).recalibration.ladder
    assert ladder.names[ladder.chosen] == "radial"
    assert type(error).__name__ in ladder.unexamined
    assert "Draws were not compared: the flow cannot decode them" in str(ladder)


def test_a_rung_whose_draws_cannot_be_decoded_is_refused():
    ladder = lc.autocalibrate(Cliff(failing=True), None, long_latents()).recalibration.ladder
    assert ladder.names[ladder.chosen] == "unchanged"
    assert "RuntimeError: no solution" in ladder.refusals[1]


def test_a_flow_of_very_many_outputs_is_not_sampled():
    y = torch.zeros(4, MOST_OUTPUTS + 1)
    compared = comparison(scaled_gaussian(1, 1.0).with_base(standard_normal(1)), torch.zeros(4, 1))
    assert "same value in all calibration rows" in compared.obstacle
    rows = LatentRows(y.double(), None, torch.ones(4).double(), Fingerprint.of(None, y))
    compared = DrawComparison(rows, standard_normal(MOST_OUTPUTS + 1), torch.arange(4) % 2, contiguous=False)
    assert "too many to sample" in compared.obstacle
    assert compared.refusal([]) == ""


def test_the_number_of_draws_is_bounded_and_rows_are_chosen_whatever_their_order():
    y = torch.randn(1000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    flow = scaled_gaussian(3, 1.0)
    compared, turned = comparison(flow, y), comparison(flow, y.flip(0))
    assert compared.samples * len(compared.rows) <= 8192
    torch.testing.assert_close(compared.rows.z, turned.rows.z)


def test_latents_of_several_flows_are_decoded_by_their_own():
    flows = (scaled_gaussian(1, 1.0), scaled_gaussian(1, 5.0))
    outputs = Outputs(torch.zeros(3, 1), None, flows, torch.tensor([0, 1, 0]))
    y = outputs.decode(torch.ones(2, 3, 1, dtype=torch.float64))
    torch.testing.assert_close(y[..., 0], torch.tensor([[1.0, 5.0, 1.0]], dtype=torch.float64).expand(2, 3))


def test_a_flow_trained_on_its_own_rows_does_not_speak_for_its_rungs():
    # Least squares with 8 features on 28 rows: on these rows themselves its draws are too good.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(28, 8, generator=generator, dtype=torch.float64)
    y = x[:, :2] + torch.randn(28, 2, generator=generator, dtype=torch.float64)

    def make(x, y):
        weights = torch.linalg.lstsq(x, y).solution
        left = y - x @ weights
        factor = torch.linalg.cholesky(left.T @ left / len(y))
        return lc.flows.LinearGaussianFlow(weights.T, torch.zeros(2).double(), factor)

    ladder = lc.cross_calibrate(make, x, y, folds=2).recalibration.ladder
    assert ladder.chosen > 0
    assert not ladder.unexamined
    assert math.isfinite(ladder.gains[ladder.chosen])


def test_latents_of_a_ball_get_radii_inside_of_it():
    """At its surface itself a flow may decode to infinity."""
    law = SimpleNamespace(upper=1.0, sample_untabulated=lambda shape, source: torch.ones(shape).double())
    z = torch.full((4, 3, 2), 0.3)
    moved = DrawComparison._with_law(SimpleNamespace(base=uniform_ball(2)), z, law, torch.Generator())
    norms = torch.linalg.vector_norm(moved.double(), dim=-1)
    assert bool(((norms > 1 - 3e-7) & (norms < 1 - 5e-8)).all())  # one step of float32 is 1.2e-7
