"""The comparison of regressors: its splits, scores, peers, ranks and lines of results."""

import math
import signal
import time
from argparse import Namespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.ensemble import RandomForestRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

import latentcal as lc
import same
from studies.benchmarks import regressors
from studies.benchmarks.regression_peers import (
    FAMILIES,
    Family,
    fit_boosting,
    fit_forest,
    fit_gaussian_process,
    fit_linear,
    forecast_gaussian,
    forecast_mixture,
    leaf_weights,
    leave_one_out_errors,
)
from studies.benchmarks.regression_ranks import mean_ranks, mean_values, paired_difference, show_ranks
from studies.benchmarks.regression_scores import (
    COLUMNS,
    Forecast,
    Scores,
    distances_to_others,
    interval_score,
    rank_among,
    score_forecast,
)
from studies.benchmarks.regression_tables import MOST_ROWS, Table, as_table, split_table
from uniformity import distance_to_uniform, uniform_limit


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def toy(n=300, seed=0):
    """A linear Gaussian table whose two outputs have errors of correlation 0.8."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    noise = rng.normal(size=(n, 2)) @ np.linalg.cholesky([[1, 0.8], [0.8, 1]]).T
    return Table(x, x @ [[1.0, 0.5], [0.0, 2.0]] + noise)


def gaussian(scale=1.0, n=400, seed=0):
    """A forecast of standard deviation ``scale`` for observations of standard deviation 1, and those."""
    y = torch.randn(n, 2, generator=source(seed), dtype=torch.float64)
    return forecast_gaussian(np.zeros((n, 2)), scale**2 * np.eye(2), source(seed + 1)), y


def test_a_split_is_the_same_for_all_methods_and_its_parts_share_no_row():
    table = Table(np.arange(5000.0)[:, None], np.arange(5000.0)[:, None])
    one, again, other = (split_table("toy", table, split) for split in (0, 0, 1))
    assert same.drawn(one.x, again.x)
    assert not same.drawn(one.x, other.x)
    assert (len(one.x), len(one.x_new), one.rows) == (2400, 600, MOST_ROWS)
    assert not set(one.x[:, 0]) & set(one.x_new[:, 0])
    np.testing.assert_allclose((one.y.mean(), one.y.std()), (0, 1), atol=1e-9)


def test_a_table_has_its_text_one_hot_and_no_incomplete_row():
    columns = {"a": [1.0, 2.0, None] * 20, "b": ["u", "v", "u"] * 20, "y": np.arange(60.0)}
    frame = pd.DataFrame(columns | {"name": [f"row {i}" for i in range(60)]})  # too many levels
    table = as_table(frame, ["y"])
    assert table.x.shape == (40, 1 + 2)
    np.testing.assert_allclose(table.x[:, 1:].sum(1), 1)


def test_the_rank_of_a_value_among_its_like_is_uniform():
    """By the DKW bound this fails with probability 1e-6 at most where the ranks are uniform."""
    n = 2000
    values = torch.randint(4, (20 + 1, n), generator=source()).double()  # with many ties
    assert distance_to_uniform(rank_among(values[0], values[1:], source(1))) < uniform_limit(n)
    assert distance_to_uniform(rank_among(values[0] + 1, values[1:], source(1))) > uniform_limit(n)


def test_distances_are_means_over_the_other_points():
    y, draws = torch.tensor([[0.0, 0.0]]), torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]]])
    own, others = distances_to_others(y, draws)
    torch.testing.assert_close(own, torch.tensor([2.5]))
    torch.testing.assert_close(others, torch.tensor([[5.0], [2.5]]))


def test_the_interval_score_is_the_width_and_a_fine_outside():
    draws = torch.linspace(0, 1, 101, dtype=torch.float64)[:, None, None].expand(101, 3, 1)
    y = torch.tensor([[0.5], [1.05], [-0.05]], dtype=torch.float64)
    expected = torch.tensor([0.9, 0.9 + 0.1 / 0.05, 0.9 + 0.1 / 0.05], dtype=torch.float64)
    torch.testing.assert_close(interval_score(draws, y), expected)


def test_scores_tell_the_truth_from_a_forecast_that_is_too_narrow():
    """With 400 rows an error of calibration above 0.07, or a coverage below 0.83, has a chance below 1e-5."""
    true, narrow = (score_forecast(*gaussian(scale)).means for scale in (1.0, 0.5))
    for name in ("hdr_ece", "depth_ece", "marginal_ece"):
        assert true[name] < 0.07 < narrow[name]
    assert narrow["coverage"] < 0.83 < true["coverage"]
    assert all(true[name] < narrow[name] for name in ("nll", "energy", "interval"))
    assert set(true) == {*COLUMNS}
    assert math.isnan(true["region_coverage"])


def test_a_forecast_without_density_has_all_scores_but_those_of_the_density():
    forecast, y = gaussian()
    means = score_forecast(Forecast(forecast.draws, forecast.mean), y).means
    missing = {name for name, value in means.items() if math.isnan(value)}
    assert missing == {"nll", "nll_se", "hdr_ece", "region_coverage"}


def test_infinite_draws_are_refused():
    forecast, y = gaussian()
    draws = forecast.draws.clone()
    draws[0, 0, 0] = math.inf
    with pytest.raises(ValueError, match="1 of 160000 drawn values"):
        score_forecast(forecast._replace(draws=draws), y)


def test_leaf_weights_give_the_prediction_of_a_forest_without_bootstrap():
    table = toy()
    forest = RandomForestRegressor(20, min_samples_leaf=5, bootstrap=False, max_features=1, random_state=0)
    forest.fit(table.x[:200], table.y[:200])
    weights = leaf_weights(forest.apply(table.x[:200]), forest.apply(table.x[200:]))
    np.testing.assert_allclose(weights.sum(1), 1)
    np.testing.assert_allclose(weights @ table.y[:200], forest.predict(table.x[200:]))


def test_leave_one_out_errors_are_those_of_fits_without_the_row():
    x, y = toy(20).x, toy(20).y[:, 0]
    kernel = RBF(1.0, "fixed") + WhiteKernel(0.5, "fixed")
    model = GaussianProcessRegressor(kernel).fit(x, y)
    errors = []
    for i in range(len(x)):
        rest = np.arange(len(x)) != i
        mean, scale = GaussianProcessRegressor(kernel).fit(x[rest], y[rest]).predict(x[[i]], return_std=True)
        errors.append((y[i] - mean[0]) / scale[0])
    np.testing.assert_allclose(leave_one_out_errors(model.L_, model.y_train_), errors, rtol=1e-6)


def test_a_mixture_of_flows_has_their_mean_density_and_draws_of_both():
    ends = [torch.full((1,), -5.0), torch.full((1,), 5.0)]
    members = [lc.flows.LinearGaussianFlow(None, end.double(), torch.eye(1).double()) for end in ends]
    forecast = forecast_mixture(members, np.zeros((3, 1)), source())
    y = torch.tensor([[[0.0], [5.0], [-5.0]]], dtype=torch.float64)
    expected = torch.tensor([[-13.418939, -1.612086, -1.612086]], dtype=torch.float64)
    torch.testing.assert_close(forecast.log_prob(y), expected, rtol=1e-5, atol=0)
    share = (forecast.draws > 0).double().mean()  # 200 fair coins: outside (0.3, 0.7) with probability < 1e-7
    assert 0.3 < share < 0.7


@pytest.mark.parametrize("fit", [fit_linear, fit_boosting, fit_forest, fit_gaussian_process])
def test_a_peer_beats_the_law_of_the_outputs_without_features(fit):
    """The features explain half the spread or more; an energy score above 0.85 of that without is none."""
    case = split_table("toy", toy(400), 0)
    y_new = torch.from_numpy(case.y_new)
    alone = forecast_gaussian(np.zeros(case.y_new.shape), np.cov(case.y.T), source())
    limit = 0.85 * score_forecast(alone, y_new).means["energy"]
    for _, forecast in fit(case.x, case.y, 0):
        assert score_forecast(forecast(case.x_new, source()), y_new).means["energy"] < limit


def test_the_linear_peer_finds_the_correlation_of_the_errors():
    case = split_table("toy", toy(1000), 0)
    ((_, forecast),) = fit_linear(case.x, case.y, 0)
    draws = forecast(case.x_new, source()).draws
    errors = (draws - draws.mean(0)).reshape(-1, 2).numpy()
    assert 0.7 < np.corrcoef(errors.T)[0, 1] < 0.9  # 800 rows: standard error 0.013


def test_families_name_each_method_once():
    names = [method for family in FAMILIES for method in family.methods]
    assert len(names) == len(set(names))


def record(table, split, method, nll, status="ok", **values):
    numbers = dict.fromkeys(COLUMNS, "nan") | {"nll": str(nll), "energy": str(nll)} | values
    sizes = {"rows": "500", "outputs": "2", "seconds": "1.0"}
    return {"table": table, "split": str(split), "method": method, "status": status, **sizes, **numbers}


def test_means_are_over_the_splits_that_all_methods_have():
    records = [record("t", 0, "a", 1.0), record("t", 1, "a", 9.0), record("t", 0, "b", 2.0)]
    assert mean_values(records, "nll") == {"t": {"a": 1.0, "b": 2.0}}


def test_failures_rank_last_and_methods_that_were_stopped_do_not_count():
    records = [
        record("t", 0, "a", 1.0),
        record("t", 0, "b", math.nan, "failed: ValueError"),
        record("t", 0, "c", math.nan, "stopped after 180 s"),
    ]
    assert mean_ranks(mean_values(records, "nll")) == {"a": (1.0, 1), "b": (2.0, 1)}


def test_coverage_is_ranked_by_its_distance_to_the_nominal_one():
    records = [record("t", 0, m, 0.0, coverage=c) for m, c in (("a", "0.99"), ("b", "0.86"), ("c", "0.88"))]
    ranks = mean_ranks(mean_values(records, "coverage"))
    assert [ranks[method][0] for method in "abc"] == [3.0, 2.0, 1.0]


def test_equal_values_share_a_rank():
    values = {"s": {"a": 1.0, "b": 1.0, "c": 3.0}, "t": {"a": 2.0, "c": 1.0}}
    assert mean_ranks(values) == {"a": (1.75, 2), "b": (1.5, 1), "c": (2.0, 2)}


def test_ranks_are_shown_for_small_and_large_tables_apart():
    records = [record("t", 0, "a", 1.0), record("t", 0, "b", 2.0), record("u", 0, "b", 1.0, rows="2000")]
    assert "| b | 1 | 2.00 |" in show_ranks(records, ["a", "b"], "small")
    assert "| a |" not in show_ranks(records, ["a", "b"], "large")


def test_differences_are_paired_row_by_row():
    rng = np.random.default_rng(0)
    base = [100 * rng.normal(size=50) for _ in range(2)]
    rows = {("t", s, "a"): values for s, values in enumerate(base)}
    rows |= {("t", s, "b"): values + 1 + 0.1 * rng.normal(size=50) for s, values in enumerate(base)}
    mean, error = paired_difference(rows, "t", "b", "a")
    assert abs(mean - 1) < 0.06  # six standard errors of 0.01
    assert 0.005 < error < 0.02
    assert paired_difference(rows, "t", "b", "c") is None


def family(*steps, methods=("one", "two"), limit=None):
    """Methods that forecast, or do what else a step does: it is called in the fit."""

    def fit(x, y, seed):
        for method, step in zip(methods, steps, strict=True):
            yield method, step()

    return Family(methods, fit, limit)


def works():
    return lambda x, generator: forecast_gaussian(np.zeros((len(x), 2)), np.eye(2), generator)


def fails():
    raise RuntimeError("no\nluck")


def refuses():
    return lambda x, generator: fails()


def statuses(run_of, wanted=("one", "two")):
    case = split_table("toy", toy(50), 0)
    return {line["method"]: line["status"] for line, _ in regressors.run_family(run_of, case, wanted)}


def test_a_failed_fit_ends_its_family_and_a_failed_forecast_does_not():
    assert statuses(family(works, works)) == {"one": "ok", "two": "ok"}
    assert statuses(family(refuses, works)) == {"one": "failed: RuntimeError: no luck", "two": "ok"}
    assert {*statuses(family(fails, works)).values()} == {"failed: RuntimeError: no luck"}
    assert statuses(family(works, fails))["one"] == "ok"


def test_what_is_not_wanted_is_not_fitted():
    assert statuses(family(works, fails), ["one"]) == {"one": "ok"}
    assert statuses(family(works, works), ["two"]) == {"two": "ok"}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers of CPU time")
def test_a_fit_that_takes_too_long_is_stopped():
    def lasts():
        end = time.process_time() + 30
        while time.process_time() < end:
            pass

    assert {*statuses(family(lasts, works, limit=0.1)).values()} == {"stopped after 0 s"}
    with regressors.stop_after(0.05):
        pass
    start = time.process_time()
    while time.process_time() < start + 0.2:  # the timer is off
        pass


def test_values_of_the_rows_are_read_as_written_and_the_last_line_counts(tmp_path):
    path = tmp_path / "rows.csv.gz"
    for shift in (0.0, 1.0):
        nll, energy = np.array([0.5, -1.25]) + shift, np.array([0.1, 0.2]) + shift
        regressors.append_rows(path, ("t", 2, "a, b"), Scores({}, nll, energy))
    regressors.append_rows(path, ("t", 2, "c"), Scores({}, np.full(2, math.nan), np.ones(2)))
    assert {key: list(v) for key, v in regressors.read_rows(path, "nll").items()} == {
        ("t", 2, "a, b"): [1.5, -0.25]
    }
    assert len(regressors.read_rows(path, "energy")) == 2
    assert regressors.read_rows(tmp_path / "none.csv.gz", "nll") == {}


def test_a_run_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    fitted = []

    def counts():
        fitted.append(1)
        return works()

    monkeypatch.setattr(regressors, "FAMILIES", (family(counts, methods=("one",)),))
    monkeypatch.setattr(regressors, "read_once", lambda name: toy(60))
    options = Namespace(
        tables=["slump", "enb"], methods=["one"], splits=1, threads=1, again=False, out=tmp_path / "r.csv"
    )
    threads = torch.get_num_threads()
    for splits, expected in ((1, 2), (1, 2), (2, 4)):
        regressors.run(Namespace(**vars(options) | {"splits": splits}))
        assert len(fitted) == expected
    regressors.run(Namespace(**vars(options) | {"again": True}))
    torch.set_num_threads(threads)
    assert len(fitted) == 6
    assert len(regressors.latest(regressors.read(options.out))) == 4
    shown = Namespace(tables=["slump", "enb"], methods=["one"], metric="nll", base="one", out=options.out)
    regressors.show(shown)
    assert "| slump | 60 | 2 |" in capsys.readouterr().out


def test_a_method_that_was_stopped_is_not_tried_on_later_splits(tmp_path, monkeypatch):
    monkeypatch.setattr(regressors, "FAMILIES", (family(fails, methods=("one",)),))
    monkeypatch.setattr(regressors, "read_once", lambda name: toy(60))
    case = split_table("slump", toy(60), 0)
    out = tmp_path / "r.csv"
    regressors.append(out, regressors.make_line(case, "one", 180.0, "stopped after 180 s", None))
    threads = torch.get_num_threads()
    regressors.run(Namespace(tables=["slump"], methods=["one"], splits=2, threads=1, again=False, out=out))
    torch.set_num_threads(threads)
    assert [line["status"] for line in regressors.read(out)] == ["stopped after 180 s"] * 2
