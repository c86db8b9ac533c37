"""``flow="auto"``: what is tried, what is chosen, and what is done with rows that are few."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

import latentcal as lc
from latentcal.estimator import FewCalibrationRowsWarning, FlowRegressor, TablePredictor
from latentcal.estimator import candidates as candidates_module
from latentcal.estimator import race as race_module
from latentcal.estimator import selection as selection_module
from latentcal.estimator.candidates import SIMPLE, Candidate, CandidateFitter, Fitted, list_flows
from latentcal.estimator.harm import HeldOutChange
from latentcal.estimator.race import recalibrated_log_prob
from latentcal.estimator.selection import Budget, select
from latentcal.files import ModelFileError
from latentcal.flows import AveragedFlow, LinearGaussianFlow, LocationScale, TrainingLog, WeightedFlow
from latentcal.radius import Chi

AT_ONCE = 1e-9  # seconds: the first candidate, ridge regression, alone
LINEAR, ADDITIVE = (str(candidate) for candidate in SIMPLE[:2])


def waves(n, seed=0):
    """Outputs that no line predicts: noise of a tenth around a wave."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, size=(n, 2))
    mean = np.stack([np.sin(3 * x[:, 0]), x[:, 1] ** 2], 1)
    return x, mean + 0.1 * random.normal(size=(n, 2))


def lines(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, x @ [[1.0, 0.5], [0.0, 2.0]] + random.normal(size=(n, 2))


class FakeFitter:
    """Fits nothing: a candidate is a normal law around a shift, of which ``shifts`` has one for each."""

    shifts: ClassVar[dict] = {}
    fits: ClassVar[list] = []
    fails: ClassVar[dict] = {}

    def __init__(self, x, y, *_, **__):
        self.y, self.dim, self.log, self.fold = y, y.shape[1], TrainingLog(), torch.arange(len(y)) % 5

    def fit(self, candidate):
        type(self).fits.append(candidate)
        name = str(candidate)
        if name in self.fails:
            raise self.fails[name]
        shift = torch.full((self.dim,), float(self.shifts.get(name, 0.35))).double()
        flow = LinearGaussianFlow(None, shift, torch.eye(self.dim).double())
        return Fitted(flow, [flow] * 5)


@pytest.fixture
def race(monkeypatch):
    """Selects among fake fits of normal rows, each judged by its fold."""
    monkeypatch.setattr(selection_module, "CandidateFitter", FakeFitter)
    monkeypatch.setattr(race_module, "recalibrated_log_prob", lambda log_prob, *_: log_prob)
    monkeypatch.setattr(FakeFitter, "fits", [])

    def run(shifts, n=500, members=2, seen=None):
        FakeFitter.shifts = shifts
        generator = torch.Generator().manual_seed(0)
        y, x = (torch.randn(n, 2, generator=generator).double() for _ in range(2))
        return select(x, y, seen, budget=Budget(members))

    return run


def chosen(choice):
    return choice.selection.tried[choice.selection.chosen].name


def test_the_one_ahead_is_chosen(race):
    best = str(Candidate("ridge_scale"))
    choice = race({best: 0.0, LINEAR: 2.0, "Gaussian process": 3.0})
    assert chosen(choice) == best
    tried = {each.name: each for each in choice.selection.tried}
    assert len(tried) >= len(SIMPLE) + len(list_flows("ridge", 2))
    assert all(each.judged == 500 for each in tried.values())
    # Its standard error is 0.35 / sqrt(250): beyond 0.1 with probability 1e-5.
    assert abs(tried["boosted trees"].behind - 0.1225) < 0.1
    assert f"-> {best}" in str(choice.selection)


def test_the_simplest_of_equals_is_chosen(race):
    every = {str(each): 0.0 for each in (*SIMPLE, *list_flows("ridge", 2))}
    assert chosen(race(every)) == LINEAR
    assert chosen(race({**every, LINEAR: 0.4})) == ADDITIVE


def test_rows_that_are_not_seen_judge(race):
    seen = torch.arange(500) < 400
    best = str(Candidate("ridge_scale"))
    choice = race({best: 0.0}, seen=seen)
    assert chosen(choice) == best
    assert {each.judged for each in choice.selection.tried} == {100}


def test_models_that_err_on_either_side_are_averaged(race, monkeypatch):
    """The mean of shifts of 1 and -1 is no shift: half a nat an output better than either."""
    others = (*SIMPLE[2:], *list_flows("ridge", 2), *list_flows("ridge_scale", 2))
    monkeypatch.setattr(FakeFitter, "fails", {str(each): ValueError("not now") for each in others})
    choice = race({LINEAR: 1.0, ADDITIVE: -1.0})
    assert chosen(choice) == "weighted mean of these"
    assert isinstance(choice.flow, WeightedFlow)
    shares = {each.name: each.weight for each in choice.selection.tried}
    # The weights have standard errors of about 0.02 each.
    assert abs(shares[LINEAR] - 0.5) < 0.12
    assert abs(shares[ADDITIVE] - 0.5) < 0.12
    assert f"{shares[LINEAR]:.2f}" in str(choice.selection)
    tried = {each.name: each for each in choice.selection.tried}
    # Half the squared shifts of two outputs; the standard error is 0.06.
    assert abs(tried[LINEAR].behind - 1.0) < 0.3


def test_of_those_alike_in_likelihood_draws_decide(race, monkeypatch):
    monkeypatch.setattr(race_module, "_TIED", 1e6)  # all are alike in likelihood
    assert chosen(race({LINEAR: 1.0, ADDITIVE: 0.0})) == ADDITIVE
    monkeypatch.setattr(race_module, "is_energy_worse", lambda *_, **__: False)
    assert chosen(race({LINEAR: 1.0, ADDITIVE: 0.0})) == LINEAR


def test_a_small_budget_tries_fewer_models(race):
    race({})
    many = [str(each) for each in FakeFitter.fits]
    FakeFitter.fits.clear()
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(500, 2, generator=generator).double() for _ in range(2))
    select(x, y, budget=Budget.of("fast"))
    few = [str(each) for each in FakeFitter.fits]
    assert "boosted trees" in many
    assert "boosted trees" not in few
    assert len(few) < len(many)
    assert max(each.members for each in FakeFitter.fits) == 5


@pytest.mark.usefixtures("race")
@pytest.mark.parametrize(("ensemble", "most"), [(None, 5), (8, 8)])
def test_many_rows_need_fewer_flows_unless_a_number_is_given(ensemble, most):
    generator = torch.Generator().manual_seed(0)
    y, x = (torch.randn(1200, 2, generator=generator).double() for _ in range(2))
    select(x, y, budget=Budget.of("balanced", ensemble))
    assert max(each.members for each in FakeFitter.fits) == most


def test_what_cannot_be_fitted_is_left_out_and_an_error_where_nothing_can(race, monkeypatch):
    monkeypatch.setattr(FakeFitter, "fails", {LINEAR: ValueError("no scale"), "flow": ArithmeticError()})
    choice = race({})
    assert LINEAR not in [each.name for each in choice.selection.tried]
    every = (*SIMPLE, *list_flows("ridge", 2))
    monkeypatch.setattr(FakeFitter, "fails", {str(each): ValueError("no scale") for each in every})
    with pytest.raises(ValueError, match="None of the models could be fitted: no scale"):
        race({})


class HalfBlind(LinearGaussianFlow):
    """Has no density where the first output is above 1."""

    def triangle(self, x):
        triangle = super().triangle(x)
        every = triangle.every

        def blind(y):
            z, log_slope = every(y)
            return z, torch.where(y[..., :1] > 1, math.nan, log_slope)

        triangle.every = blind
        return triangle


def test_a_row_without_density_counts_against_a_model(race, monkeypatch):
    shifts = {LINEAR: 0.3, ADDITIVE: 0.0}
    assert chosen(race(shifts)) == ADDITIVE

    def fit(self, candidate, fit=FakeFitter.fit):
        fitted = fit(self, candidate)
        blind = HalfBlind(None, fitted.flow.bias, fitted.flow.scale_tril)
        return Fitted(blind, [blind] * 5) if str(candidate) == ADDITIVE else fitted

    monkeypatch.setattr(FakeFitter, "fit", fit)
    assert chosen(race(shifts)) == LINEAR


def test_an_output_that_is_hardly_ever_another_one_is_no_error():
    X, Y = lines(100)
    Y[:, 1] = 0.0
    Y[:3, 1] = [1.0, 2.0, 3.0]
    how = {"outputs": "real", "recalibration": None, "max_epochs": 1, "random_state": 0}
    model = FlowRegressor(budget="fast", **how).fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


def test_an_interrupt_ends_the_search_with_the_best_so_far(race, monkeypatch):
    def stop(self, candidate, fit=FakeFitter.fit):
        if candidate.members:
            self.log = TrainingLog(stopped="interrupted in epoch 1")
        return fit(self, candidate)

    monkeypatch.setattr(FakeFitter, "fit", stop)
    choice = race({LINEAR: 0.0})
    assert chosen(choice) == LINEAR
    assert "Not all were tried: interrupted." in str(choice.selection)


def test_a_budget_of_seconds_ends_the_search():
    X, Y = lines(60)
    model = FlowRegressor(budget=AT_ONCE, random_state=0).fit(X, Y)
    assert [each.name for each in model.selection_.tried] == [LINEAR]
    assert "the budget of 1e-09 s was spent" in str(model.selection_)


@pytest.mark.parametrize("budget", ["quick", 0, -1.0, True, None])
def test_other_budgets_are_refused(budget):
    with pytest.raises(ValueError, match=r"one of \['fast', 'balanced', 'best'\] or a number of seconds"):
        FlowRegressor(budget=budget).fit(*lines(60))


def test_a_wave_is_not_given_to_a_line_and_a_line_loses_nothing():
    # 150 rows: a line explains a third of the wave at best, and the gap to it is above a nat.
    def compare(rows):
        auto = FlowRegressor(budget="fast", max_epochs=5, random_state=0)
        line = FlowRegressor("linear_gaussian", random_state=0)
        return (model.fit(*rows(150)).score(*rows(500, 1)) for model in (auto, line))

    chosen, line = compare(waves)
    assert chosen > line + 0.5
    chosen, line = compare(lines)
    # Six means, four slopes and three covariances of 150 rows cost about 0.05 nats each way.
    assert chosen > line - 0.15


def test_few_rows_are_held_out_in_turn_and_all_of_them_calibrate():
    X, Y = lines(200)
    model = FlowRegressor(budget=AT_ONCE, random_state=0).fit(X, Y)
    assert model.selection_.tried[0].judged == 200
    assert model.model_.recalibration is None or model.model_.recalibration.n == 200
    assert "200 rows, each held out once" in model.calibration_
    # Norms of rows that their flow has not seen: 90 % of them lie in the ball of 90 %, whatever is done. The
    # share of 200 rows is within 0.09 of it with probability above 0.9999.
    X, Y = lines(2000, 1)
    inside = model.predict_region(X, coverage=0.9).contains(Y)
    assert abs(float(np.mean(inside)) - 0.9) < 0.09


def test_many_rows_are_split_and_the_last_ones_calibrate_in_time_order():
    X, Y = lines(1000)
    model = FlowRegressor(budget=AT_ONCE, random_state=0).fit(X, Y)
    assert model.selection_.tried[0].judged == 850  # each in its turn, without those that calibrate
    assert len(model._norms) == 150
    in_time = FlowRegressor(budget=AT_ONCE, random_state=0, order="time").fit(X[:400], Y[:400])
    assert in_time.selection_.tried[0].judged == 60
    rows = torch.tensor(X[340:400]), torch.tensor(Y[340:400])
    norms = lc.latent_norms(in_time.base_model_, *rows).sort().values
    torch.testing.assert_close(in_time._norms, norms)


def test_harm_out_of_fold_is_refused(monkeypatch):
    monkeypatch.setattr(HeldOutChange, "harms", True)
    model = FlowRegressor(budget=AT_ONCE, random_state=0).fit(*lines(100))
    assert model.model_ is model.base_model_
    assert "recalibration would make it worse (NLL" in model.calibration_
    assert np.isfinite(model.predict_region(lines(3)[0]).bounds()).all()


def test_very_few_rows_are_given_to_a_line():
    with pytest.warns(FewCalibrationRowsWarning):
        model = FlowRegressor(random_state=0).fit(*lines(12))
    assert model.selection_ is None
    assert isinstance(model.base_model_.flow, LinearGaussianFlow)


def test_an_ensemble_has_a_latent_and_all_that_needs_one():
    X, Y = lines(80)
    model = FlowRegressor("autoregressive", ensemble=2, max_epochs=2, random_state=0).fit(X, Y)
    assert isinstance(model.base_model_.flow, AveragedFlow)
    assert len(model.base_model_.flow.flows) == 2
    assert [each.name for each in model.selection_.tried] == ["mean of 2 flows"]
    assert np.isfinite(model.predict_quantile(X[:3], [0.1, 0.9])).all()
    assert np.isfinite(model.predict_region(X[:3]).bounds()).all()
    with pytest.raises(ValueError, match=r"flow='auto' or flow='autoregressive', got 'convex_potential'"):
        FlowRegressor("convex_potential", ensemble=2).fit(X, Y)


def test_a_chosen_model_is_saved_with_what_was_tried(tmp_path):
    X, Y = waves(120)
    model = FlowRegressor(budget="fast", max_epochs=2, random_state=0).fit(X, Y)
    model.save(tmp_path / "model")
    again = TablePredictor.load(tmp_path / "model")
    assert again.selection_ == model.selection_
    assert str(again.selection_) == str(model.selection_)
    np.testing.assert_allclose(again.log_prob(X, Y), model.log_prob(X, Y))
    assert len(model.selection_.tried) > 4


@pytest.mark.parametrize("broken", ['"chosen": 7', '"chosen": -1', '"chosen": "0"'])
def test_a_file_whose_choice_is_none_of_those_tried_is_refused(tmp_path, broken):
    FlowRegressor(budget=AT_ONCE, random_state=0).fit(*lines(60)).save(tmp_path / "model")
    path = next(path for path in (tmp_path / "model").iterdir() if '"chosen"' in path.read_text("latin1"))
    path.write_text(path.read_text().replace('"chosen": 0', broken))
    with pytest.raises(ModelFileError, match=r"selection_|checksum|changed"):
        TablePredictor.load(tmp_path / "model")


@pytest.mark.parametrize("candidate", list_flows("ridge", 1)[1:], ids=str)
def test_every_flow_above_a_stage_keeps_its_promises(candidate):
    X, Y = (torch.tensor(part) for part in waves(80))
    flow = CandidateFitter(X, Y, training={"max_epochs": 2}).fit(candidate).flow
    assert isinstance(flow, LocationScale)
    lc.check_flow(flow, X, Y, tolerance=1e-3).require()


def test_what_candidates_share_is_fitted_once_and_members_are_kept():
    X, Y = (torch.tensor(part) for part in lines(80))
    fitter = CandidateFitter(X, Y, training={"max_epochs": 1})
    one, two = (fitter.fit(Candidate("ridge", members)).flow for members in (1, 2))
    assert one.stage is two.stage
    assert one.flow.flows[0] is two.flow.flows[0]
    assert len(two.flow.flows) == 2


def test_a_mean_of_flows_without_a_fold_has_not_seen_it(monkeypatch):
    """Other outputs in one fold change all models but the one without this fold."""
    X, Y = (torch.tensor(part) for part in lines(100))
    fold = torch.arange(100) % 5
    monkeypatch.setattr(candidates_module, "fold_numbers", lambda *_, **__: fold)
    # One epoch: what ends training is told by all rows.
    fits = [
        CandidateFitter(X, values, training={"max_epochs": 1}).fit(Candidate(None, 5))
        for values in (Y, torch.where((fold == 2)[:, None], -Y, Y))
    ]
    with torch.no_grad():
        before, after = ([each(X).log_prob(Y) for each in fit.by_fold] for fit in fits)
    torch.testing.assert_close(before[2], after[2], rtol=0, atol=1e-6)
    assert all(float((before[k] - after[k]).abs().max()) > 1e-3 for k in (0, 1, 3, 4))


def test_two_numbers_tell_most_of_what_a_law_of_the_norm_would_mend():
    """Norms of r = a rho^b are mended by exactly this law, up to a thousandth; chi ones stay."""
    generator = torch.Generator().manual_seed(0)
    rho = torch.randn(4000, 3, generator=generator, dtype=torch.float64).norm(dim=-1)
    fold, weights = torch.arange(4000) % 5, torch.ones(4000).double()
    chi = Chi(3)
    for scale, power in ((1.0, 1.0), (1.5, 1.0), (0.8, 1.6)):
        norms = scale * rho**power
        after = recalibrated_log_prob(chi.log_prob(norms), norms, 3, fold, weights)
        truth = chi.log_prob(rho) - torch.log(scale * power * rho ** (power - 1))
        # Powers lie on a grid of 5 %, which costs less than 0.002 nats; two numbers cost 2 / 4000.
        assert abs(float((after - truth).mean())) < 0.005
    assert float((chi.log_prob(norms) - truth).mean()) < -0.05
