import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, MixtureSameFamily, Normal
from torch.utils.data import DataLoader, TensorDataset

import same
from latentcal.fingerprint import CalibrationReuseWarning
from latentcal.flows import LinearGaussianFlow
from latentcal.metrics import calibration_error
from latentcal.pit import hdr_pit, negative_log_density, prerank_pit
from latentcal.recalibration import recalibrate
from latentcal.recalibration.prerank import recalibrate_prerank as recalibrate_by_any_method
from latentcal.toy import bimodal, heteroscedastic_linear
from toys import SinhFlow, scaled_gaussian
from uniformity import uniform_limit

Model = Callable[[Tensor], Distribution]
recalibrate_prerank = partial(recalibrate_by_any_method, method="resampling")
"""The published algorithm; what both methods must do is tested with ``both_methods``."""
both_methods = pytest.mark.parametrize("method", ["importance", "resampling"])


def two_normals(scale: float) -> Model:
    """The law of ``bimodal`` with both standard deviations multiplied: a mixture density without latents."""

    def model(x: Tensor) -> Distribution:
        centres = x.new_tensor([[2.0, 2.0], [-2.0, -2.0]]).expand(*x.shape[:-1], 2, 2)
        scales = scale * torch.cat([0.5 + 0.5 * x, 1.0 - 0.5 * x], -1)[..., None].expand_as(centres)
        weights = torch.cat([0.3 + 0.4 * x, 0.7 - 0.4 * x], -1)
        return MixtureSameFamily(Categorical(weights), Independent(Normal(centres, scales), 1))

    return model


def linear_regression() -> LinearGaussianFlow:
    """The mean of ``heteroscedastic_linear`` with one spread for all x: a flow, wrong in most places."""
    weight = torch.cos(torch.arange(2.0))[:, None].double()
    return LinearGaussianFlow(weight, torch.zeros(2).double(), 0.7 * torch.eye(2).double())


MISSPECIFIED = {
    "overconfident mixture": (two_normals(0.8), bimodal()),
    "underconfident mixture": (two_normals(1.7), bimodal()),
    "homoscedastic flow": (linear_regression(), heteroscedastic_linear()),
}


class Rungs(Distribution):
    """Draws 0, 1, ..., k - 1 in some order, whatever is asked: ranks can be counted by hand."""

    arg_constraints = {}  # noqa: RUF012

    def __init__(self, rows: int) -> None:
        super().__init__(torch.Size([rows]), torch.Size([1]), validate_args=False)

    def sample(self, sample_shape=(), generator=None):
        (k,) = sample_shape
        order = torch.rand(k, *self.batch_shape, generator=generator).argsort(0)
        return order[..., None].double()

    def expand(self, batch_shape, _instance=None):
        return Rungs(*batch_shape)

    def log_prob(self, value):
        return -value[..., 0]


def rungs(x: Tensor) -> Rungs:
    return Rungs(len(x))


def on_rungs(u: list[float], samples: int, **options) -> object:
    """Recalibration of the ladder on observations that have exactly a share u of the draws below them."""
    y = torch.tensor(u).double()[:, None] * samples - 0.5
    x = torch.zeros(len(y), 1)
    return recalibrate_prerank(rungs, x, y, samples=samples, **options)


def test_counts_by_bin_are_the_floors_of_the_algorithm_by_hand():
    # F_U is 1/4 from 0 on, 3/4 from 0.3 on, 1 from 0.9 on; times K = 10 and rounded down at b/5:
    # 2 at 0, then 2, 7, 7, 7, 10. Pools are {0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}.
    model = on_rungs([0.0, 0.3, 0.9, 0.3], 10, bins=5)
    assert model.quotas == [2, 5, 0, 0, 3]
    assert model.pools == [0, 2, 4, 6, 8, 10]
    draws = model(torch.zeros(200, 1)).resample(torch.Generator().manual_seed(0))[..., 0]
    assert draws.shape == (10, 200)
    pools = (draws // 2).long()
    assert pools.T.tolist() == [[0, 0, 1, 1, 1, 1, 1, 4, 4, 4]] * 200
    for pool in (0, 1, 4):  # with replacement from the whole pool, evenly
        lower = (draws[pools == pool] % 2 == 0).double().mean()
        assert abs(float(lower) - 0.5) < uniform_limit(400)


def test_the_published_formula_loses_the_points_at_zero():
    model = on_rungs([0.0, 0.3, 0.9, 0.3], 10, bins=5, first_bin_from_zero=False)
    assert model.quotas == [0, 5, 0, 0, 3]
    pred = model(torch.zeros(3, 1))
    assert pred.resample().shape == (8, 3, 1)
    assert pred.sample((10,)).shape == (10, 3, 1)  # from two sets of 8
    lost = on_rungs([0.0, 0.0], 10, bins=5, first_bin_from_zero=False)
    with pytest.raises(ValueError, match=r"All calibration points have U = 0.*first_bin_from_zero=True"):
        lost(torch.zeros(3, 1)).sample()


def test_floors_are_taken_in_whole_numbers():
    # In floating point 100 * 0.29 is 28.999999999999996.
    model = on_rungs([0.05] * 29 + [1.0] * 71, 100)
    assert model.quotas == [29] + [0] * 18 + [71]
    # And 0.3 = 6/20 belongs to bin 6, although 0.1 * 3 > 0.3.
    assert on_rungs([0.3], 100).quotas == [0] * 5 + [100] + [0] * 14


def test_draws_that_equal_the_observation_count_as_at_most_it():
    x, y = torch.zeros(1, 1), torch.tensor([[2.0]]).double()
    model = recalibrate_prerank(rungs, x, y, samples=10, bins=5)
    assert model.recalibration.counts.tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]  # 0, 1 and 2 of ten


def test_pools_cover_all_candidates_where_bins_do_not_divide_them():
    model = on_rungs([0.2, 0.5, 0.9], 7, bins=3)
    assert model.pools == [0, 2, 4, 7]
    # U = 0.2, 0.5, 0.9 of 7 draws: ranks 1, 3, 6, so F_U(1/3) = 1/3, F_U(2/3) = 2/3.
    assert model.quotas == [2, 2, 3]


def test_a_sample_of_k_is_the_algorithms_set_and_fewer_are_a_random_part_of_it():
    """Each frequency strays from its quota beyond the limit with probability 1e-6."""
    model = on_rungs([0.0, 0.3, 0.9, 0.3], 10, bins=5)
    pred = model(torch.zeros(4000, 1))
    pools = (pred.sample((10,), generator=torch.Generator().manual_seed(0))[..., 0] // 2).long()
    assert pools.sort(0).values.T.tolist() == [[0, 0, 1, 1, 1, 1, 1, 4, 4, 4]] * 4000
    for draws in (pools[0], (pred.sample().reshape(-1) // 2).long()):
        frequency = torch.bincount(draws, minlength=5) / 4000
        assert float((frequency - torch.tensor([0.2, 0.5, 0, 0, 0.3])).abs().max()) < uniform_limit(4000)
    first = (pred.resample()[0, :, 0] // 2).long()
    assert int(first.max()) == 0  # control: in the algorithm's own order the first is of the first bin


@both_methods
def test_samples_have_the_shapes_of_torch(method):
    model = recalibrate_by_any_method(two_normals(0.5), *bimodal().sample(50), method=method)
    pred = model(torch.rand(3, 5, 1))
    assert (pred.batch_shape, pred.event_shape) == ((3, 5), (2,))
    assert pred.sample().shape == (3, 5, 2)
    assert pred.sample((4, 60)).shape == (4, 60, 3, 5, 2)  # 240 draws: three sets
    assert pred.sample((0,)).shape == (0, 3, 5, 2)
    if method == "resampling":
        assert pred.resample().shape == (100, 3, 5, 2)
    assert model(torch.empty(0, 1)).sample((7,)).shape == (7, 0, 2)
    assert pred.expand((2, 3, 5)).log_prob(torch.zeros(2)).shape == (2, 3, 5)


@both_methods
@pytest.mark.parametrize("name", ["overconfident mixture", "homoscedastic flow"])
def test_results_do_not_depend_on_the_batch_size(name, method):
    model, toy = MISSPECIFIED[name]
    x, y = toy.sample(60, torch.Generator().manual_seed(0), torch.float64)
    results = []
    for batch_size in (None, 1, 7, 1000):
        source = torch.Generator().manual_seed(1)
        pred = recalibrate_by_any_method(
            model,
            x,
            y,
            method=method,
            samples=50,
            density_samples=100,
            batch_size=batch_size,
            generator=source,
        )(x)
        results.append((pred.sample((70,), generator=source), pred.log_prob(y), pred.log_prob_error(y)))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@both_methods
@pytest.mark.parametrize("name", ["overconfident mixture", "homoscedastic flow"])
def test_the_density_at_x_does_not_depend_on_the_other_rows(name, method):
    model, toy = MISSPECIFIED[name]
    x, y = toy.sample(100, torch.Generator().manual_seed(0), torch.float64)
    recalibrated = recalibrate_by_any_method(model, x, y, method=method, density_samples=200)
    together = recalibrated(x).log_prob(y)
    assert same.repeated(recalibrated(x).log_prob(y), together)
    rows = torch.tensor([70, 3])
    torch.testing.assert_close(recalibrated(x[rows]).log_prob(y[rows]), together[rows], rtol=1e-9, atol=1e-9)
    shifted = replace(recalibrated, seed=recalibrated.seed + 1)(x).log_prob(y)
    assert float((shifted - together).abs().max()) > 1e-3  # control: it does depend on the draws


@both_methods
def test_y_broadcasts_against_x_as_in_torch(method):
    x, y = bimodal().sample(60, torch.Generator().manual_seed(0), torch.float64)
    recalibrated = recalibrate_by_any_method(two_normals(0.75), x, y, method=method, density_samples=200)
    pred = recalibrated(x[:3])
    grid = torch.randn(5, 4, 1, 2, dtype=torch.float64)
    values = pred.log_prob(grid)
    assert values.shape == (5, 4, 3)
    torch.testing.assert_close(values[2, 1], pred.log_prob(grid[2, 1].expand(3, 2)))
    one = recalibrated(x[:1]).log_prob(grid[:, 0, 0])  # batch shape (1,), five points
    torch.testing.assert_close(one, values[:, 0, 0])
    single = recalibrated(x[0])
    assert single.batch_shape == ()
    torch.testing.assert_close(single.log_prob(grid[:, 0, 0]), values[:, 0, 0])
    assert pred.log_prob(grid[:0]).shape == (0, 4, 3)


@pytest.mark.parametrize("name", MISSPECIFIED)
def test_the_density_integrates_to_one(name):
    """Up to a stated deviation, nearly normal: each integral exceeds five of them with probability 6e-7.

    With enough draws three deviations are less than a hundredth.
    """
    model, toy = MISSPECIFIED[name]
    axis = torch.linspace(-9, 9, 241, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)[:, None]
    x = torch.tensor([[0.1], [0.5], [0.9]]).double()
    base = model(x).log_prob(grid)

    def error(log_density: Tensor) -> float:
        return float((log_density.exp().sum(0) * 0.075**2 - 1).abs().max())

    recalibrated = recalibrate_prerank(
        model,
        *toy.sample(1000, torch.Generator().manual_seed(0), torch.float64),
        generator=torch.Generator().manual_seed(1),
    )
    assert error(recalibrated(x).log_prob(grid)) < 5 * float(recalibrated(x).normalization_error[0])
    exact = replace(recalibrated, density_samples=150_000)
    density = exact(x).log_prob(grid)
    assert 3 * float(exact(x).normalization_error[0]) < 0.01
    assert error(density) < 0.01
    assert error(2 * density - base) > 0.01  # control: twice the tilt is seen


@pytest.mark.parametrize("name", ["overconfident mixture", "underconfident mixture"])
def test_resampled_draws_follow_the_density(name):
    """Frequencies of eleven level sets and half-planes; a right program fails with probability 1.2e-5.

    The limit adds the error of the calibration map (DKW), the rounding to floors and bins, and the error of
    draws that are independent, one from a set.
    """
    model, toy = MISSPECIFIED[name]
    n, samples, bins, rows = 4000, 400, 50, 2000
    source = torch.Generator().manual_seed(0)
    recalibrated = recalibrate_prerank(
        model,
        *toy.sample(n, source, torch.float64),
        samples=samples,
        bins=bins,
        density_samples=10_000,
        generator=source,
    )
    x = torch.tensor([[0.3]]).double().expand(rows, 1)
    draws = recalibrated(x).sample(generator=source)
    base = model(x[:1])
    axis = torch.linspace(-9, 9, 361, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    weights = recalibrated(x[:1]).log_prob(grid).exp()
    weights = weights / weights.sum()
    plain = base.log_prob(grid).exp()
    plain = plain / plain.sum()
    levels = base.log_prob(grid)[torch.multinomial(weights, 9, generator=source)].tolist()
    events = [(lambda y, c=c: base.log_prob(y) > c) for c in levels]
    events += [(lambda y, a=a: y @ torch.tensor(a).double() > 1.0) for a in ((1.0, 0.0), (-0.7, 0.7))]
    limit = uniform_limit(n) + 1 / samples + 1 / bins + uniform_limit(rows)

    def largest_gap(weights: Tensor) -> float:
        return max(abs(float(weights[e(grid)].sum() - e(draws).double().mean())) for e in events)

    assert largest_gap(weights) < limit
    assert largest_gap(plain) > limit  # control: the base density is not that of the draws


@both_methods
@pytest.mark.parametrize("name", MISSPECIFIED)
def test_recalibration_lowers_hdr_error_and_likelihood_loss_of_a_wrong_model(name, method):
    model, toy = MISSPECIFIED[name]
    source = torch.Generator().manual_seed(0)
    rows, draws = (400, 150) if method == "importance" else (1000, 500)
    recalibrated = recalibrate_by_any_method(
        model,
        *toy.sample(1000, source, torch.float64),
        method=method,
        density_samples=draws,
        generator=source,
    )
    x, y = toy.sample(rows, source, torch.float64)
    pred = recalibrated(x)
    before = calibration_error(hdr_pit(model(x), y, generator=source))
    after = calibration_error(prerank_pit(pred, y, recalibrated.base_prerank, generator=source))
    tilted = calibration_error(hdr_pit(pred, y, generator=source))
    assert float(before) > 0.05
    assert float(after) < 0.5 * float(before)
    assert float(tilted) < 0.5 * float(before)
    assert float((pred.log_prob(y) - model(x).log_prob(y)).mean()) > 0.02


@both_methods
@pytest.mark.parametrize("name", ["mixture", "flow"])
def test_a_true_model_keeps_its_density_to_five_thousandths(name, method):
    model, toy = {
        "mixture": (two_normals(1.0), bimodal()),
        "flow": (scaled_gaussian(2, 1.0), None),
    }[name]
    source = torch.Generator().manual_seed(0)

    def data(n: int) -> tuple[Tensor, Tensor]:
        if toy is not None:
            return toy.sample(n, source, torch.float64)
        return torch.zeros(n, 1).double(), torch.randn(n, 2, generator=source, dtype=torch.float64)

    recalibrated = recalibrate_by_any_method(
        model, *data(2000), method=method, density_samples=300, generator=source
    )
    x, y = data(1000)
    change = recalibrated(x).log_prob(y) - model(x).log_prob(y)
    assert abs(float(change.mean())) < 0.005


class TrainedMixture(nn.Module):
    """A small mixture density network with dropout: a network gives the parameters of three normals."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Dropout(0.02), nn.Linear(32, 15))

    def forward(self, x: Tensor) -> Distribution:
        out = self.net(x).unflatten(-1, (3, 5))
        components = Independent(Normal(out[..., :2], out[..., 2:4].exp()), 1)
        return MixtureSameFamily(Categorical(logits=out[..., 4]), components)


@both_methods
def test_the_hdr_error_of_a_trained_mixture_density_network_falls_below_a_twentieth(method):
    torch.manual_seed(0)
    source = torch.Generator().manual_seed(0)
    toy, network = bimodal(), TrainedMixture()
    x, y = toy.sample(60, source)  # far too few: the network becomes sure of itself
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        (-network(x).log_prob(y).mean()).backward()
        optimizer.step()
    recalibrated = recalibrate_by_any_method(
        network, *toy.sample(1000, source), method=method, density_samples=200, generator=source
    )
    assert network.training  # left in its mode, but asked without dropout:
    assert same.repeated(recalibrated(x).log_prob(y), recalibrated(x).log_prob(y))
    x, y = toy.sample(1000, source)
    network.eval()
    before = calibration_error(hdr_pit(network(x), y, generator=source))
    network.train()
    pred = recalibrated(x)
    after = calibration_error(prerank_pit(pred, y, recalibrated.base_prerank, generator=source))
    assert float(before) > 0.06  # over seeds: 0.11 to 0.17
    assert float(after) < min(0.05, 0.5 * float(before))  # 0.01 to 0.03
    network.eval()
    assert float((pred.log_prob(y) - network(x).log_prob(y)).detach().mean()) > 0.02
    assert not recalibrated(x[:5]).log_prob(y[:5].requires_grad_()).requires_grad


@both_methods
def test_the_stated_error_is_the_spread_over_seeds(method):
    """Over 40 seeds; the draws are common to the points, so the bound is wide.

    Of weighted draws it is an upper bound: the errors of U and of the integral cancel in part.
    """
    low = 0.55 if method == "importance" else 0.75
    x, y = bimodal().sample(400, torch.Generator().manual_seed(0), torch.float64)
    recalibrated = recalibrate_by_any_method(
        two_normals(1.7), x, y, method=method, generator=torch.Generator().manual_seed(1)
    )
    x, y = x[:10], y[:10]

    def ratio(draws: int, stated_with: int) -> float:
        runs = [replace(recalibrated, density_samples=draws, seed=seed) for seed in range(40)]
        spread = torch.stack([run(x).log_prob(y) for run in runs]).var(0)
        stated = replace(recalibrated, density_samples=stated_with)(x).log_prob_error(y)
        return float((spread.mean() / (stated**2).mean()).sqrt())

    assert low < ratio(100, 100) < 1.3
    assert not low < ratio(100, 1200) < 1.3  # control


@both_methods
def test_tied_preranks_are_neither_gain_nor_loss(method):
    """A pre-rank that tells nothing apart leaves the density as it was."""
    x, y = bimodal().sample(60, torch.Generator().manual_seed(0), torch.float64)

    def constant(pred, y, x):
        return torch.zeros(y.shape[:-1])

    model = recalibrate_by_any_method(
        two_normals(0.5), x, y, method=method, prerank=constant, density_samples=200
    )
    torch.testing.assert_close(model(x).log_prob(y), two_normals(0.5)(x).log_prob(y))
    assert float(model(x).log_prob_error(y).max()) < 0.05


def test_a_true_model_stays_as_it_is_under_a_prerank_with_ties():
    x, y = bimodal().sample(2000, torch.Generator().manual_seed(0), torch.float64)

    def side(pred, y, x):
        return y.sum(-1).sign()

    source = torch.Generator().manual_seed(1)
    model = recalibrate_prerank(two_normals(1.0), x, y, prerank=side, generator=source)
    assert float(model.recalibration.law.log_rank_ratio(100).abs().max()) < 0.2


def test_any_prerank_recalibrates_its_own_statistic():
    """The first output is shifted: ranks by it become uniform, within the DKW limits of both samples."""
    source = torch.Generator().manual_seed(0)
    flow = SinhFlow(2)
    x = torch.randn(4000, 2, generator=source, dtype=torch.float64)
    y = flow(x).sample(generator=source) + torch.tensor([0.5, 0.0])

    def first(pred, y, x):
        return y[..., 0] - x[..., 0]

    model = recalibrate_prerank(flow, x[:2000], y[:2000], prerank=first, generator=source)
    pred = model(x[2000:])
    before = prerank_pit(flow(x[2000:]), y[2000:], first, x=x[2000:], generator=source)
    after = prerank_pit(pred, y[2000:], model.base_prerank, generator=source)
    assert float(calibration_error(before, p=math.inf)) > 0.1
    assert float(calibration_error(after, p=math.inf)) < 2 * uniform_limit(2000) + 0.02


def test_the_calibration_map_is_the_empirical_law():
    levels, share = on_rungs([0.0, 0.3, 0.9, 0.3], 10, bins=5).recalibration.calibration_map
    torch.testing.assert_close(levels, torch.arange(11).double() / 10)
    expected = [0.25] * 3 + [0.75] * 6 + [1.0] * 2
    torch.testing.assert_close(share.double(), torch.tensor(expected).double())


@both_methods
def test_an_unconditional_model_and_a_loader_of_batches_will_do(method):
    source = torch.Generator().manual_seed(0)
    y = 2 * torch.randn(400, 2, generator=source, dtype=torch.float64)
    flow = scaled_gaussian(2, 1.0)
    model = recalibrate_by_any_method(
        flow, None, y, method=method, density_samples=200, generator=torch.Generator().manual_seed(1)
    )
    assert model().sample().shape == (2,)
    assert 1.4 < float(model().expand((100,)).sample((100,)).std()) < 2.1
    assert model().log_prob(y).shape == (400,)
    assert model().expand((4,)).log_prob(y[:4]).shape == (4,)
    for batch in (7, 400):
        loader = DataLoader(TensorDataset(y), batch_size=batch)
        other = recalibrate_by_any_method(
            flow, loader, method=method, density_samples=200, generator=torch.Generator().manual_seed(1)
        )
        assert same.decided(other.recalibration.counts, model.recalibration.counts)
        assert other.seed == model.seed


@both_methods
def test_reused_rows_are_noticed(method):
    x, y = bimodal().sample(100, torch.Generator().manual_seed(0), torch.float64)
    model = recalibrate_by_any_method(
        two_normals(0.7), x[:50], y[:50], density_samples=100, samples=20, method=method
    )
    recalibrate_by_any_method(
        model, x[50:], y[50:], samples=20, density_samples=100, method=method
    )  # new rows: silent
    with pytest.warns(CalibrationReuseWarning, match="About 100%.*second recalibration") as caught:
        recalibrate_by_any_method(model, x[:50], y[:50], samples=20, density_samples=100, method=method)
    assert caught[0].filename == __file__
    flow = recalibrate(scaled_gaussian(2, 1.0), x, y)
    with pytest.warns(CalibrationReuseWarning):
        recalibrate_by_any_method(flow, x, y, samples=20)


@both_methods
def test_the_global_source_is_used_where_no_generator_is_given(method):
    x, y = bimodal().sample(100, torch.Generator().manual_seed(0), torch.float64)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        model = recalibrate_by_any_method(two_normals(0.7), x, y, method=method, density_samples=100)
        draws.append((model.seed, model(x).sample()))
    assert draws[0][0] == draws[1][0]
    assert same.repeated(draws[0][1], draws[1][1])
    assert same.different(model(x).sample(), model(x).sample())


def test_it_says_what_it_is_and_cannot_be_changed():
    x, y = bimodal().sample(1234, torch.Generator().manual_seed(0), torch.float64)
    model = recalibrate_prerank(two_normals(0.7), x, y)
    assert "recalibrated by negative_log_density on 1,234 points" in str(model)
    assert "100 candidates in 20 bins" in str(model)
    assert repr(model) == (
        "PrerankRecalibrated(function, negative_log_density, method='resampling', samples=100, bins=20, "
        f"first_bin_from_zero=True, density_samples=1000, seed={model.seed})"
    )
    assert repr(model(x)) == ("PrerankDistribution(MixtureSameFamily, batch_shape=(1234,), event_shape=(2,))")
    with pytest.raises(FrozenInstanceError):
        model.bins = 3
    assert model.recalibration.n == 1234


def test_wrong_arguments_are_explained():
    x, y = bimodal().sample(30, torch.Generator().manual_seed(0), torch.float64)
    model = two_normals(1.0)
    for wrong, message in (
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"samples": 10.0}, "samples must be a whole number"),
        ({"bins": 0}, "bins must be"),
        ({"density_samples": -1}, "density_samples must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"samples": 10}, "20 bins for 10 candidates leave some bins empty"),
    ):
        with pytest.raises(ValueError, match=message):
            recalibrate_prerank(model, x, y, **wrong)
    with pytest.raises(ValueError, match="No pre-rank"):
        recalibrate_prerank(model, x, y, prerank="hdr")
    with pytest.raises(TypeError, match="model must be a function from x to a distribution, got float"):
        recalibrate_prerank(1.0, x, y)
    with pytest.raises(TypeError, match="must return a torch Distribution, got Tensor"):
        recalibrate_prerank(lambda x: x, x, y)
    with pytest.raises(ValueError, match=r"event shape \(\); x and y need \(30,\) and \(2,\).*Independent"):
        recalibrate_prerank(lambda x: Normal(x.expand(-1, 2), 1.0), x, y)
    with pytest.raises(ValueError, match=r"event shape \(2,\); x and y need \(30,\) and \(1,\)"):
        recalibrate_prerank(model, x, y[:, :1])
    with pytest.raises(ValueError, match="x has 30 rows and y has 29"):
        recalibrate_prerank(model, x, y[1:])
    with pytest.raises(ValueError, match=r"For a single output use y\[:, None\]"):
        recalibrate_prerank(model, x, y[:, 0])
    with pytest.raises(ValueError, match="y has NaN or infinite values in 1 of 30 points"):
        recalibrate_prerank(model, x, torch.where(torch.arange(30)[:, None] == 3, math.nan, y))
    with pytest.raises(ValueError, match="no calibration points"):
        recalibrate_prerank(model, x[:0], y[:0])
    with pytest.raises(ValueError, match="one number for each point"):
        recalibrate_prerank(model, x, y, prerank=lambda pred, y, x: y)
    recalibrated = recalibrate_prerank(model, x, y)
    with pytest.raises(ValueError, match="without NaN or infinite"):
        recalibrated(x * math.nan)
    with pytest.raises(ValueError, match=r"the last dimension must be the 2 outputs"):
        recalibrated(x).log_prob(y[:, :1])
    with pytest.raises(ValueError, match=r"leading dims must broadcast"):
        recalibrated(x).log_prob(y[:7])
    with pytest.raises(ValueError, match="y has 60 NaN"):
        recalibrated(x).log_prob(y * math.nan)
    with pytest.raises(TypeError, match="pred must be the recalibrated prediction"):
        recalibrated.base_prerank(model(x), y)
    torch.testing.assert_close(
        recalibrated.base_prerank(recalibrated(x), y), negative_log_density(model(x), y)
    )
