import math

import pytest
import torch

import same
from latentcal.radius import Chi
from latentcal.radius.folds import FoldedRadii, effective_size, spread_limit


def cube_rooted(n: int, generator: torch.Generator) -> torch.Tensor:
    return Chi(3).sample((n,), generator).pow(1 / 3)


def test_few_points_are_their_own_nodes(generator):
    t = cube_rooted(100, generator)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    assert same.copied(folded.nodes, torch.sort(t).values)
    assert folded.spread.max() == 0
    assert same.defined(folded.total, torch.ones_like(t))


def test_folds_are_contiguous_in_the_given_order_and_as_equal_as_can_be(generator):
    t = cube_rooted(23, generator)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    fold = folded.weights.argmax(0)[torch.argsort(torch.argsort(t))]  # of each point, in the given order
    assert fold.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, *(k for k in range(3, 10) for _ in range(2))]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_fewer_than_ten_points_are_a_fold_each(n):
    t = torch.arange(1.0, n + 1, dtype=torch.float64)
    folded = FoldedRadii.of(t, torch.ones_like(t), max_nodes=100)
    assert same.defined(folded.weights, torch.eye(n, dtype=torch.float64))
    assert same.defined(folded.training, 1 - torch.eye(n, dtype=torch.float64))


@pytest.mark.parametrize("n", [3_000, 20_000])
def test_nodes_keep_number_mean_and_variance_of_the_points_of_every_fold(n, generator):
    t = cube_rooted(n, generator)
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    folded = FoldedRadii.of(t, weights, max_nodes=200)
    assert 100 < folded.nodes.numel() <= 200
    assert (folded.nodes.diff() > 0).all()
    assert folded.total.sum().item() == pytest.approx(weights.sum().item())
    for fold, (part, w) in enumerate(zip(t.chunk(10), weights.chunk(10), strict=True)):
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
    coarse = fine.merged(3)
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
