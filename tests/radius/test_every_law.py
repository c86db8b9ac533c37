"""What holds for every law of a radius, whatever its formula."""

import copy
import functools
import math

import numpy as np
import pytest
import torch
from laws import LAWS, kinks
from torch import nn

import same
from uniformity import distance_to_uniform, uniform_limit

EPS = torch.finfo(torch.float64).eps
each_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())

# Log-probabilities of a tail, from 1e-12 to a half.
TAIL = torch.cat(
    [
        torch.linspace(math.log(1e-12), math.log(0.01), 60, dtype=torch.float64),
        torch.linspace(0.0125, 0.5, 40, dtype=torch.float64).log(),
    ]
)


def _radii(law):
    """Radii from the 1e-12 quantile to the 1 - 1e-12 quantile, and the log of the smaller tail at each."""
    r = torch.cat([law.icdf_log_cdf(TAIL), law.icdf_log_sf(TAIL.flip(0))[1:]])
    return r, torch.minimum(law.log_cdf(r), law.log_sf(r))


def _conditioning(law, r, log_tail):
    """Relative change of a tail probability for a relative change of r: what the rounding of r costs."""
    return torch.exp(law.log_prob(r) - log_tail) * r


def _smooth_levels(law, n):
    """n probabilities from 0.05 to 0.9, none of them close to a kink of the density."""
    u = torch.linspace(0.05, 0.9, n, dtype=torch.float64)
    ends = torch.cat([u.new_tensor([0.0]), law.cdf(kinks(law)), u.new_tensor([1.0])])
    if ends.numel() == 2:
        return u
    piece = torch.searchsorted(ends, u)
    low, width = ends[piece - 1], ends[piece] - ends[piece - 1]
    return low + width * ((u - low) / width).clamp(0.25, 0.75)


def _central(law, n=7):
    return law.icdf(torch.linspace(0.08, 0.93, n, dtype=torch.float64))


def _derivative(function, point):
    point = point if point.requires_grad else point.detach().requires_grad_()
    total = function(point).sum()
    if not total.requires_grad:  # the derivative of a constant slope
        return torch.zeros_like(point)
    (slope,) = torch.autograd.grad(total, point, create_graph=True)
    return slope


def _difference_quotient(function, point, h):
    """Slope by five points: the error is of the order of h^4, besides rounding."""
    near = function(point + h) - function(point - h)
    far = function(point + 2 * h) - function(point - 2 * h)
    return ((8 * near - far) / (12 * h)).detach()


@each_law
def test_the_density_integrates_to_one(law):
    quantiles, _ = _radii(law)
    parts = torch.linspace(0, 1, 5, dtype=torch.float64)[:-1]
    edges = (quantiles[:-1, None] + quantiles.diff()[:, None] * parts).reshape(-1)
    edges = torch.sort(torch.cat([edges, kinks(law).clamp(edges[0], edges[-1])])).values
    low, width = edges[:-1, None], edges.diff()[:, None]
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(16))
    density = torch.exp(law.log_prob(low + width * (nodes + 1) / 2))
    assert (density * weights * width / 2).sum().item() == pytest.approx(1, abs=1e-6)


@each_law
def test_the_finite_difference_slope_of_the_cdf_is_the_density(law):
    r, log_tail = _radii(law)
    h = 3e-5 * torch.exp(log_tail - law.log_prob(r))
    smooth = ((r[:, None] - kinks(law)).abs() > 2 * h[:, None]).all(1)
    inner = (r < law.upper) & smooth  # the last quantiles may round to the end of the support
    assert inner.sum() > 150
    r, log_tail, h = r[inner], log_tail[inner], h[inner]
    lower_half = law.log_cdf(r) < law.log_sf(r)

    def smaller_tail(point):
        lower, upper = (torch.exp(tail(point) - log_tail) for tail in (law.log_cdf, law.log_sf))
        return torch.where(lower_half, lower, -upper)

    error = _difference_quotient(smaller_tail, r, h) * torch.exp(log_tail - law.log_prob(r)) - 1
    assert (error.abs() <= 1e-6 + 4 * EPS * r / h).all(), error.abs().max()


@each_law
def test_quantiles_and_tail_probabilities_invert_each_other(law):
    for quantile, tail in ((law.icdf_log_cdf, law.log_cdf), (law.icdf_log_sf, law.log_sf)):
        r = quantile(TAIL)
        error = torch.expm1(tail(r) - TAIL).abs()
        assert (error <= 1e-10 + 4 * EPS * _conditioning(law, r, TAIL)).all(), error.max()
        torch.testing.assert_close(quantile(tail(r)), r, rtol=1e-10, atol=0)
    u = TAIL.exp()
    torch.testing.assert_close(law.icdf(u), law.icdf_log_cdf(TAIL), rtol=1e-10, atol=0)
    torch.testing.assert_close(law.icdf(1 - u[60:]), law.icdf_log_sf(TAIL[60:]), rtol=1e-10, atol=0)


@each_law
def test_both_tails_at_once_are_those_taken_one_by_one(law):
    r, _ = _radii(law)
    log_cdf, log_sf = law.log_tails(r)
    torch.testing.assert_close(log_cdf, law.log_cdf(r), rtol=1e-10, atol=0)
    torch.testing.assert_close(log_sf, law.log_sf(r), rtol=1e-10, atol=0)
    torch.testing.assert_close(law.icdf_log_tails(log_cdf, log_sf), r, rtol=1e-10, atol=0)
    assert not law.log_tails(r.requires_grad_())[0].requires_grad


@each_law
def test_quantiles_rise_and_their_tails_add_up_to_one(law):
    r, _ = _radii(law)
    assert (
        r[1:] > r[:-1]
    ).sum() >= 0.9 * r.numel()  # neighbours may round to one number at the end of [0, 1]
    assert (r[1:] >= r[:-1] * (1 - 4 * EPS)).all()
    torch.testing.assert_close(
        law.log_cdf(r).exp() + law.log_sf(r).exp(), torch.ones_like(r), rtol=1e-12, atol=0
    )
    torch.testing.assert_close(law.cdf(r), law.log_cdf(r).exp(), rtol=1e-12, atol=0)


@each_law
def test_the_ends_of_the_support_are_quantiles(law):
    ends = torch.tensor([0.0, law.upper], dtype=torch.float64)
    assert same.defined(law.icdf(torch.tensor([0.0, 1.0])), ends)
    assert same.defined(law.icdf_log_cdf(torch.tensor([-math.inf, 0.0])), ends)
    assert same.defined(law.icdf_log_sf(torch.tensor([0.0, -math.inf])), ends)
    assert law.cdf(ends).tolist() == [0, 1]
    assert law.log_cdf(ends).tolist() == [-math.inf, 0]
    assert law.log_sf(ends).tolist() == [0, -math.inf]


@each_law
def test_nothing_lies_outside_of_the_support(law):
    beyond = math.inf if math.isinf(law.upper) else 1.5
    outside = torch.tensor([-math.inf, -3.0, -1e-300, beyond], dtype=torch.float64)
    assert law.log_prob(outside).isneginf().all()
    assert law.cdf(outside).tolist() == [0, 0, 0, 1]
    assert law.log_cdf(outside).tolist() == [-math.inf, -math.inf, -math.inf, 0]
    assert law.log_sf(outside).tolist() == [0, 0, 0, -math.inf]


@each_law
def test_no_radius_gives_nan(law):
    powers = torch.cat([torch.linspace(-300, 300, 121), torch.linspace(-12, 6, 73)]).double().sort().values
    r = torch.cat([torch.zeros(1, dtype=torch.float64), 10**powers])
    log_cdf = law.log_cdf(r)
    for values in (law.log_prob(r), log_cdf, law.log_sf(r), law.cdf(r)):
        assert not values.isnan().any()
    for dim in (1, 2, 1000):
        assert not law.log_radial_density(r, dim).isnan().any()
    assert (log_cdf.diff() >= 0).sum() + log_cdf.isneginf().sum() >= r.numel() - 1
    v = torch.tensor([-1e-300, -1e-15, -0.1, -50.0, -5000.0, -3e5], dtype=torch.float64)
    for quantile in (law.icdf_log_cdf(v), law.icdf_log_sf(v)):
        assert ((quantile >= 0) & (quantile <= law.upper)).all()


@each_law
def test_the_radial_density_is_the_density_over_a_power_of_r(law):
    r = _central(law)
    for dim in (1, 2, 30, getattr(law, "dim", 5)):
        expected = law.log_prob(r) - (dim - 1) * torch.log(r)
        torch.testing.assert_close(law.log_radial_density(r, dim), expected, rtol=1e-12, atol=1e-9)


@each_law
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "name",
    ["log_prob", "log_cdf", "log_sf", "cdf", "log_radial_density", "icdf", "icdf_log_cdf", "icdf_log_sf"],
)
def test_derivatives_agree_with_finite_differences(law, name, order):
    u, function = _smooth_levels(law, 6), getattr(law, name)
    if name.startswith("icdf"):
        point = {"icdf": u, "icdf_log_cdf": u.log(), "icdf_log_sf": torch.log1p(-u)}[name]
        scale = {"icdf": u * (1 - u), "icdf_log_cdf": 1 - u, "icdf_log_sf": u}[name]
    else:
        point = law.icdf(u)
        scale = torch.exp(torch.minimum(law.log_cdf(point), law.log_sf(point)) - law.log_prob(point))
    if name == "log_radial_density":
        function = functools.partial(law.log_radial_density, dim=5)
    if order == 2:
        function = functools.partial(_derivative, function)
    expected = _difference_quotient(function, point, 1e-3 * scale)
    rounding = 1e-7 * function(point).abs() / scale
    assert ((_derivative(function, point) - expected).abs() <= 1e-5 * expected.abs() + rounding).all()


@each_law
def test_samples_follow_the_cdf(law, generator):
    r = law.sample((20_000,), generator)
    limit = uniform_limit(20_000, failure_rate=1e-6)
    assert distance_to_uniform(law.cdf(r)) < limit
    assert distance_to_uniform(law.cdf(1.2 * r)) > limit  # control: radii 20 % too large are noticed


@each_law
def test_samples_have_the_shape_and_the_seed_asked_for(law):
    first, again, other = (law.sample((3, 4), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (3, 4)
    assert first.dtype == torch.float64
    assert same.drawn(first, again)
    assert same.different(first, other)
    assert law.sample().shape == ()


@each_law
def test_radii_of_any_shape_and_dtype_are_answered_in_float64(law):
    r = _central(law, n=6).float()
    for method in (law.log_prob, law.log_cdf, law.log_sf, law.cdf, lambda r: law.log_radial_density(r, 3)):
        values = method(r)
        assert values.dtype == torch.float64
        torch.testing.assert_close(values, method(r.double()), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(
            method(r.reshape(2, 1, 3)), values.reshape(2, 1, 3), rtol=1e-13, atol=1e-13
        )
        torch.testing.assert_close(method(r[2]), values[2], rtol=1e-13, atol=1e-13)
        assert method(r[:0]).shape == (0,)
    assert law.icdf(torch.full((2, 3), 0.25)).shape == (2, 3)
    assert law.icdf(torch.zeros(0)).shape == (0,)
    assert law.icdf(torch.tensor(0.25)).dtype == torch.float64


@each_law
def test_casting_the_model_around_it_does_not_round_the_law(law):
    r = _central(law)
    model = nn.ModuleDict({"law": copy.deepcopy(law), "linear": nn.Linear(2, 2)})
    model.half().float()
    assert model["linear"].weight.dtype == torch.float32  # control: the cast reached the model
    cast = dict(model["law"].named_buffers())
    assert cast.keys() == dict(law.named_buffers()).keys()
    assert all(same.copied(buffer, cast[name]) for name, buffer in law.named_buffers())
    torch.testing.assert_close(model["law"].log_prob(r), law.log_prob(r), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model["law"].log_cdf(r), law.log_cdf(r), rtol=1e-9, atol=1e-9)


@each_law
def test_what_is_no_probability_is_refused(law):
    for u in ([-0.1], [1.0 + 1e-9], [0.5, math.nan]):
        with pytest.raises(ValueError, match=r"icdf takes probabilities in \[0, 1\]"):
            law.icdf(torch.tensor(u, dtype=torch.float64))
    for quantile in (law.icdf_log_cdf, law.icdf_log_sf):
        for v in ([0.1], [math.nan, -1.0]):
            with pytest.raises(ValueError, match="takes log-probabilities <= 0"):
                quantile(torch.tensor(v))


@each_law
def test_a_law_is_not_called_like_a_layer(law):
    with pytest.raises(TypeError, match="use log_prob, cdf, icdf or sample"):
        law(torch.ones(1))
