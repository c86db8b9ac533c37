"""What the estimator says of outputs that are positive, bounded, counted, rounded, partly 0 or missing."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import latentcal as lc
from latentcal.estimator import (
    FewCalibrationRowsWarning,
    FlowRegressor,
    GuessedKindsWarning,
    TablePredictor,
)
from latentcal.estimator.flow_fitting import FlowFitter
from latentcal.files import ModelFileError
from latentcal.outputs import dequantize, guess_cautiously
from uniformity import distance_to_uniform, uniform_limit

DECLARED = {
    "price": "positive",
    "share": "unit",
    "visits": "count",
    "delay": "rounded(0.5, 0)",
    "rain": "positive + 0",
}


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    x, e = rng.normal(size=(n, 2)), rng.normal(size=(n, 4))
    outputs = {
        "price": np.exp(1 + 0.5 * x[:, 0] + 0.4 * e[:, 0]),
        "share": 1 / (1 + np.exp(-x[:, 0] - e[:, 1])),
        "visits": rng.poisson(np.exp(0.7 + 0.4 * x[:, 0])).astype(float),
        "delay": np.round(2 * np.exp(0.3 * x[:, 1] + 0.4 * e[:, 3])) / 2,
        "rain": np.where(e[:, 2] + x[:, 0] > 0, np.exp(0.5 * e[:, 3]), 0.0),
    }
    return pd.DataFrame(x, columns=["a", "b"]), pd.DataFrame(outputs)


def fitted(names, n=700, **parameters):
    X, Y = table(n)
    outputs = {name: DECLARED[name] for name in names}
    how = {"outputs": outputs, "random_state": 0, "draws": 32, **parameters}
    return FlowRegressor("linear_gaussian", **how).fit(X, Y[names])


def is_in_support(name, values):
    kind = lc.flows.Kind.parse(DECLARED[name])
    values = torch.as_tensor(np.asarray(values, dtype=np.float64))
    inside = kind.contains(values) & kind.is_on_grid(values)
    return bool((inside | torch.isin(values, torch.tensor(kind.atoms).to(values))).all())


@pytest.fixture(scope="module")
def all_kinds():
    return fitted(list(DECLARED))


@pytest.fixture(scope="module")
def smooth_and_counted():
    return fitted(["price", "visits"])


@pytest.mark.parametrize("names", [["price", "share"], ["visits"], list(DECLARED)])
def test_no_answer_leaves_the_support(names, all_kinds):
    model = all_kinds if len(names) == 5 else fitted(names)
    X, Y = table(40, seed=1)
    answers = [model.sample(X, 50), model.predict_quantile(X, [0.05, 0.5, 0.95])]
    region = model.predict_region(X, 0.8)
    answers += [np.stack(region.bounds(quick=True)), region.sample(5)]
    for j, name in enumerate(names):
        assert all(is_in_support(name, a[..., j][~np.isnan(a[..., j])]) for a in answers)
    mean = model.predict(X)
    assert bool((mean >= 0).all(axis=None))
    assert "share" not in names or bool((mean["share"] < 1).all())
    assert np.isfinite(model.log_prob(X, Y[names])).all()


def test_probabilities_of_a_count_add_up_and_are_those_of_events():
    model = fitted(["visits"])
    X = table(3, seed=1)[0]
    counts = np.arange(40.0)
    mass = np.exp([model.log_prob(X, pd.DataFrame({"visits": np.full(3, c)})) for c in counts])
    np.testing.assert_allclose(mass.sum(0), 1, atol=1e-3)
    np.testing.assert_allclose(model.probability(X, ([2.0], [4.0])), mass[2:5].sum(0), atol=1e-6)
    np.testing.assert_allclose(model.probability(X, ([2.5], [2.8])), 0, atol=1e-12)
    even = model.probability(X, lambda y, x: y[..., 0] % 2 == 0)
    np.testing.assert_allclose(even, mass[::2].sum(0), atol=0.01)
    np.testing.assert_allclose(model.predict(X)["visits"], counts @ mass, rtol=0.03)
    assert np.isneginf(model.log_prob(X, pd.DataFrame({"visits": [0.5, -1.0, 2.2]}))).all()


def test_an_atom_has_a_probability_and_the_rest_a_density(all_kinds):
    model = fitted(["rain"])
    X = table(2, seed=1)[0]
    dry = np.exp(model.log_prob(X, pd.DataFrame({"rain": [0.0, 0.0]})))
    grid = np.geomspace(1e-4, 1e3, 2000)
    for i in range(2):
        rows = X.iloc[np.full(2000, i)]
        wet = np.exp(model.log_prob(rows, pd.DataFrame({"rain": grid})))
        assert abs(dry[i] + np.trapezoid(wet, grid) - 1) < 0.01
    np.testing.assert_allclose(model.probability(X, ([0.0], [0.0])), dry, rtol=1e-6)
    # Several outputs, of which the others are anything.
    several = all_kinds.probability(X, lambda y, x: y[..., 4] == 0)
    np.testing.assert_allclose(several, dry, atol=0.15)


def test_repeated_values_are_guessed_with_a_warning_and_real_is_silent():
    X, Y = table(400)
    with pytest.warns(GuessedKindsWarning, match=r"visits: count; rain: positive, atom at 0\. Guessed"):
        model = FlowRegressor("linear_gaussian", random_state=0).fit(X, Y[["price", "visits", "rain"]])
    assert [kind.split("(")[0] for kind in model.outputs_] == ["real", "count", "positive + 0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", GuessedKindsWarning)
        real = FlowRegressor("linear_gaussian", outputs="real", recalibration=None, random_state=0)
        assert real.fit(X, Y[["price", "visits"]]).outputs_ == ["real", "real"]
        continuous = FlowRegressor("linear_gaussian", random_state=0).fit(X, Y[["price", "share"]])
    assert continuous.outputs_ == ["real", "real"]


def test_cautious_guesses_change_nothing_where_values_do_not_repeat(generator):
    noise = torch.randn(300, generator=generator, dtype=torch.float64)
    counts = torch.poisson(torch.full((300,), 2.0), generator=generator).double()
    columns = {
        "real": [
            noise,
            noise.exp(),
            torch.sigmoid(noise),
            (100 * noise).round(),
            noise.where(noise > -1.4, -1.4),
        ],
        "count": [counts, counts.clamp(max=2)],
        "ordered(0, 1)": [(noise > 0).double()],
        "count + 0": [counts.where(noise > 0.5, 0.0)],
        "rounded(0.5)": [(2 * noise).round() / 2],
        "positive + 0": [noise.exp().where(noise > -0.5, 0.0)],
        "real + 1": [noise.where(noise > -0.5, 1.0)],
    }
    for kind, each in columns.items():
        assert guess_cautiously(torch.stack(each, 1)) == [kind] * len(each)
    assert guess_cautiously(counts[:90, None]) == ["real"]  # too few rows to be sure


def test_a_fitted_model_tells_missing_outputs_by_the_others(generator):
    x = torch.randn(500, 1, generator=generator, dtype=torch.float64)
    first = x[:, 0] + torch.randn(500, generator=generator, dtype=torch.float64)
    second = torch.exp(first - x[:, 0] + 0.1 * torch.randn(500, generator=generator, dtype=torch.float64))
    model = FlowRegressor("linear_gaussian", outputs=["real", "positive"], random_state=0)
    model.fit(x, torch.stack([first, second], 1))
    at = torch.zeros(2, 1, dtype=torch.float64)
    rest = model.condition(at, [[1.0, np.nan], [np.nan, np.nan]])
    assert rest.method == "exact"
    draws = rest.sample((2000,), torch.Generator().manual_seed(0))
    assert bool((draws[:, 0, 0] - 1.0).abs().max() < 1e-12)
    # exp(1 + 0.1 z), to 0.15 for 350 training rows; without what is known it would be exp(0).
    assert float(draws[:, 0, 1].median()) == pytest.approx(np.e, abs=0.15)
    assert float(draws[:, 1, 1].median()) == pytest.approx(1.0, abs=0.15)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        counts = FlowRegressor("linear_gaussian", outputs="count", random_state=0)
        counts.fit(x, torch.poisson(second[:, None], generator=generator))
    with pytest.raises(ValueError, match="condition takes continuous outputs"):
        counts.condition(at, [[np.nan], [np.nan]])


@pytest.mark.parametrize("ones", [4, 1])
def test_an_output_that_is_0_in_nearly_all_rows_keeps_its_mean(generator, ones):
    """As an ordinary count its cell at 0 had too little of the mass: a mean of 0.09 in place of 0.01."""
    x = torch.randn(600, 2, generator=generator, dtype=torch.float64)
    rare = torch.zeros(600, dtype=torch.float64)
    rare[torch.randperm(600, generator=generator)[:ones]] = 1.0
    visits = torch.poisson(torch.exp(0.5 * x[:, 0]), generator=generator)
    y = torch.stack([visits, rare], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FlowRegressor("linear_gaussian", random_state=0).fit(x, y)
    assert model.outputs_[1].endswith("+ 0")
    draws = model.sample(x, 100)[..., 1]
    # A chance of (k + 1/2) / (n + 1) for k of about 420 training rows, times a mean of at most 2.
    assert 0 < draws.mean() < 0.02
    assert (draws > 8).mean() < 1e-3


def test_regions_of_counts_cover_and_pvalues_are_valid(smooth_and_counted):
    X, Y = table(1500, seed=2)
    Y = Y[["price", "visits"]]
    inside = smooth_and_counted.predict_region(X, 0.9).contains(Y)
    # Beta(95, 11) from 105 calibration rows, and 1,500 rows: below 0.8 with probability below 1e-3.
    assert inside.mean() > 0.8
    assert not smooth_and_counted.predict_region(X[:1], 0.9).contains([[1.0, 0.5]])[0]
    p = smooth_and_counted.anomaly_pvalue(X, Y)
    assert (p <= 0.1).mean() < 0.2
    odd = pd.DataFrame({"price": [1.0], "visits": [60.0]})
    assert smooth_and_counted.anomaly_pvalue(X[:1], odd)[0] < 0.05


def test_the_report_knows_the_kinds(smooth_and_counted):
    X, Y = table(600, seed=3)
    Y = Y[["price", "visits"]]
    report = smooth_and_counted.diagnose(X, Y, permutations=499, samples=20)
    assert "visits: count" in report.notes[0]
    assert not any("have the value" in note or "Rounded outputs" in note for note in report.notes)
    np.testing.assert_allclose(report.measured["NLL"].value, -smooth_and_counted.score(X, Y), atol=1e-6)
    u = smooth_and_counted.latent_pit(X, Y)
    limit = uniform_limit(600) + 0.1  # recalibrated by 105 rows
    assert distance_to_uniform(torch.as_tensor(u)) < limit
    # Control: the same rows, with counts that are twice as large.
    assert distance_to_uniform(torch.as_tensor(smooth_and_counted.latent_pit(X, Y * [1, 3]))) > limit
    with pytest.raises(ValueError, match="'visits' is declared as count"):
        smooth_and_counted.diagnose(X, Y + 0.5)


def test_saved_models_keep_their_kinds(tmp_path, all_kinds):
    X, Y = table(20, seed=1)
    all_kinds.save(tmp_path / "model")
    for kind in (FlowRegressor, TablePredictor):
        again = kind.load(tmp_path / "model")
        assert again.outputs_ == all_kinds.outputs_
        np.testing.assert_allclose(again.predict(X), all_kinds.predict(X))
        np.testing.assert_allclose(again.log_prob(X, Y), all_kinds.log_prob(X, Y))
    all_kinds.outputs_, kinds = ["real", "what", "real", "real", "real"], all_kinds.outputs_
    all_kinds.save(tmp_path / "wrong")
    all_kinds.outputs_ = kinds
    with pytest.raises(ModelFileError, match="outputs_"):
        FlowRegressor.load(tmp_path / "wrong")


def test_rows_that_miss_outputs_train_and_calibrate():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 2))
    noise = rng.normal(size=(1600, 3)) @ np.array([[1.0, 0.8, -0.5], [0.0, 0.6, 0.4], [0.0, 0.0, 0.7]])
    y = x @ rng.normal(size=(2, 3)) + noise
    gaps = np.where(rng.random(y.shape) < 0.6, np.nan, y)[:400]
    some = ~np.isnan(gaps).all(1)
    whole = ~np.isnan(gaps).any(1)
    assert whole.sum() < 45
    how = {"outputs": "real", "random_state": 0}
    model = FlowRegressor("linear_gaussian", **how).fit(x[:400][some], gaps[some])
    assert "complete calibration rows" in model.calibration_  # too few to judge a recalibration by
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dropped = FlowRegressor("linear_gaussian", **how).fit(x[:400][whole], gaps[whole])
    # About 0.3 nats on average over data sets; 1,200 paired rows tell 0.05.
    assert model.score(x[400:], y[400:]) > dropped.score(x[400:], y[400:]) + 0.05
    fewer = np.where(rng.random(y.shape) < 0.15, np.nan, y)[:400]
    fewer = fewer[~np.isnan(fewer).all(1)]
    recalibrated = FlowRegressor("linear_gaussian", **how).fit(x[: len(fewer)], fewer)
    assert "have missing outputs" in recalibrated.calibration_
    trained = FlowRegressor("autoregressive", flow_options={"flows": 1, "hidden": 8}, max_epochs=2, **how)
    assert np.isfinite(trained.fit(x[:400][some], gaps[some]).score(x[400:], y[400:]))


def test_missing_counts_are_learned_with_the_rest():
    X, Y = table(500)
    Y = Y[["price", "visits"]].mask(np.random.default_rng(0).random((500, 2)) < 0.2)
    Y = Y[~Y.isna().all(axis=1)]
    outputs = {"price": "positive", "visits": "count"}
    model = FlowRegressor("linear_gaussian", outputs=outputs, random_state=0).fit(X.loc[Y.index], Y)
    new_X, new = table(300, seed=1)
    assert abs(model.predict(new_X)["visits"].mean() - new["visits"].mean()) < 0.5
    assert is_in_support("visits", model.sample(new_X, 5)[..., 1])


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"visit": "count"}, "did you mean 'visits'"),
        ({"price": "count"}, "'price' is declared as count"),
        (["positive"], "got kinds"),
        ("counts", "did you mean 'count'"),
        (3, "outputs must be a kind such as"),
    ],
)
def test_what_is_no_kind_is_refused(outputs, message):
    X, Y = table(100)
    with pytest.raises(ValueError, match=message):
        FlowRegressor("linear_gaussian", outputs=outputs).fit(X, Y[["price", "visits"]])


def test_gaps_that_cannot_be_used_are_refused():
    X, Y = table(100)
    gaps = Y[["price", "rain"]].copy()
    gaps.iloc[3, 0] = np.nan
    with pytest.raises(
        ValueError, match="has missing values, which cannot be combined with outputs with atoms"
    ):
        FlowRegressor("linear_gaussian", outputs={"rain": "positive + 0"}).fit(X, gaps)
    real = FlowRegressor("linear_gaussian", outputs="real")
    with pytest.raises(ValueError, match="cannot be combined with sample_weight"):
        real.fit(X, gaps, sample_weight=np.ones(100))
    gaps.iloc[3, 1] = np.nan
    with pytest.raises(ValueError, match=r"have no outputs; the first is y\[3\]"):
        real.fit(X, gaps)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        real.fit(X, gaps["price"])


def test_copies_of_a_counted_row_stay_in_one_fold():
    """Points are drawn in the cell of each copy: folds by points would let a row judge its own copy."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 2)), rng.poisson(3.0, 30).astype(float)[:, None]
    x, points = torch.from_numpy(np.repeat(X, 3, 0)), dequantize(np.repeat(y, 3, 0), ["count"])
    fitter = FlowFitter("auto", None, 1e-9, None, None)
    made = fitter.fit({"train": (x, points, None)}, ["count"], 0)
    assert len(made.fold.unique()) > 1
    assert all(len(set(copies)) == 1 for copies in made.fold.reshape(30, 3).tolist())


def test_weights_do_not_go_with_values_missing_in_any_part():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(80, 1)), rng.normal(size=(80, 2))
    gap = Y[:30].copy()
    gap[0, 0] = np.nan
    model = FlowRegressor("linear_gaussian", outputs="real", random_state=0)
    for name in ("calibration", "validation"):
        with pytest.raises(ValueError, match="which cannot be combined with sample_weight"):
            model.fit(X, Y, np.ones(80), **{name: (X[:30], gap)})


@pytest.mark.parametrize("n", [19, 20, 22, 23])
def test_few_rows_that_miss_an_output_can_be_fitted(n):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(n, 1)), rng.normal(size=(n, 2))
    Y[0, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewCalibrationRowsWarning)
        model = FlowRegressor(outputs="real", budget=1e-9, random_state=0).fit(X, Y)
    assert np.isfinite(model.predict(X)).all()


def test_too_few_rows_for_a_mean_of_flows_are_named():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 1)), rng.normal(size=60)
    with pytest.raises(ValueError, match="60 rows are too few for a mean of flows"):
        FlowRegressor("autoregressive", ensemble=2, outputs="real").fit(X, y)
