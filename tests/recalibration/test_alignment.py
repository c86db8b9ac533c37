"""Aligned flows: exact densities and samples, for maps and laws that depend on x or do not."""

import functools
import math

import pytest
import torch

import same
from latentcal.base import laplace, student_t, uniform_ball
from latentcal.checks import check_flow
from latentcal.fingerprint import CalibrationReuseWarning
from latentcal.flows import LinearGaussianFlow
from latentcal.pit import latent_pit
from latentcal.radius import Chi, ConditionalRadius, StackedRadius
from latentcal.recalibration import Aligned, Alignment, align
from latentcal.recalibration.maps import AffineMap, Chain
from toys import SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit

ALL_MAPS = ("affine", "features", "marginals")
QUERIES = torch.tensor([[-1.2, 0.5], [0.3, -0.4], [1.5, 1.0]], dtype=torch.float64)


def wrong_data(n: int = 400, seed: int = 0):
    """x (n, 2) and y (n, 2) that a standard normal flow gets wrong in every way."""
    generator = torch.Generator().manual_seed(seed)
    x, z = torch.randn(2, n, 2, generator=generator, dtype=torch.float64)
    y = torch.stack([0.3 + 1.3 * z[:, 0] + 0.4 * x[:, 0], 0.5 * z[:, 0] + torch.exp(0.4 * z[:, 1])], 1)
    return x, y * torch.exp(0.3 * x[:, :1])


LAWS = {
    "unchanged": lambda r, x: Chi(2),
    "stacked": lambda r, x: StackedRadius.fit(r, reference=Chi(2)),
    "scale": lambda r, x: ConditionalRadius.fit(r, x, reference=Chi(2), shape=False),
    "shape": lambda r, x: ConditionalRadius.fit((r / 2) ** torch.exp(0.25 * x[:, 0]), x, reference=Chi(2)),
    "neighbours": lambda r, x: ConditionalRadius.fit(r, x, reference=Chi(2), smoother="neighbours"),
    "groups": lambda r, x: ConditionalRadius.fit(
        r, x, reference=Chi(2), groups=lambda x: (x[..., 0] > 0).long()
    ),
}


@functools.cache
def recalibrated(maps, law: str) -> Aligned:
    x, y = wrong_data()
    model = align(scaled_gaussian(2, 1.0), x, y, maps=maps)
    radii = model(x).latent_norm(y)
    return model.with_base(model.base.with_radius(LAWS[law](radii, x)))


CASES = [(("affine",), "unchanged"), (("marginals",), "stacked")]
CASES += [((), law) for law in ("scale", "shape", "neighbours", "groups")]
CASES += [(ALL_MAPS, "unchanged"), (ALL_MAPS, "shape"), (("affine", "features"), "groups")]
each_case = pytest.mark.parametrize(("maps", "law"), CASES, ids=[f"{len(m)} maps, {law}" for m, law in CASES])


# --- exactness


@each_case
def test_the_density_integrates_to_one_at_every_x(maps, law):
    model = recalibrated(maps, law)
    # y = sinh(s): a grid that is fine in the middle and reaches far.
    s = torch.linspace(-4.5, 4.5, 351, dtype=torch.float64)
    y = torch.cartesian_prod(torch.sinh(s), torch.sinh(s))
    log_weight = torch.log(torch.cosh(s))
    for x in QUERIES[::2]:
        log_density = model(x).log_prob(y).reshape(351, 351) + log_weight[:, None] + log_weight
        # Up to 3e-4 are the grid's: laws of stacks have kinks.
        assert float(torch.exp(log_density).sum() * (s[1] - s[0]) ** 2) == pytest.approx(1, abs=1e-3)


@each_case
def test_samples_agree_with_the_density(maps, law, generator):
    model, n = recalibrated(maps, law), 3000
    for x in QUERIES:
        y = model(x).sample((n,), generator)
        assert y.shape == (n, 2)
        # Radii and angles of the samples' latents: independent, of known laws.
        z = model(x).latent(y)
        angle = torch.atan2(z[:, 1], z[:, 0]) / (2 * math.pi) + 0.5
        for u in (latent_pit(model(x), y), angle):
            assert distance_to_uniform(u) < uniform_limit(n)  # fails once in 10^6
        # The density from the samples' counts in boxes, against the integral over them.
        low, high = y.quantile(0.3, dim=0), y.quantile(0.7, dim=0)
        share = ((y > low) & (y < high)).all(-1).double().mean()
        grid = [low[i] + (high[i] - low[i]) * (torch.arange(150) + 0.5) / 150 for i in range(2)]
        mass = torch.exp(model(x).log_prob(torch.cartesian_prod(*grid))).mean() * (high - low).prod()
        assert float(mass) == pytest.approx(float(share), abs=5 * math.sqrt(0.2 / n))  # 5 standard errors
    swapped = latent_pit(model(QUERIES[0]), 1.5 * y + 0.5)
    assert distance_to_uniform(swapped) > uniform_limit(n)  # control


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("maps", ALL_MAPS)
def test_an_aligned_flow_keeps_its_promises(maps, dtype):
    x, y = wrong_data(200)
    flow = SinhFlow(2, dtype=dtype)
    y = torch.sinh(y.clamp(-3, 3))
    model = align(flow, x.to(dtype), y.to(dtype), maps=maps)
    check_flow(model, x.to(dtype), y.to(dtype)).require()
    assert model(x).sample((3,)).dtype == dtype
    broken = Aligned(flow, AffineMap(torch.zeros(2), torch.eye(2)))
    broken.map._log_abs_det += 0.1
    assert not check_flow(broken, x.to(dtype), y.to(dtype)).passed  # control


def test_the_density_of_an_aligned_gaussian_is_known_in_closed_form():
    matrix = torch.tensor([[2.0, 0.0], [-1.0, 0.5]], dtype=torch.float64)
    shift = torch.tensor([0.3, -1.0], dtype=torch.float64)
    model = Aligned(scaled_gaussian(2, 1.0), AffineMap(shift, matrix))
    truth = torch.distributions.MultivariateNormal(shift, precision_matrix=matrix.T @ matrix)
    y = 3 * torch.randn(50, 2, dtype=torch.float64)
    torch.testing.assert_close(model(None).log_prob(y), truth.log_prob(y))


def test_aligning_twice_and_recalibrating_shares_the_maps():
    x, y = wrong_data(200)
    model = align(scaled_gaussian(2, 1.0), x[:100], y[:100])
    again = align(model, x[100:], y[100:], maps="features")
    check_flow(again, x, y).require()
    assert again.flow is model


# --- what it does


def test_alignment_raises_the_likelihood_of_other_rows():
    x, y = wrong_data(1500)
    flow = scaled_gaussian(2, 1.0)
    before = flow(x[1000:]).log_prob(y[1000:]).mean()
    gains = [
        float(align(flow, x[:1000], y[:1000], maps=maps)(x[1000:]).log_prob(y[1000:]).mean() - before)
        for maps in ("affine", ("affine", "features"), ALL_MAPS)
    ]
    assert 0.05 < gains[0] < gains[1] < gains[2]


def test_an_unconditional_flow_can_be_aligned_but_not_by_features():
    _, y = wrong_data(100)
    flow = scaled_gaussian(2, 1.0)
    model = align(flow, None, y, maps=("affine", "marginals"))
    assert torch.isfinite(model(None).log_prob(y)).all()
    with pytest.raises(ValueError, match="no features"):
        align(flow, None, y, maps="features")


@pytest.mark.parametrize("base", [student_t(2, 4.0), laplace(2)], ids=["student", "laplace"])
def test_other_bases_are_aligned_but_have_no_normal_scores(base):
    x, y = wrong_data(200)
    flow = LinearGaussianFlow(None, torch.zeros(2).double(), torch.eye(2).double(), base=base)
    check_flow(align(flow, x, y, maps=("affine", "features")), x, y).require()
    with pytest.raises(ValueError, match="standard normal base"):
        align(flow, x, y, maps="marginals")


def test_rows_in_batches_of_any_size_give_the_same_map():
    x, y = wrong_data(100)
    flow = scaled_gaussian(2, 1.0)
    whole = align(flow, x, y, maps=ALL_MAPS)
    batches = [(x[i : i + 7], y[i : i + 7]) for i in range(0, 100, 7)]
    for other in (align(flow, batches, maps=ALL_MAPS), align(flow, x, y, maps=ALL_MAPS, batch_size=13)):
        torch.testing.assert_close(other(x).log_prob(y), whole(x).log_prob(y))


def test_folds_are_blocks_for_rows_in_time_order():
    x, y = wrong_data(100)
    shuffled, ordered = (
        align(scaled_gaussian(2, 1.0), x, y, maps="marginals", order=order) for order in (None, "time")
    )
    assert same.different(shuffled.map.maps[0].values, ordered.map.maps[0].values)


def test_rows_without_weight_are_as_if_they_were_not_there():
    x, y = wrong_data(200)
    weights = (torch.arange(200) < 60).double()
    flow = scaled_gaussian(2, 1.0)
    weighted, alone = (
        align(flow, x, y, maps=ALL_MAPS, weights=weights),
        align(flow, x[:60], y[:60], maps=ALL_MAPS),
    )
    torch.testing.assert_close(weighted(x).log_prob(y), alone(x).log_prob(y))


def test_weights_in_one_fold_alone_are_no_trap():
    x, y = wrong_data(100)
    weights = (torch.arange(100) < 20).double()
    model = align(scaled_gaussian(2, 1.0), x, y, maps=ALL_MAPS, weights=weights, order="time")
    assert torch.isfinite(model(x).log_prob(y)).all()


def test_the_record_says_what_was_done_and_warns_of_reuse():
    x, y = wrong_data(100)
    model = align(scaled_gaussian(2, 1.0), x, y, maps=("affine", "marginals"))
    assert isinstance(model.recalibration, Alignment)
    assert "100 points: affine, marginals" in str(model.recalibration)
    with pytest.warns(CalibrationReuseWarning):
        latent_pit(model(x), y)
    with pytest.warns(CalibrationReuseWarning):
        align(model, x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maps": "turn"}, r"maps must be among .* got \['turn'\]"),
        ({"order": "space"}, "order must be 'time' or None, got 'space'"),
        ({"weights": torch.ones(7)}, "one for each point"),
        ({"weights": -torch.ones(100)}, "not negative"),
        ({"weights": torch.full((100,), math.nan)}, "finite"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    x, y = wrong_data(100)
    with pytest.raises(ValueError, match=message):
        align(scaled_gaussian(2, 1.0), x, y, **options)


def test_few_rows_and_bounded_bases_are_refused():
    x, y = wrong_data(30)
    with pytest.raises(ValueError, match="at least 20 rows, got 19"):
        align(scaled_gaussian(2, 1.0), x[:19], y[:19])
    ball = LinearGaussianFlow(None, torch.zeros(2).double(), torch.eye(2).double(), base=uniform_ball(2))
    with pytest.raises(ValueError, match="The base is bounded by 1"):
        align(ball, x, 0.1 * y / y.norm(dim=1, keepdim=True))


def test_a_chain_of_no_maps_changes_nothing():
    x, y = wrong_data(10)
    flow = scaled_gaussian(2, 1.3)
    torch.testing.assert_close(Aligned(flow, Chain([]))(x).log_prob(y), flow(x).log_prob(y))


def test_maps_and_law_are_learned_from_the_same_rows_and_hold_for_others():
    flow, (x, y), other = scaled_gaussian(2, 1.0), wrong_data(), wrong_data(2000, seed=1)
    model = Aligned.fit(flow, x, y)
    assert isinstance(model.recalibration.law, StackedRadius)
    assert str(model.recalibration) == "Aligned on 400 points: affine; law of the radius: StackedRadius"
    radial = flow.with_base(
        flow.base.with_radius(StackedRadius.fit(flow(x).latent_norm(y), reference=Chi(2)))
    )
    nll = [-each(other[0]).log_prob(other[1]).mean() for each in (flow, radial, model)]
    assert nll[0] > nll[1] > nll[2] + 0.05
    check_flow(model, x[:20], y[:20])
    with pytest.raises(ValueError, match="maps must be among"):
        Aligned.fit(flow, x, y, maps="round")


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_one_bad_weight_is_enough_to_be_refused(value):
    x, y = wrong_data(100)
    weights = torch.ones(100)
    weights[3] = value
    with pytest.raises(ValueError, match="weights must be finite, not negative and not all zero"):
        align(scaled_gaussian(2, 1.0), x, y, weights=weights)


def test_a_rotation_with_marginals_behind_it_costs_little_where_all_directions_are_normal():
    """200 rows of ten dimensions cost 0.02 nats in the mean of 24 sets, standard deviation 0.017.

    A rotation that the rows which shape the marginals found themselves costs 0.19, standard deviation 0.07.
    """
    flow, loss = scaled_gaussian(10, 1.0), 0.0
    for seed in range(4):
        source = torch.Generator().manual_seed(seed)
        y, y_new = (torch.randn(n, 10, generator=source, dtype=torch.float64) for n in (200, 3000))
        model = align(flow, None, y, maps=("rotation", "marginals"))
        loss += float((flow().log_prob(y_new) - model().log_prob(y_new)).mean()) / 4
    assert 0 < loss < 0.07
