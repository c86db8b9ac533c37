import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import distributions as td

import latentcal as lc
import uniformity
from latentcal import preranks


class Sampler(td.Distribution):
    """Draws of N(mean, I) without a density."""

    def __init__(self, mean, scale=1.0):
        self.mean_, self.scale_ = mean, scale
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    def sample(self, shape=()):
        return self.mean_ + self.scale_ * torch.randn(*shape, *self.mean_.shape, dtype=self.mean_.dtype)


def pool(s=9, d=4, seed=0):
    y = torch.randn(s, 1, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y[2, 0, 1] = y[5, 0, 1]  # a tie
    return y


def test_ranks_within_a_pool_are_those_of_their_definitions():
    y = pool()
    points = y[:, 0].numpy()
    ranks = np.stack([rankdata(column) for column in points.T], 1)
    below = [sum((points <= point).all(1)) for point in points]
    np.testing.assert_allclose(preranks.multivariate_rank(None, y)[:, 0], below)
    np.testing.assert_allclose(preranks.average_rank(None, y)[:, 0], ranks.mean(1))
    np.testing.assert_allclose(preranks.band_depth(None, y)[:, 0], ((9 - ranks) * (ranks - 1)).mean(1))
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    np.testing.assert_allclose(preranks.energy(None, y)[:, 0], distances.mean(1))


def test_pre_ranks_of_a_point_are_those_of_their_definitions():
    y = pool()[:, 0]
    points = y.numpy()
    np.testing.assert_allclose(preranks.mean(None, y), points.mean(1))
    np.testing.assert_allclose(preranks.variance(None, y), points.var(1, ddof=1))
    steps = ((points[:, 1:] - points[:, :-1]) ** 2).mean(1) / 2
    np.testing.assert_allclose(preranks.dependence(None, y), -steps / points.var(1, ddof=1))
    np.testing.assert_allclose(preranks.exceedance(0.3)(None, y), (points > 0.3).mean(1))
    same = torch.ones(3, 4)
    assert preranks.dependence(None, same).tolist() == [0, 0, 0]
    assert preranks.variance(None, same[:, :1]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", [*preranks.NAMED, "exceedance"])
def test_ranks_are_uniform_for_true_predictions_and_see_what_they_are_for(name, generator):
    """2,000 rows, draws 0.5 times too narrow or shifted as a control; fails once in a million seeds."""
    n, d = 2000, 3
    prerank = preranks.exceedance(0.5) if name == "exceedance" else name
    mean = torch.randn(n, d, dtype=torch.float64, generator=generator)
    y = mean + torch.randn(n, d, dtype=torch.float64, generator=generator)
    limit = uniformity.uniform_limit(n)
    u = lc.prerank_pit(Sampler(mean), y, prerank, samples=30, generator=generator)
    assert uniformity.distance_to_uniform(u) < limit
    wrong = Sampler(mean, 0.5) if name not in ("mean", "average_rank", "exceedance") else Sampler(mean - 0.5)
    if name == "dependence":  # does not depend on the scale of a whole path
        wrong = Sampler(torch.zeros_like(mean) + torch.arange(d) * 3)
    if name == "variance":
        wrong = Sampler(mean + torch.arange(d) * 2)
    u = lc.prerank_pit(wrong, y, prerank, samples=30, generator=generator)
    assert uniformity.distance_to_uniform(u) > limit


def test_a_sampler_without_a_density_is_told_what_to_do():
    pred = Sampler(torch.zeros(5, 2))
    with pytest.raises(NotImplementedError, match="from_sampler"):
        lc.hdr_pit(pred, torch.zeros(5, 2))
    with pytest.raises((TypeError, NotImplementedError), match="from_sampler"):
        lc.recalibrate_prerank(lambda x: Sampler(x[:, :2]), torch.zeros(50, 2), torch.randn(50, 2))
    with pytest.raises(ValueError, match="is not a function of y"):
        lc.recalibrate_prerank(lambda x: Sampler(x), torch.zeros(50, 2), torch.zeros(50, 2), prerank="energy")
    with pytest.raises(ValueError, match="did you mean 'band_depth'"):
        lc.prerank_pit(pred, torch.zeros(5, 2), "band-depth")
    with pytest.raises(TypeError, match="a name or a function"):
        lc.prerank_pit(pred, torch.zeros(5, 2), 3)
