import math

import pytest
import torch

from latentcal._internal.smoothers import (
    AdditiveFeatures,
    NeighbourSmoother,
    RidgeSmoother,
    log_dispersion,
    standardizer,
)

KINDS = {"ridge": RidgeSmoother, "neighbours": NeighbourSmoother}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())


def rows(n: int = 300, p: int = 2, seed: int = 0):
    """Features (n, p), targets (n, 2) of which the first depends on them, folds and weights (n,)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, p, generator=generator, dtype=torch.float64)
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    targets = torch.stack([2 + 1.5 * x[:, 0] + 0.3 * noise[:, 0], noise[:, 1]], 1)
    return x, targets, torch.arange(n) % 5, torch.ones(n, dtype=torch.float64)


# --- additive features


def test_features_whose_squares_are_no_floats_are_refused_by_name():
    """Their standard deviation was infinite, and the error was about a scale that nobody had given."""
    x = rows()[0]
    AdditiveFeatures.fit(x * 1e139)
    with pytest.raises(ValueError, match=r"x has numbers of up to .* the limit is 1e\+140"):
        AdditiveFeatures.fit(x * 1e200)


def test_features_are_centred_and_of_variance_one_on_the_rows_they_were_made_for():
    x, *_ = rows()
    columns = AdditiveFeatures.fit(torch.cat([1e6 + 1e-3 * x, x.round()], 1))(
        torch.cat([1e6 + 1e-3 * x, x.round()], 1)
    )
    assert columns.shape[1] > 4
    torch.testing.assert_close(columns.mean(0), torch.zeros_like(columns[0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(columns.var(0, correction=0), torch.ones_like(columns[0]), rtol=1e-6, atol=0)


def test_a_column_of_few_values_gets_an_indicator_for_each_and_a_binary_one_none():
    label = (torch.arange(300) % 4).double()
    features = AdditiveFeatures.fit(torch.stack([label, label % 2], 1))
    assert features.kind.tolist() == [0, 0, 2, 2, 2, 2]
    assert features.place[2:].tolist() == [0, 1, 2, 3]
    assert torch.unique(features(torch.stack([label, label % 2], 1)), dim=0).shape[0] == 4


def test_beyond_the_seen_range_nothing_is_extrapolated():
    x, *_ = rows()
    features = AdditiveFeatures.fit(x)
    ends = torch.stack([features.low, features.high])
    torch.testing.assert_close(features(torch.tensor([[-1e9, -1e9], [1e9, 1e9]])), features(ends))


def test_constant_columns_and_bends_without_room_are_left_out():
    x, *_ = rows(n=30, p=5)
    x[:, 2] = 7.0
    features = AdditiveFeatures.fit(x)
    assert features.column.tolist() == [0, 1, 3, 4]
    assert AdditiveFeatures.fit(torch.ones(30, 2))(torch.zeros(4, 2)).shape == (4, 0)


def test_a_wrong_number_of_features_is_an_error_for_every_smoother():
    x, targets, fold, weights = rows()
    for kind in KINDS.values():
        smoother, _ = kind.cross_fit(x, targets, fold, weights)
        for wrong in (1, 3, 4):
            with pytest.raises(
                ValueError, match=rf"x has {wrong} features?, but the model was fitted with 2"
            ):
                smoother(torch.zeros(5, wrong))


# --- both smoothers


@each_kind
def test_a_dependence_is_found_and_its_absence_too(kind):
    x, targets, fold, weights = rows(n=600)
    smoother, held_out = kind.cross_fit(x, targets, fold, weights)
    error = (held_out - torch.stack([2 + 1.5 * x[:, 0], 0 * x[:, 0]], 1)).square().mean(0).sqrt()
    assert error[0] < 0.25  # without x it is 1.5
    assert error[1] < 0.2
    assert (smoother(x)[:, 0] - targets[:, 0]).square().mean() < 0.3


@each_kind
def test_without_a_level_the_answers_have_mean_zero_whatever_the_targets_mean(kind):
    x, targets, fold, weights = rows()
    smoother, held_out = kind.cross_fit(x, targets, fold, weights, level=False)
    moved, held_out_moved = kind.cross_fit(x, targets + 1e3, fold, weights, level=False)
    assert smoother(x).mean(0).abs().max() < 0.1
    assert held_out.mean(0).abs().max() < 0.1
    torch.testing.assert_close(held_out_moved, held_out, rtol=0, atol=1e-9)
    torch.testing.assert_close(moved(x), smoother(x), rtol=0, atol=1e-9)


@each_kind
@pytest.mark.parametrize("level", [True, False])
def test_targets_of_a_fold_do_not_move_the_answers_for_that_fold(kind, level):
    x, targets, fold, weights = rows()
    changed = targets.clone()
    changed[7] += 0.2  # too little to change the penalty or the number of neighbours
    (smoother, before), (other, after) = (
        kind.cross_fit(x, t[:, :1], fold, weights, level=level) for t in (targets, changed)
    )
    difference = (after - before).abs()[:, 0]
    assert difference[fold == fold[7]].max() < 1e-9
    assert difference[fold != fold[7]].max() > 1e-5  # control: the row does count
    assert (smoother(x) - other(x)).abs().max() > 1e-5


@each_kind
def test_a_row_of_weight_two_counts_as_two_rows(kind):
    x, targets, fold, weights = rows(n=40)
    twice = torch.cat([torch.arange(40), torch.arange(20)])
    weights = torch.cat([2 * weights[:20], weights[20:]])
    one, held_out = kind.cross_fit(x, targets, fold, weights)
    two, held_out_two = kind.cross_fit(x[twice], targets[twice], fold[twice], torch.ones(60).double())
    if kind is NeighbourSmoother:  # the count is of rows, so only the mean over all is the same
        everything = torch.full_like(one.count, 10**6)
        one, two = (
            NeighbourSmoother(s.mean, s.scale, s.points, s.values, s.weights, everything) for s in (one, two)
        )
        torch.testing.assert_close(one(x), two(x))
    else:  # features are scaled by rows, the penalty is chosen anew: the same to its resolution
        torch.testing.assert_close(held_out, held_out_two[:40], rtol=0, atol=0.25)


@each_kind
@pytest.mark.parametrize("n", [2, 3, 7])
@pytest.mark.parametrize("case", ["few", "constant x", "more columns than rows", "constant targets"])
def test_no_answer_is_nan_in_extreme_cases(kind, n, case):
    x, targets, _, weights = rows(n=n, p=20 if case == "more columns than rows" else 2)
    x = torch.ones_like(x) if case == "constant x" else x
    targets = torch.full_like(targets, 3.0) if case == "constant targets" else targets
    smoother, held_out = kind.cross_fit(x, targets, torch.arange(n) % 5, weights)
    assert torch.isfinite(held_out).all()
    assert torch.isfinite(smoother(1e6 * x)).all()
    if case == "constant targets":
        torch.testing.assert_close(smoother(x), targets)


@each_kind
def test_answers_keep_leading_dims_and_are_float64(kind):
    x, targets, fold, weights = rows(n=50)
    smoother, _ = kind.cross_fit(x.float(), targets, fold, weights)
    answer = smoother(x.float()[:6].reshape(2, 3, 2))
    assert answer.shape == (2, 3, 2)
    assert answer.dtype == torch.float64
    torch.testing.assert_close(answer.reshape(6, 2), smoother(x.float()[:6]))
    assert smoother.float()(x).dtype == torch.float64


@each_kind
def test_answers_have_the_gradient_by_x(kind):
    x, targets, fold, weights = rows(n=80)
    smoother, _ = kind.cross_fit(x, targets[:, :1], fold, weights)
    point = torch.tensor([[0.123, -0.345]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(smoother, point)


def test_ridge_with_more_columns_than_rows_solves_the_same_equations():
    x, _, fold, weights = rows(n=25, p=60)
    smoother, _ = RidgeSmoother.cross_fit(x, x[:, :1] * 3, fold, weights)
    columns = smoother.features(x)
    centred, target = columns - columns.mean(0), 3 * x[:, :1] - 3 * x[:, :1].mean()
    gradient = centred.T @ (target - centred @ smoother.coefficients)
    penalty = (gradient / smoother.coefficients).median()
    assert penalty > 0.9
    torch.testing.assert_close(gradient, penalty * smoother.coefficients, rtol=1e-6, atol=1e-9)


def test_of_many_rows_the_neighbours_are_thinned_and_labels_have_their_means():
    generator = torch.Generator().manual_seed(1)
    label = torch.randint(3, (5001,), generator=generator)
    truth = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)[label]
    targets = truth + 0.3 * torch.randn(5001, generator=generator, dtype=torch.float64)
    smoother, held_out = NeighbourSmoother.cross_fit(
        label[:, None], targets[:, None], torch.arange(5001) % 5, torch.ones(5001, dtype=torch.float64)
    )
    assert len(smoother.points) <= 2000
    assert (held_out[:, 0] - truth).abs().max() < 0.1


# --- log dispersion


@each_kind
def test_log_dispersion_finds_the_scale_that_depends_on_x(kind):
    x, _, fold, weights = rows(n=1500)
    noise = torch.randn(1500, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    residuals = noise * torch.stack([torch.exp(0.5 * x[:, 0]), torch.ones(1500)], 1)
    _, held_out = log_dispersion(kind, x, residuals, fold, weights)
    assert (held_out[:, 0] - 0.5 * x[:, 0]).square().mean().sqrt() < 0.2  # 0.5 for a constant
    assert held_out[:, 1].square().mean().sqrt() < 0.1


def test_log_dispersion_of_zeros_and_of_one_outlier_is_finite():
    x, _, fold, weights = rows(n=100)
    residuals = torch.zeros(100, 2, dtype=torch.float64)
    residuals[3, 1] = 1e150
    for kind in KINDS.values():
        smoother, held_out = log_dispersion(kind, x, residuals, fold, weights)
        assert torch.isfinite(held_out).all()
        assert torch.isfinite(smoother(x)).all()


def test_the_standardizer_leaves_the_scale_of_a_constant_column():
    mean, scale = standardizer(torch.tensor([[1e9, 1.0], [1e9, 3.0]], dtype=torch.float64))
    assert mean.tolist() == [1e9, 2.0]
    assert scale.tolist() == [1.0, 1.0]
    assert math.isclose(float(standardizer(torch.tensor([[0.0], [4.0]]))[1]), 2.0)
