import math

import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import fit_stage, stage_parts
from latentcal.flows.stage_parts import StageRows

KINDS = ["ridge", "ridge_scale", "gp", "boosted"]


def _rows(n, seed=0):
    """A linear output, and a bent one whose scale grows with the last feature; errors are correlated."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.rand(n, 4, generator=generator, dtype=torch.float64) - 1
    e = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    linear = 50 + 3 * x[:, 0] + 0.5 * e[:, 0]
    bent = torch.sin(4 * x[:, 1]) + 0.3 * torch.exp(1.2 * x[:, 3]) * (0.8 * e[:, 0] + 0.6 * e[:, 1])
    return x, torch.stack([linear, bent], 1)


def _nll(model, x, y):
    return float(-model(x).log_prob(y).mean())


@pytest.fixture(scope="module")
def fits():
    pytest.importorskip("sklearn")
    return {kind: fit_stage(kind, *_rows(400)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_residuals_out_of_fold_are_like_those_of_new_rows(fits, kind):
    x, y = _rows(400)
    fit = fits[kind]
    _, residuals = fit.rows(x, y)
    torch.testing.assert_close(residuals.square().mean(0), torch.ones(2).double(), rtol=0.05, atol=0)
    new_x, new_y = _rows(2000, 1)
    location, scale = fit.stage(new_x)
    square = ((new_y - location) / scale).square().mean(0)
    assert bool(((square > 0.7) & (square < 1.4)).all())
    assert same.decided(fit.fold.unique(), torch.arange(5))


@pytest.mark.parametrize("kind", KINDS)
def test_out_of_fold_answers_are_those_of_the_stages_without_the_fold(fits, kind):
    x, y = _rows(400)
    fit = fits[kind]
    for number, (stage, model) in enumerate(zip(fit.by_fold, fit.gaussian_by_fold, strict=True)):
        own = fit.fold == number
        torch.testing.assert_close(stage(x[own]), (fit.location[own], fit.scale[own]), rtol=1e-6, atol=1e-6)
        assert model.stage is stage
        above = fit.below(model.flow, without=number)
        torch.testing.assert_close(above(x[own]).log_prob(y[own]), model(x[own]).log_prob(y[own]))
    # The control: the stage of all rows says something else of rows that it has seen.
    assert float((fit.stage(x)[0] - fit.location).abs().max()) > 1e-3


def test_residuals_of_rows_that_taught_the_trees_are_smaller(fits):
    """The control of the test above."""
    x, y = _rows(400)
    trees, _ = stage_parts.fit_forest(StageRows.of(x, y, 5, 0, None), y, {"min_samples_leaf": 2})
    inside, outside = ((y - guess).square().mean(0) for guess in (trees.every[-1](x), trees.held_out))
    assert bool((inside < 0.5 * outside).all())


def test_richer_stages_predict_better_where_there_is_more_to_learn(fits):
    x, y = _rows(2000, 1)
    nll = {kind: _nll(fit.gaussian, x, y) for kind, fit in fits.items()}
    assert nll["ridge_scale"] < nll["ridge"] - 0.02
    assert nll["gp"] < nll["ridge"] - 0.1
    assert nll["boosted"] < min(nll["gp"], nll["ridge_scale"]) - 0.02


def test_a_stage_costs_little_where_a_linear_model_is_the_truth():
    pytest.importorskip("sklearn")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2150, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.ones(4, 2).double() + torch.randn(2150, 2, generator=generator, dtype=torch.float64)
    new = x[150:], y[150:]
    linear = _nll(lc.flows.LinearGaussianFlow.fit(x[:150], y[:150]), *new)
    for kind in KINDS:
        assert _nll(fit_stage(kind, x[:150], y[:150]).gaussian, *new) < linear + 0.06


def test_normal_residuals_have_the_correlation_of_the_truth(fits):
    covariance = fits["boosted"].gaussian.flow.scale_tril
    covariance = covariance @ covariance.T
    correlation = covariance[0, 1] / covariance.diagonal().prod().sqrt()
    # The truth is 0.8; imperfect locations hide a part of it.
    assert 0.6 < float(correlation) < 0.9


def test_a_flow_that_is_trained_on_the_rows_makes_a_model(fits):
    x, y = _rows(400)
    fit = fits["boosted"]
    features, residuals = fit.rows(x, y)
    assert features.shape == (400, 8)
    torch.testing.assert_close(features.mean(0), torch.zeros(8).double(), rtol=0, atol=1e-8)
    model = fit.below(lc.flows.LinearGaussianFlow.fit(features, residuals))
    lc.testing.check_flow_contract(model, x, y)
    new = _rows(2000, 1)
    assert abs(_nll(model, *new) - _nll(fit.gaussian, *new)) < 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_x_and_y_do_not_matter(kind):
    pytest.importorskip("sklearn")
    x, y = _rows(80)
    fit = fit_stage(kind, x, y, folds=3)
    moved = fit_stage(kind, 1000 * x + 7, 1e-3 * y - 4, folds=3)
    torch.testing.assert_close(moved.location, 1e-3 * fit.location - 4, rtol=0, atol=1e-4)
    torch.testing.assert_close(moved.scale.log(), fit.scale.log() + math.log(1e-3), rtol=0, atol=0.05)


@pytest.mark.parametrize("kind", ["ridge", "ridge_scale", "boosted"])
def test_rows_of_weight_zero_teach_nothing(kind):
    pytest.importorskip("sklearn")
    x, y = _rows(300)
    wild = y.clone()
    wild[200:] = 50 - 5 * y[200:]
    weights = (torch.arange(300) < 200).double()
    new, truth = _rows(1000, 1)
    errors = [
        float((fit_stage(kind, x, wild, sample_weight=given).stage(new)[0] - truth).square().mean())
        for given in (weights, None)
    ]
    assert errors[0] < 0.5 * errors[1]


def test_what_a_fold_says_does_not_reach_its_own_guesses():
    pytest.importorskip("sklearn")
    x, y = _rows(100)
    fold = torch.arange(100) % 4
    other = y.clone()
    other[fold == 2] += 10.0
    columns = [torch.arange(4)] * 5
    first, second = (
        stage_parts.fit_boosting(
            StageRows.of(x, values, fold, 0, None), values, {"max_iter": 20}, columns
        ).held_out
        for values in (y, other)
    )
    torch.testing.assert_close(first[fold == 2], second[fold == 2])
    assert float((first[fold != 2] - second[fold != 2]).abs().mean()) > 0.1


def test_the_same_seed_gives_the_same_stage():
    pytest.importorskip("sklearn")
    x, y = _rows(60)
    first, second, other = (fit_stage("boosted", x, y, folds=2, seed=seed) for seed in (1, 1, 2))
    torch.testing.assert_close(first.location, second.location)
    assert float((first.location - other.location).abs().max()) > 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_odd_tables_have_finite_answers(kind):
    pytest.importorskip("sklearn")
    x, y = _rows(30)
    x[:, 1] = 3.0  # constant
    x[:, 2] = x[:, 0]  # repeated
    y[:, 1] = (y[:, 1] > 0).double()  # few values
    y[:, 0] = 2 * x[:, 0]  # exact
    fit = fit_stage(kind, x, y, folds=3)
    far = torch.tensor([[1e30, -1e30, 0.0, 5.0]])
    assert bool(torch.isfinite(fit.gaussian(far).log_prob(y[:1])).all())
    location, scale = fit.stage(far)
    width = y.amax(0) - y.amin(0)
    assert bool(((location >= y.amin(0) - width) & (location <= y.amax(0) + width)).all())
    assert bool((scale >= 0.9e-3 * y.std(0)).all())


def test_a_stage_of_one_feature_and_one_output():
    pytest.importorskip("sklearn")
    x, y = _rows(40)
    for kind in KINDS:
        fit = fit_stage(kind, x[:, :1], y[:, :1].float(), folds=2)
        assert fit.rows(x[:, :1], y[:, :1])[0].shape == (40, 3)


def test_arguments_that_cannot_be_right_are_refused():
    x, y = _rows(40)
    with pytest.raises(ValueError, match="No stage is named 'boosting'; did you mean 'boosted'"):
        fit_stage("boosting", x, y)
    with pytest.raises(ValueError, match="A stage needs features"):
        fit_stage("ridge", None, y)
    with pytest.raises(ValueError, match=r"Columns \[1\] of y are constant"):
        fit_stage("ridge", x, torch.stack([y[:, 0], torch.ones(40)], 1))
    with pytest.raises(ValueError, match="at least 10 rows"):
        fit_stage("ridge", x[:9], y[:9])
    with pytest.raises(ValueError, match="folds must be at least 2"):
        fit_stage("ridge", x, y, folds=1)
    with pytest.raises(ValueError, match="with rows in each"):
        fit_stage("ridge", x, y, folds=torch.arange(40) % 2 * 2)
    with pytest.raises(ValueError, match="weights must be"):
        fit_stage("ridge", x, y, sample_weight=torch.ones(3))
    with pytest.raises(ValueError, match=r"must be the features .* of shape \(40, 4\)"):
        fit_stage("ridge", x, y).rows(x[:20], y[:20])
