"""Laws of the radius that depend on features: what holds at every x, and what extreme data do to them."""

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import same
from latentcal._internal.smoothers import RidgeSmoother
from latentcal.base import RadialBase
from latentcal.flows import LinearGaussianFlow
from latentcal.radius import (
    BallRadius,
    Chi,
    ConditionalRadius,
    ScaledRadius,
    StackedRadius,
    StudentRadius,
    smooth,
)
from latentcal.radius.calibration_sample import CalibrationSample
from latentcal.radius.conditional import GroupedRadius, _shrink_log_scales
from latentcal.radius.smooth import SmoothRadius, StretchedRadius, _robust
from latentcal.recalibration import recalibrate
from uniformity import distance_to_uniform, uniform_limit

DIM = 3


def _data(kind: str, n: int = 600):
    """Features (n, 2), the second a label, and radii whose law depends on them."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    x[:, 1] = torch.randint(3, (n,), generator=generator)
    r = Chi(DIM).sample((n,), generator)
    if kind == "groups":
        return x, r * torch.tensor([0.6, 1.0, 1.7], dtype=torch.float64)[x[:, 1].long()]
    power = torch.exp(0.5 * x[:, 0]) if kind == "shape" else 1.0
    return x, 1.5 * (r / 1.5) ** power * torch.exp(0.4 * x[:, 0])


@functools.cache
def _law(kind: str) -> ConditionalRadius:
    x, radii = _data(kind)
    if kind == "groups":
        return ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=1)
    smoother = "neighbours" if kind == "neighbours" else "ridge"
    return ConditionalRadius.fit(radii, x, reference=Chi(DIM), smoother=smoother, shape=kind == "shape")


KINDS = ["scale", "shape", "neighbours", "groups"]
each_kind = pytest.mark.parametrize("kind", KINDS)
POINTS = torch.tensor([[-1.5, 0.0], [0.2, 1.0], [1.7, 2.0], [9.0, 7.0]], dtype=torch.float64)


def test_the_laws_under_test_are_of_the_kinds_that_they_are_called():
    assert isinstance(_law("groups"), GroupedRadius)
    assert all(isinstance(_law(kind), SmoothRadius) for kind in KINDS[:3])
    assert _law("scale").shape is None
    assert _law("shape").shape is not None


# --- what holds at every x


@each_kind
def test_the_density_integrates_to_one_at_every_x(kind):
    law = _law(kind).given(POINTS)
    tail = torch.cat([torch.linspace(-40, -5, 200), torch.linspace(math.exp(-5), 0.5, 400).log()])
    tail = tail.double()[:, None].expand(-1, 4)
    edges = torch.cat([law.icdf_log_cdf(tail), law.icdf_log_sf(tail.flip(0))[1:]])
    nodes, weights = (torch.from_numpy(a)[:, None, None] for a in np.polynomial.legendre.leggauss(8))
    low, width = edges[:-1], edges.diff(dim=0)
    density = torch.exp(law.log_prob(low + width * (nodes + 1) / 2))
    total = (density * weights * width / 2).sum((0, 1))
    torch.testing.assert_close(total, torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-6)


@each_kind
def test_the_density_is_the_slope_of_the_cdf_at_every_x(kind):
    law = _law(kind).given(POINTS)
    r = law.icdf(torch.linspace(0.01, 0.99, 50, dtype=torch.float64)[:, None].expand(-1, 4)).requires_grad_()
    for tail, sign in ((law.log_cdf, 1), (law.log_sf, -1)):
        (slope,) = torch.autograd.grad(torch.exp(tail(r)).sum(), r)
        torch.testing.assert_close(sign * slope, torch.exp(law.log_prob(r)), rtol=1e-6, atol=0)
    h = 1e-4
    quotient = (law.cdf(r + h) - law.cdf(r - h)) / (2 * h)
    torch.testing.assert_close(quotient, torch.exp(law.log_prob(r)), rtol=1e-3, atol=1e-4)


@each_kind
def test_quantiles_invert_both_tails_at_every_x(kind):
    law = _law(kind).given(POINTS)
    v = -torch.logspace(-3, 2.5, 60, dtype=torch.float64)[:, None].expand(-1, 4)
    torch.testing.assert_close(law.log_cdf(law.icdf_log_cdf(v)), v, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(law.log_sf(law.icdf_log_sf(v)), v, rtol=1e-7, atol=1e-9)
    ends = law.icdf(torch.tensor([[0.0], [1.0]]).expand(2, 4))
    assert (ends[0] == 0).all()
    assert torch.isinf(ends[1]).all()
    assert same.defined(law.cdf(ends), torch.tensor([[0.0], [1.0]]).double().expand(2, 4))
    assert torch.isneginf(law.log_prob(ends[1])).all()
    assert torch.isneginf(law.log_prob(torch.full((4,), -1.0))).all()


@pytest.mark.parametrize("log_power", [-1.0, -0.3, 0.0, 0.4, 1.0])
def test_quantiles_of_heavy_tails_are_found_however_far_out_they_are(log_power):
    law = StretchedRadius(StudentRadius(2, 1.5), *torch.tensor([[0.5], [log_power]]).double(), 1.3)
    v = -torch.tensor([[1e-9], [1.0], [50.0], [200.0], [300.0]], dtype=torch.float64)
    for quantile, tail in ((law.icdf_log_cdf, law.log_cdf), (law.icdf_log_sf, law.log_sf)):
        r = quantile(v)
        finite = r < 1e290
        assert finite.sum() >= 4
        torch.testing.assert_close(tail(r)[finite], v[finite], rtol=1e-9, atol=1e-12)


@each_kind
def test_the_latent_density_at_the_origin_is_finite_and_its_limit(kind):
    law = _law(kind).given(POINTS)
    at_zero = law.log_radial_density(torch.zeros(4), DIM)
    assert torch.isfinite(at_zero).all()
    torch.testing.assert_close(
        law.log_radial_density(torch.full((4,), 1e-9), DIM), at_zero, atol=1e-6, rtol=0
    )
    r = torch.tensor([[0.5], [1.5], [4.0]], dtype=torch.float64).expand(3, 4)
    expected = law.log_prob(r) - (DIM - 1) * torch.log(r)
    torch.testing.assert_close(law.log_radial_density(r, DIM), expected)


@each_kind
def test_samples_follow_the_cdf_at_their_x_and_not_at_another(kind, generator):
    law, n = _law(kind), 4000
    r = law.given(POINTS).sample((n, 4), generator)
    assert r.shape == (n, 4)
    u = law.given(POINTS).cdf(r)
    assert max(distance_to_uniform(u[:, i]) for i in range(4)) < uniform_limit(n)  # fails once in 250,000
    swapped = law.given(POINTS[[2, 0, 1, 3]]).cdf(r)
    assert distance_to_uniform(swapped[:, 0]) > uniform_limit(n)  # control


@each_kind
def test_features_broadcast_with_radii_that_have_samples_in_front(kind):
    r = torch.rand(5, 4, dtype=torch.float64) + 0.5
    together = _law(kind).given(POINTS)
    for method in ("log_prob", "log_cdf", "log_sf", "log_prob_untabulated"):
        answer = getattr(together, method)(r)
        each = [getattr(_law(kind).given(POINTS[i]), method)(r[:, i]) for i in range(4)]
        torch.testing.assert_close(answer, torch.stack(each, 1))
    assert _law(kind).given(POINTS[0]).log_prob(torch.tensor(1.0)).shape == ()
    assert _law(kind).given(POINTS.reshape(2, 2, 2)).sample((3, 2, 2)).shape == (3, 2, 2)
    assert _law(kind).given(POINTS[:0]).log_prob(torch.empty(0)).shape == (0,)


@each_kind
def test_the_untabulated_density_is_near_the_exact_one(kind):
    x, radii = _data(kind)
    law = _law(kind).given(x)
    error = (law.log_prob_untabulated(radii) - law.log_prob(radii)).abs()
    assert error.quantile(0.98) < 0.01  # the core around the origin is left out


@pytest.mark.parametrize("kind", ["scale", "shape", "neighbours"])
def test_reparametrised_draws_have_the_gradient_by_x(kind):
    x = torch.tensor([[0.31, 1.0], [-0.7, 2.0]], dtype=torch.float64)
    at = [torch.cat([x[:, :1] + h, x[:, 1:]], 1) for h in (0.0, 1e-5, -1e-5)]
    at[0].requires_grad_()
    draws = [_law(kind).given(point).rsample((7, 2), torch.Generator().manual_seed(0)) for point in at]
    (gradient,) = torch.autograd.grad(draws[0].sum(), at[0])
    quotient = (draws[1] - draws[2]).sum(0) / 2e-5
    assert (gradient[:, 0].abs() > 0.05).any()
    torch.testing.assert_close(gradient[:, 0], quotient, rtol=1e-4, atol=1e-5)


def test_reparametrised_draws_of_a_flow_have_the_gradient_by_x_through_the_law():
    flow = LinearGaussianFlow(None, torch.zeros(DIM).double(), torch.eye(DIM).double())
    flow = flow.with_base(RadialBase(_law("scale"), DIM))
    x = torch.tensor([[0.31, 1.0]], dtype=torch.float64, requires_grad=True)
    draws = flow(x).rsample((50,), torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(draws.norm(dim=-1).mean(), x)
    assert 0.2 < float(gradient[0, 0] / draws.detach().norm(dim=-1).mean()) < 0.5  # the log scale is 0.4 x


# --- what it learns


@each_kind
def test_what_depends_on_x_is_learned_and_the_pit_is_uniform_in_both_halves(kind):
    x, radii = _data(kind)
    column = 1 if kind == "groups" else 0
    high = x[:, column] > x[:, column].median()
    u, plain = (law.given(x).cdf(radii) for law in (_law(kind), StackedRadius.fit(radii, reference=Chi(DIM))))
    for part in (high, ~high):
        limit = uniform_limit(int(part.sum()), 1e-3)
        assert distance_to_uniform(u[part]) < limit
        assert distance_to_uniform(plain[part]) > limit  # control: one law for all is wrong in both


@pytest.mark.parametrize("smoother", ["ridge", "neighbours"])
def test_where_nothing_depends_on_x_the_law_is_hardly_worse_than_one_for_all(smoother, generator):
    x = torch.randn(3000, 2, generator=generator, dtype=torch.float64)
    radii = Chi(DIM).sample((3000,), generator)
    law = ConditionalRadius.fit(radii[:1000], x[:1000], reference=Chi(DIM), smoother=smoother)
    loss = Chi(DIM).log_prob(radii[1000:]) - law.given(x[1000:]).log_prob(radii[1000:])
    assert loss.mean() < 0.02


def test_sorted_rows_are_learned_from_as_well():
    x = torch.linspace(-2, 2, 500, dtype=torch.float64)[:, None]
    radii = Chi(DIM).sample((500,), torch.Generator().manual_seed(1)) * torch.exp(0.5 * x[:, 0])
    scale = ConditionalRadius.fit(radii, x, reference=Chi(DIM)).scale(torch.tensor([[-1.5], [1.5]]))
    assert float(scale[1] - scale[0]) == pytest.approx(1.5, abs=0.4)


def test_weights_decide_which_rows_are_believed(generator):
    x = torch.randn(200, 1, generator=generator, dtype=torch.float64)
    radii = Chi(DIM).sample((200,), generator)
    radii[:100] *= 3
    weights = torch.cat([torch.zeros(100), torch.ones(100)])
    for options in ({}, {"smoother": "neighbours"}, {"groups": lambda x: (x[..., 0] > 0).long()}):
        weighted = ConditionalRadius.fit(radii, x, reference=Chi(DIM), weights=weights, **options)
        half = ConditionalRadius.fit(radii[100:], x[100:], reference=Chi(DIM), **options)
        r = torch.linspace(0.1, 6, 5, dtype=torch.float64)
        torch.testing.assert_close(weighted.given(x[:5]).cdf(r), half.given(x[:5]).cdf(r))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.tensor([math.nan, *[1.0] * 19]), "finite"),
        (torch.tensor([-1.0, *[1.0] * 19]), "not negative"),
        (torch.zeros(20), "not all zero"),
        (torch.ones(7), r"must be \(20,\)"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        ConditionalRadius.fit(torch.rand(20), torch.rand(20, 2), reference=Chi(DIM), weights=weights)


# --- groups


def test_groups_may_be_a_column_from_the_end_or_a_function():
    x, radii = _data("groups", n=150)
    answers = [
        ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=groups).given(x[:60]).cdf(radii[:60])
        for groups in (1, -1, lambda x: 10 * x[..., 1] + 5)
    ]
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0])
    whole = StackedRadius.fit(radii, reference=Chi(DIM)).cdf(radii[:60])
    assert (answers[0] - whole).abs().max() > 0.1  # control: the groups differ


def test_an_unknown_group_gets_the_law_of_all():
    law, r = _law("groups"), torch.linspace(0.1, 5, 4, dtype=torch.float64)
    unknown = torch.tensor([[0.0, 17.0], [0.0, -1.0], [3.0, 0.5], [1.0, 1e9]], dtype=torch.float64)
    torch.testing.assert_close(law.given(unknown).cdf(r), law.whole.cdf(r))
    assert (law.given(POINTS[:1]).cdf(r) - law.whole.cdf(r)).abs().max() > 0.1  # control


def test_small_groups_borrow_from_the_whole(generator):
    def fitted(size):
        radii = torch.cat([Chi(DIM).sample((500,), generator), 2 * Chi(DIM).sample((size,), generator)])
        x = torch.cat([torch.zeros(500), torch.ones(size)])[:, None]
        law = ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=0)
        return law, float(law.given(torch.ones(1)).icdf(torch.tensor(0.5)))

    whole = float(Chi(DIM).icdf(torch.tensor(0.5)))
    alone, of_few, of_many = (fitted(size) for size in (5, 20, 500))
    assert alone[0].labels.tolist() == [0.0]
    assert alone[1] == pytest.approx(whole, rel=0.05)
    assert whole < of_few[1] < 2.2 * whole
    assert of_many[1] == pytest.approx(2 * whole, rel=0.1)


@pytest.mark.parametrize("rest", [0, 2])
def test_groups_refitted_to_other_radii_have_laws_of_their_own_if_they_are_not_few(rest, generator):
    """The laws are scales: that of each group is the mean of the radii that it was fitted to."""

    def mean_of(radii):
        return ScaledRadius(Chi(DIM), float(radii.mean()))

    law = GroupedRadius(Chi(DIM), [Chi(DIM)] * 3, torch.tensor([0.0, 1.0, 2.0]), 0)
    sizes, scales = (20, 10, 9, rest), (1.0, 2.0, 5.0, 7.0)  # the last group is not known
    x = torch.cat([torch.full((n,), float(label)) for label, n in enumerate(sizes)])[:, None].double()
    radii = torch.cat([torch.full((n,), scale) for n, scale in zip(sizes, scales, strict=True)]).double()
    order = torch.randperm(len(x), generator=generator)
    refitted = law.refit(radii[order], x[order], mean_of)
    assert refitted.labels.tolist() == [0.0, 1.0]
    assert [each.scale for each in refitted.laws] == pytest.approx([1.0, 2.0])
    # Those without a law of their own have one in common, and share that of all rows where they are few.
    others = radii[30:] if 9 + rest >= 10 else radii
    assert refitted.whole.scale == pytest.approx(float(others.mean()))
    assert refitted.smallest(x) == 10
    assert refitted.smallest(x[10:]) == min(10, len(x) - 30 if 9 + rest >= 10 else 10)
    assert refitted.smallest(x[12:]) == 8
    assert GroupedRadius(Chi(DIM), [], torch.empty(0), 0).smallest(x) == len(x)


@pytest.mark.parametrize(("others", "smallest"), [(12, 12), (9, 15), (0, 15)])
def test_rows_outside_of_all_groups_count_as_one_group_if_they_are_not_few(others, smallest):
    law = GroupedRadius(Chi(DIM), [Chi(DIM)] * 2, torch.tensor([0.0, 1.0]), 0)
    label = torch.cat([torch.zeros(20), torch.ones(15), torch.arange(2, 2 + others)])
    assert law.smallest(label[:, None].double()) == smallest


def test_no_group_at_all_of_sufficient_size_leaves_the_law_of_all():
    radii = Chi(DIM).sample((12,), torch.Generator().manual_seed(0))
    law = ConditionalRadius.fit(radii, torch.arange(12.0)[:, None] // 2, reference=Chi(DIM), groups=0)
    assert len(law.laws) == 0
    r = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(law.given(torch.tensor([[0.0], [99.0]])).cdf(r), law.whole.cdf(r))


def test_more_groups_than_sense_and_wrong_columns_are_errors():
    radii, x = torch.rand(100) + 0.1, torch.rand(100, 2)
    with pytest.raises(ValueError, match="100 rows have 100 groups"):
        ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=0)
    for column in (2, -3):
        with pytest.raises(ValueError, match=f"column {column}, but x has 2 columns"):
            ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=column)
    with pytest.raises(ValueError, match="one label for each row"):
        ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=lambda x: x > 0.5)


def test_a_part_of_the_rows_may_have_nearly_as_many_groups_as_rows(generator):
    """A fold's training rows: of 24 rows in 12 groups, 14 rows of all groups, and 5 of one group."""
    x = torch.cat([torch.arange(12.0), torch.zeros(12)])[:, None].double()
    radii = Chi(DIM).sample((24,), generator)
    whole = ConditionalRadius.fit(radii, x, reference=Chi(DIM), groups=0)
    assert whole.labels.tolist() == [0.0]  # control: all rows are a grouping
    with pytest.raises(ValueError, match="14 rows have 12 groups"):
        ConditionalRadius.fit(radii[:14], x[:14], reference=Chi(DIM), groups=0)
    for rows in (slice(0, 14), slice(19, 24)):
        part = CalibrationSample(radii[rows], Chi(DIM), x[rows])
        law = GroupedRadius.of(part, 0, nodes=64)
        assert len(law.laws) == 0
        torch.testing.assert_close(law.given(x).cdf(radii), law.whole.cdf(radii))


def test_groups_work_on_a_bounded_support_and_stay_inside():
    x = (torch.arange(200) % 2)[:, None]
    radii = BallRadius(2).sample((200,), torch.Generator().manual_seed(0)) ** (1.0 + 2 * x[:, 0])
    law = ConditionalRadius.fit(radii, x, reference=BallRadius(2), groups=0)
    assert law.upper == 1
    at = law.given(torch.tensor([[0], [1]]))
    assert at.upper == 1
    assert same.defined(at.icdf(torch.ones(2)), torch.ones(2, dtype=torch.float64))
    assert (at.icdf(torch.tensor([0.5, 0.5])).diff() < -0.1).all()


# --- extreme data


@pytest.mark.parametrize("smoother", ["ridge", "neighbours"])
@pytest.mark.parametrize(
    ("n", "features"),
    [
        (2, lambda n: torch.randn(n, 2)),
        (3, lambda n: torch.randn(n, 2)),
        (60, lambda n: torch.full((n, 2), 4.0)),
        (60, lambda n: torch.cat([torch.ones(1, 1), torch.zeros(n - 1, 1)])),
        (20, lambda n: torch.randn(n, 100)),
        (60, lambda n: 1e30 * torch.randn(n, 2)),
        (60, lambda n: torch.randint(5, (n, 2))),
    ],
    ids=["n = 2", "n = 3", "constant x", "one odd row", "p > n", "huge x", "whole numbers"],
)
def test_no_answer_is_nan_in_extreme_cases(smoother, n, features):
    torch.manual_seed(0)
    x, radii = features(n), Chi(DIM).sample((n,), torch.Generator().manual_seed(0))
    law = ConditionalRadius.fit(radii, x, reference=Chi(DIM), smoother=smoother)
    for at in (x, 1000 * x, torch.zeros_like(x)):
        for method in ("log_prob", "log_cdf", "log_sf"):
            assert torch.isfinite(getattr(law.given(at), method)(radii)).all()
        assert (law.given(at).cdf(torch.full((n,), 1e3)) > 0.99).all()


@pytest.mark.parametrize("smoother", ["ridge", "neighbours"])
def test_one_outlier_and_zeros_among_the_radii_do_not_ruin_the_law(smoother):
    x, radii = _data("scale")
    spoilt = radii.clone()
    spoilt[0], spoilt[1:3] = 1e6, 0.0
    law = _law({"ridge": "scale"}.get(smoother, smoother))
    other = ConditionalRadius.fit(spoilt, x, reference=Chi(DIM), smoother=smoother)
    assert (law.given(POINTS[:3]).cdf(radii[:3]) - other.given(POINTS[:3]).cdf(radii[:3])).abs().max() < 0.1
    assert (law.given(x).log_prob(radii) - other.given(x).log_prob(radii)).mean().abs() < 0.05


def test_a_bounded_reference_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"A law on \[0, 1\] cannot be scaled .* pass groups"):
        ConditionalRadius.fit(torch.rand(30), torch.rand(30, 2), reference=BallRadius(2))


def test_a_law_that_depends_on_x_asks_for_x():
    law, r = _law("scale"), torch.ones(2)
    for method in ("log_prob", "log_cdf", "log_sf", "cdf", "icdf"):
        with pytest.raises(TypeError, match=r"use law\.given\(x\)"):
            getattr(law, method)(r / 2)
    for kind in ("scale", "groups"):
        with pytest.raises(ValueError, match="depends on x: pass the features"):
            _law(kind).given(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": None}, "needs the features"),
        ({"reference": None}, "needs the features and the law"),
        ({"x": torch.rand(19, 2)}, r"x must be \(n, p\) for 20 radii"),
        ({"x": torch.rand(20)}, r"x must be \(n, p\)"),
        ({"x": torch.full((20, 1), math.nan)}, "NaN or infinite"),
        ({"smoother": "forest"}, "smoother must be one of"),
        ({"radii": torch.full((20,), math.nan)}, "20 of 20 radii are NaN"),
        ({"radii": torch.ones(1), "x": torch.ones(1, 1)}, "at least 2 radii"),
    ],
)
def test_what_cannot_be_fitted_is_said(arguments, message):
    defaults = {"radii": torch.rand(20) + 0.1, "x": torch.rand(20, 2), "reference": Chi(DIM)}
    given = defaults | arguments
    with pytest.raises(ValueError, match=message):
        ConditionalRadius.fit(given.pop("radii"), **given)


# --- in a flow


def test_a_float32_flow_finds_the_groups_of_float64_labels():
    generator = torch.Generator().manual_seed(0)
    x = torch.tensor([0.1, 0.7], dtype=torch.float64)[torch.randint(2, (400,), generator=generator)][:, None]
    y = torch.randn(400, 2, generator=generator) * torch.where(x > 0.5, 2.0, 0.5)
    flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    model = recalibrate(flow, x, y, fit=functools.partial(ConditionalRadius.fit, groups=0))
    draws = model(torch.tensor([[0.1], [0.7]], dtype=torch.float64)).sample((2000,), generator)
    assert draws.dtype == torch.float32
    torch.testing.assert_close(draws.std(0).mean(-1), torch.tensor([0.5, 2.0]), rtol=0.15, atol=0)


@pytest.mark.parametrize(("errors", "bent"), [(-0.5, False), (0.9, False), (1.1, True)])
def test_a_shape_that_depends_on_x_must_gain_more_than_one_standard_error(errors, bent, monkeypatch):
    """The gain of each point is made up: +-1 around a mean of so many standard errors."""
    n = 64
    gain = torch.ones(n, dtype=torch.float64)
    gain[::2] = -1
    gain += errors * float(gain.std()) / math.sqrt(n)
    values = iter([torch.zeros(n, dtype=torch.float64), gain])

    def fit(sample, **options):
        value = next(values)
        return SimpleNamespace(log_prob_untabulated=lambda r: value)

    def dispersion(kind, x, residuals, fold, weights):
        return SimpleNamespace(answers=1), torch.full_like(residuals, 1e-12)  # hardly a bend

    monkeypatch.setattr(smooth, "StackedRadius", SimpleNamespace(fit=fit))
    monkeypatch.setattr(smooth, "log_dispersion", dispersion)
    x = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    radii = Chi(DIM).icdf(torch.linspace(0.05, 0.95, n, dtype=torch.float64))
    fold = torch.arange(n) % 2
    law = SmoothRadius.of(CalibrationSample(radii, Chi(DIM), x), RidgeSmoother, True, fold, 64)
    assert (law.law.log_prob_untabulated(radii) is gain) == bent


def test_given_folds_belong_to_their_rows_when_others_have_no_weight():
    x, radii = _data("scale", 60)
    fold = torch.arange(60) % 5
    weights = (torch.arange(60) % 4 > 0).double()
    kept = weights > 0
    law = ConditionalRadius.fit(radii, x, reference=Chi(DIM), weights=weights, fold=fold)
    other = ConditionalRadius.fit(radii[kept], x[kept], reference=Chi(DIM), fold=fold[kept])
    r = torch.tensor([0.5, 1.5, 4.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(law.given(POINTS).log_prob(r), other.given(POINTS).log_prob(r))


def test_scales_of_groups_are_the_means_of_log_radii_drawn_to_0_as_far_as_chance_explains_them(generator):
    member = torch.arange(90) % 3
    radii = Chi(DIM).sample((90,), generator) * torch.tensor([0.5, 1.0, 3.0]).double()[member]
    radii[0] = 0.0
    weights = torch.rand(90, generator=generator, dtype=torch.float64) + 0.5
    moved = radii.clone()
    moved[0] = 1e-3 * radii[1:].min()  # a radius of 0 counts as a thousandth of the smallest
    for unit in (1.0, 1e-3):
        torch.testing.assert_close(
            _shrink_log_scales(unit * radii, weights, member, 3),
            _shrink_log_scales(moved, weights, member, 3),
        )
    # Where all groups are alike nothing is left of their differences.
    alike = moved[:30].repeat_interleave(3)
    torch.testing.assert_close(
        _shrink_log_scales(alike, torch.ones(90).double(), member, 3), torch.zeros(3).double()
    )


def test_groups_count_as_much_as_their_radii_beside_500_of_all(generator):
    x = (torch.arange(100) % 4 == 0).double()[:, None]
    law = ConditionalRadius.fit(Chi(DIM).sample((100,), generator), x, reference=Chi(DIM), groups=0)
    for group, count in zip(law.laws, (75, 25), strict=True):
        assert group.weights.tolist() == pytest.approx([500 / (500 + count), count / (500 + count)])


def test_differences_of_groups_that_chance_explains_are_drawn_to_0():
    member = torch.arange(60) % 2
    base = torch.exp(torch.linspace(-1, 1, 30, dtype=torch.float64)).repeat_interleave(2)
    for factor, expected in ((1.02, 0.0), (20.0, math.log(20.0))):
        radii = base * torch.where(member == 0, 1.0, factor)
        low, high = _shrink_log_scales(radii, torch.ones(60).double(), member, 2).tolist()
        assert high - low == pytest.approx(expected, rel=0.02, abs=1e-12)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scale_and_power_far_from_the_data_are_bounded(sign):
    class Far:
        answers = 1

        def __call__(self, x):
            return sign * 100 * torch.ones(*x.shape[:-1], 1, dtype=torch.float64)

    at_x = SmoothRadius(Chi(DIM), Far(), Far(), 1.5).given(torch.zeros(2, 1))
    assert same.defined(at_x.log_scale, torch.full((2,), sign * 5, dtype=torch.float64))
    assert same.defined(at_x.log_power, torch.full((2,), sign * 1, dtype=torch.float64))
    assert torch.isfinite(at_x.log_prob(at_x.icdf(torch.tensor([0.1, 0.9])))).all()


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_the_robust_spread_follows_the_unit_and_falls_back_to_the_deviation(unit):
    values = unit * torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0], dtype=torch.float64)
    assert _robust(values) == pytest.approx((2 * unit, 1.4826 * unit))
    tied = unit * torch.tensor([1.0, 1.0, 1.0, 1.0, 6.0], dtype=torch.float64)
    assert _robust(tied) == pytest.approx((unit, math.sqrt(5) * unit))


@pytest.mark.parametrize(("n", "asked"), [(49, False), (50, True)])
def test_a_shape_that_depends_on_x_is_looked_for_from_50_radii_on(n, asked, monkeypatch):
    calls = []

    def dispersion(kind, x, residuals, fold, weights):
        calls.append(len(x))
        return None, torch.zeros_like(residuals)

    monkeypatch.setattr(smooth, "log_dispersion", dispersion)
    x = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    radii = Chi(DIM).icdf(torch.linspace(0.05, 0.95, n, dtype=torch.float64))
    sample = CalibrationSample(radii, Chi(DIM), x)
    SmoothRadius.of(sample, RidgeSmoother, True, torch.arange(n) % 2, 16)
    assert bool(calls) == asked
