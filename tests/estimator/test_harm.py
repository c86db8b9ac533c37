"""Recalibration that would do harm is refused, said, and can be forced or undone."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

import latentcal as lc
from latentcal.estimator import FlowRegressor, RecalibrationRefused, TablePredictor
from latentcal.estimator.harm import measure_held_out_change


def rows(n, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, x @ [[1.0, 0.5], [0.0, 2.0]] + scale * random.normal(size=(n, 2))


def fitted(recalibration="scaled"):
    return FlowRegressor("linear_gaussian", recalibration=recalibration, random_state=0).fit(*rows(400))


def drift(n, seed=0):
    """Rows in time order whose noise falls to a twentieth: a law of earlier rows is wrong for later ones."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    size = np.where(np.arange(n) < 0.7 * n, 4.0, 0.2)[:, None]
    return x, x @ [[1.0, 0.5], [0.0, 2.0]] + size * random.normal(size=(n, 2))


def test_what_helps_is_done_and_what_harms_later_rows_is_refused():
    model = fitted()
    before = model.model_
    with pytest.warns(RecalibrationRefused, match=r"would make it worse \(NLL \+.* on the last 60 rows"):
        model.recalibrate(*drift(200), order="time")
    assert model.model_ is before
    assert "would make it worse" in model.calibration_
    model.recalibrate(*rows(200, 1, scale=3.0))
    assert model.model_ is not before
    assert model.calibration_.startswith("recalibrated on 200 rows: NLL -")


@pytest.mark.filterwarnings("ignore::latentcal.recalibration.AutocorrelationWarning")
def test_harm_can_be_forced_and_undone_also_from_a_file(tmp_path):
    model = fitted()
    model.recalibrate(*drift(200), order="time", force=True)
    assert "even though that makes it worse, NLL +" in model.calibration_
    model.save(tmp_path / "model")
    again = TablePredictor.load(tmp_path / "model")
    assert again.calibration_ == model.calibration_
    x, y = rows(20, 2)
    np.testing.assert_allclose(again.log_prob(x, y), model.log_prob(x, y))
    again.undo_recalibration()
    assert again.calibration_ == "left as trained: the recalibration was undone"
    np.testing.assert_allclose(
        again.log_prob(x, y), again.base_model_(torch.tensor(x)).log_prob(torch.tensor(y)).numpy()
    )
    assert np.isfinite(again.predict_region(x).bounds()).all()


def test_in_time_order_parts_are_blocks():
    x, y = rows(100)
    x[:, 0] = np.arange(100)
    model = FlowRegressor("linear_gaussian", recalibration=None, order="time").fit(x, y)
    assert float(model.base_model_.x_mean[0]) == pytest.approx(42)  # of rows 0 to 84
    with pytest.raises(ValueError, match="order"):
        FlowRegressor("linear_gaussian", order="backwards").fit(x, y)


def test_a_held_out_change_is_that_of_rows_which_the_repair_has_not_seen():
    """A repair that knows its rows by heart looks perfect on them, and is judged by others."""
    x, y = map(torch.tensor, rows(80))
    flow = fitted().base_model_
    seen = []

    def memorise(flow, x, y, **options):
        seen.append(len(y))
        nearest = torch.cdist(y, y).fill_diagonal_(torch.inf).amin()
        law = lc.ScaledRadius(lc.radius.Chi(2), float(nearest))
        return flow.with_base(flow.base.with_radius(law))

    change = measure_held_out_change(flow, flow, x, y, memorise)
    assert seen == [60] * 4
    assert change.n == 80
    assert change.nll > 1
    assert change.harms
    same = measure_held_out_change(flow, flow, x, y, lambda flow, x, y, **options: flow)
    assert (same.nll, same.energy) == (0, 0)
    assert not same.harms


def test_rows_without_weight_have_no_say():
    x, y = map(torch.tensor, rows(80))
    wrong = torch.arange(80) % 2 == 0
    y = torch.where(wrong[:, None], 50.0, y)
    flow = fitted().base_model_
    weights = (~wrong).double()

    def repair(flow, x, y, weights=None, **options):
        return lc.recalibrate(flow, x, y, weights=weights, fit=lc.ScaledRadius.fit)

    weighted = measure_held_out_change(flow, flow, x, y, repair, weights=weights)
    equal = measure_held_out_change(flow, flow, x, y, repair)
    assert abs(weighted.nll) < 0.1
    assert equal.nll < -10  # control


@pytest.mark.filterwarnings("ignore::latentcal.recalibration.AutocorrelationWarning")
def test_what_was_undone_is_not_advised_again_also_from_a_file(tmp_path):
    quick = {"samples": 10, "permutations": 399}
    model = fitted(recalibration=None)
    advised = model.diagnose(*rows(300, 1, scale=3.0), **quick)
    assert advised.next_step == "`model.recalibrate(X, y)` with held-out rows"  # control
    model.recalibrate(*rows(200, 2, scale=0.3), force=True)
    harmed = model.diagnose(*rows(300, 1, scale=3.0), **quick)
    assert harmed.next_step == "undo the recalibration with `model.undo_recalibration()`"
    model.undo_recalibration()
    model.save(tmp_path / "model")
    for each in (model, TablePredictor.load(tmp_path / "model")):
        report = each.diagnose(*rows(300, 1, scale=3.0), **quick)
        assert "with more than the 200 rows used last time, or newer rows" in report.next_step
    model.recalibrate(*rows(200, 2, scale=3.0))
    model.save(tmp_path / "model")
    assert TablePredictor.load(tmp_path / "model").diagnose(*rows(300, 1, scale=3.0), **quick).next_step == ""
