import math

import pytest
import torch

import same
from latentcal.radius import Chi
from latentcal.radius.folds import FoldedRadii, effective_size, fold_numbers, spread_limit


def cube_rooted(n: int, generator: torch.Generator) -> torch.Tensor:
    return Chi(3).sample((n,), generator).pow(1 / 3)


def test_few_points_are_their_own_nodes(generator):
    t = cube_rooted(100, generator)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    assert same.copied(folded.nodes, torch.sort(t).values)
    assert folded.spread.max() == 0
    assert same.defined(folded.total, torch.ones_like(t))


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize(("n", "folds"), [(7, 5), (100, 5), (5, 5), (23, 10)])
def test_folds_are_as_equal_as_can_be(n, folds, contiguous, generator):
    fold = fold_numbers(torch.randn(n, 2, generator=generator), folds, contiguous=contiguous)
    counts = torch.bincount(fold, minlength=folds)
    assert len(counts) == folds
    assert counts.max() - counts.min() <= 1
    if contiguous:
        assert (fold.diff() >= 0).all()


def test_folds_belong_to_the_rows_whatever_their_order(generator):
    rows = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    rows[:100, 0] = 1.0  # ties: the next column decides
    order = torch.randperm(200, generator=generator)
    assert same.decided(fold_numbers(rows[order], 5), fold_numbers(rows, 5)[order])
    assert not same.decided(fold_numbers(rows, 5, seed=1), fold_numbers(rows, 5))
    # A hash of the numbers would change folds with their last bits.
    assert same.decided(fold_numbers(rows * (1 + 1e-15), 5), fold_numbers(rows, 5))


def test_copies_of_a_row_share_a_fold_and_an_atom_is_spread(generator):
    rows = torch.randn(100, 2, generator=generator).repeat_interleave(3, 0)
    rows = torch.cat([rows, torch.zeros(100, 2)])[torch.randperm(400, generator=generator)]
    fold = fold_numbers(rows, 10)
    atom = (rows == 0).all(1)
    assert torch.bincount(fold[atom], minlength=10).min() > 0
    _, group = torch.unique(rows[~atom], dim=0, return_inverse=True)
    pairs = torch.unique(torch.stack([group, fold[~atom]], 1), dim=0)
    assert len(pairs) == 100  # one fold for each distinct row


def test_folds_are_not_blocks_of_sorted_rows():
    """Law of sorted norms whose folds were blocks: no fold knew its own range."""
    fold = fold_numbers(torch.arange(1000.0)[:, None], 10)
    means = torch.stack([(fold == k).nonzero().double().mean() for k in range(10)])
    assert (means - 500).abs().max() < 5 * 289 / 100**0.5  # fails in 6e-6 of the seeds
    blocks = torch.arange(1000) // 100
    assert (torch.stack([(blocks == k).nonzero().double().mean() for k in range(10)]) - 500).abs().max() > 400


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_than_ten_points_are_a_fold_each(n):
    t = torch.arange(1.0, n + 1, dtype=torch.float64)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    assert same.defined(folded.weights.sum(0), torch.ones(n, dtype=torch.float64))
    assert same.defined(folded.weights.sum(1), torch.ones(n, dtype=torch.float64))
    assert same.defined(folded.training, 1 - folded.weights)


@pytest.mark.parametrize("n", [3_000, 20_000])
def test_nodes_keep_number_mean_and_variance_of_the_points_of_every_fold(n, generator):
    t = cube_rooted(n, generator)
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    folded = FoldedRadii.of(t, weights, max_nodes=200)
    assert 100 < folded.nodes.numel() <= 200
    assert (folded.nodes.diff() > 0).all()
    assert folded.total.sum().item() == pytest.approx(weights.sum().item())
    own = fold_numbers(torch.stack([t, weights], -1), 10)
    for fold in range(10):
        part, w = t[own == fold], weights[own == fold]
        assert folded.weights[fold].sum().item() == pytest.approx(w.sum().item())
        mean = (folded.weights[fold] * folded.nodes).sum() / w.sum()
        assert mean.item() == pytest.approx(((part * w).sum() / w.sum()).item(), abs=2e-3)
    mean = (weights * t).sum() / weights.sum()
    torch.testing.assert_close((folded.total * folded.nodes).sum() / weights.sum(), mean, rtol=1e-12, atol=0)
    second = (folded.total * (folded.spread**2 + (folded.nodes - mean) ** 2)).sum()
    torch.testing.assert_close(second, (weights * (t - mean) ** 2).sum(), rtol=1e-12, atol=0)


def test_merged_nodes_keep_weights_mean_and_variance(generator):
    t = cube_rooted(500, generator)
    fine = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    assert fine.spread.max() > 0
    coarse = fine.merge_nodes(3)
    assert coarse.nodes.numel() == -(-fine.nodes.numel() // 3)
    torch.testing.assert_close(coarse.weights.sum(1), fine.weights.sum(1))
    mean = t.mean()
    torch.testing.assert_close((coarse.total * coarse.nodes).sum() / 500, mean, rtol=1e-12, atol=0)
    second = (coarse.total * (coarse.spread**2 + (coarse.nodes - mean) ** 2)).sum()
    torch.testing.assert_close(second, ((t - mean) ** 2).sum(), rtol=1e-12, atol=0)


def test_an_outlier_does_not_coarsen_the_bulk(generator):
    t = cube_rooted(5_000, generator)
    calm = FoldedRadii.of(t, torch.ones_like(t), max_nodes=500)
    t = torch.cat([t[1:], t.new_tensor([1e6])])
    wild = FoldedRadii.of(t, torch.ones_like(t), max_nodes=500)
    assert wild.nodes[-1] == 1e6
    assert wild.spread.max() < 5 * calm.spread.max()
    assert wild.nodes.numel() > 100


def test_ties_become_one_exact_node(generator):
    t = torch.randint(1, 9, (3_000,), generator=generator).double()
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=500)
    assert folded.nodes.tolist() == list(range(1, 9))
    assert folded.total.tolist() == torch.bincount(t.long())[1:].tolist()


@pytest.mark.parametrize("n", [7, 10_000])
def test_constant_points_are_one_node_however_many(n):
    """With more points than are looked at one by one the cells had width 0."""
    folded = FoldedRadii.of(torch.full((n,), 2.5).double(), torch.ones(n).double(), max_nodes=500)
    assert folded.nodes.tolist() == [2.5]
    assert folded.total.tolist() == [n]


def test_points_most_of_which_are_tied_keep_their_spread(generator):
    t = torch.cat(
        [torch.full((8_000,), 1.0).double(), 1 + torch.rand(2_000, dtype=torch.float64, generator=generator)]
    )
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=500)
    assert folded.nodes.numel() > 200
    assert folded.spread.max() < 0.01


def test_training_weights_are_those_of_the_other_folds(generator):
    t = cube_rooted(40, generator)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    torch.testing.assert_close(folded.training + folded.weights, folded.total.expand(10, 40))
    assert folded.training.sum(1).tolist() == [36.0] * 10


def test_the_effective_size_counts_equal_weights_and_discounts_unequal_ones():
    assert effective_size(torch.full((7,), 3.0)) == pytest.approx(7)
    assert effective_size(torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_size(torch.tensor([1.0, 0.5])) == pytest.approx(1.8)


def test_rates_are_limited_by_the_spread_inside_the_cells():
    nodes, weights = torch.tensor([1.0, 2.0]).double(), torch.tensor([[10.0, 90.0]]).double()
    assert spread_limit(FoldedRadii(nodes, weights, torch.zeros(2).double())) == math.inf
    spread = torch.tensor([0.0, 0.1]).double()
    assert spread_limit(FoldedRadii(nodes, weights, spread)) == pytest.approx(2.0 / 0.25**2)
    # A share of 5 per cent may be coarser: the wide cell counts only where it has more weight than that.
    spread = torch.tensor([0.1, 0.01]).double()
    assert spread_limit(FoldedRadii(nodes, weights, spread)) == pytest.approx(1.0 / 0.25**2)
    light = torch.tensor([[1.0, 99.0]]).double()
    assert spread_limit(FoldedRadii(nodes, light, spread)) == pytest.approx(2.0 / 0.025**2)


def test_tiny_weights_have_an_effective_size():
    """Squares of 1e-206 vanish: it was NaN, and no warning came."""
    assert effective_size(torch.full((50,), 1e-206, dtype=torch.float64)) == pytest.approx(50)
    assert effective_size(torch.tensor([1e-200, 1e-206, 1e-206], dtype=torch.float64)) == pytest.approx(
        1, rel=1e-4
    )


def test_nodes_of_many_points_do_not_depend_on_their_order(generator):
    t = cube_rooted(250_000, generator)
    order = torch.randperm(len(t), generator=generator)
    one, other = (FoldedRadii.of(part, torch.ones_like(t), max_nodes=100) for part in (t, t[order]))
    torch.testing.assert_close(one.nodes, other.nodes, rtol=1e-9, atol=0)
    torch.testing.assert_close(one.total, other.total)


def test_the_first_columns_decide_and_the_others_only_where_those_are_equal(generator):
    rows = torch.randn(100, 3, generator=generator, dtype=torch.float64)
    other = torch.cat([rows[:, :1], torch.randn(100, 2, generator=generator, dtype=torch.float64)], 1)
    assert same.decided(fold_numbers(other, 5), fold_numbers(rows, 5))
    tied = rows.clone()
    tied[:, 0] = 1.0
    assert not same.decided(fold_numbers(tied, 5), fold_numbers(rows, 5))
    assert same.decided(fold_numbers(tied, 5), fold_numbers(rows[:, 1:], 5))
