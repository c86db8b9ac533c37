import fractions
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal
from torch.utils.data import DataLoader, TensorDataset

import same
from latentcal.base import standard_normal, student_t, uniform_ball
from latentcal.flow import ConditionalFlow
from latentcal.flows import LinearGaussianFlow
from latentcal.pit import latent_pit
from latentcal.radius.coverage import guarantee
from latentcal.radius.empirical import EmpiricalRadius
from latentcal.radius.gamma_kde import GammaKDE
from latentcal.radius.reference import Chi
from latentcal.radius.scaled import ScaledRadius
from latentcal.radius.spline import SplineRadius
from latentcal.radius.stacked import StackedRadius
from latentcal.recalibration import (
    CalibrationReuseWarning,
    Recalibration,
    latent_norms,
    nll_decomposition,
    recalibrate,
)
from latentcal.recalibration.rows import _check_norms
from toys import NormalCDFFlow, ScaledBy, ScaleFromX, SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit

FITS = {
    "gamma_kde": GammaKDE.fit,
    "spline": SplineRadius.fit,
    "scaled": ScaledRadius.fit,
    "stacked": StackedRadius.fit,
}
each_fit = pytest.mark.parametrize("fit", FITS.values(), ids=FITS.keys())


def _data(generator, n=60, d=2, dtype=torch.float64):
    x = torch.randn(n, d, generator=generator, dtype=dtype)
    return x, torch.sinh(x + 1.5 * torch.randn(n, d, generator=generator, dtype=dtype))


def _doubled(sample):
    """A fit whose answer is known: the reference law stretched by two."""
    return ScaledBy(sample.reference, 2.0)


# --- the recalibrated distribution


def test_recalibration_makes_the_latent_pit_uniform(generator):
    n, truth, overconfident = 2000, scaled_gaussian(3, 2.0), scaled_gaussian(3, 1.0)
    x = torch.zeros(2 * n, 1, dtype=torch.float64)
    y = truth(x).sample(generator=generator)
    recalibrated = recalibrate(overconfident, x[:n], y[:n], fit=EmpiricalRadius.fit)
    limit = 2 * uniform_limit(n) + 1 / (n + 1)  # error of the fitted map + error of the test sample
    before, after = (latent_pit(model(x[n:]), y[n:]) for model in (overconfident, recalibrated))
    assert distance_to_uniform(before) > limit  # control: the check has power
    assert distance_to_uniform(after) < limit


@each_fit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_smooth_law_makes_the_latent_pit_uniform_and_the_likelihood_better(fit, dtype, generator):
    n, truth, overconfident = 1000, scaled_gaussian(2, 1.6, dtype), scaled_gaussian(2, 1.0, dtype)
    y = truth().sample((2 * n,), generator=generator)
    recalibrated = recalibrate(overconfident, None, y[:n], fit=fit)
    limit = 2 * uniform_limit(n) + 0.02  # 0.02: smoothing of the map
    before, after = (latent_pit(model(), y[n:]) for model in (overconfident, recalibrated))
    assert distance_to_uniform(before) > limit
    assert distance_to_uniform(after) < limit
    likelihoods = [float(model().log_prob(y[n:]).mean()) for model in (overconfident, recalibrated, truth)]
    assert likelihoods[0] < likelihoods[1] - 0.1
    assert likelihoods[1] == pytest.approx(likelihoods[2], abs=0.05)
    draws = recalibrated().sample((n,), generator=generator)
    assert draws.dtype == dtype
    assert distance_to_uniform(latent_pit(recalibrated(), draws)) < uniform_limit(n)


@each_fit
def test_the_density_is_that_of_the_flow_times_the_ratio_of_the_laws(fit, generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    model = recalibrate(flow, x, y, fit=fit)
    norms = latent_norms(flow, x, y)
    law = model.base.radius
    expected = flow(x).log_prob(y) + law.log_prob(norms) - flow.base.radius.log_prob(norms)
    torch.testing.assert_close(model(x).log_prob(y), expected, rtol=0, atol=1e-9)


@each_fit
@pytest.mark.parametrize("base", ["normal", "student", "ball"])
def test_recalibrated_densities_in_the_plane_integrate_to_one(fit, base, generator):
    scale = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    flow = LinearGaussianFlow(None, torch.tensor([0.3, -0.2], dtype=torch.float64), scale)
    if base == "student":
        flow = flow.with_base(student_t(2, 4.0))
    if base == "ball":
        flow = flow.with_base(uniform_ball(2))
    # Radii that the base does not expect; on the ball they stay inside.
    z = flow.base.sample((60,), generator)
    z = z * flow.base.norm_of(z)[:, None] ** 0.5 if base == "ball" else 1.4 * z
    model = recalibrate(flow, None, flow.decode(z), fit=fit)
    # Midpoints of polar cells in the latent plane: dy = |det L| r dr dtheta, in log r for the tails.
    log_r = torch.linspace(math.log(1e-7), math.log(1.0 if base == "ball" else 1e7), 20_001).double()
    edges = log_r.exp()
    middle = (edges[1:] + edges[:-1]) / 2
    angle = torch.linspace(0, 2 * math.pi, 4, dtype=torch.float64)[:-1] + 0.1
    points = middle[:, None, None] * torch.stack([torch.cos(angle), torch.sin(angle)], -1)
    density = model().log_prob(flow.decode(points)).exp() * float(scale.det())
    total = (density.mean(1) * 2 * math.pi * middle * edges.diff()).sum()
    assert total.item() == pytest.approx(1.0, abs=1e-4)


def test_the_recalibrated_density_integrates_to_one_on_a_cartesian_grid(generator):
    x = torch.zeros(2, dtype=torch.float64)
    flow = SinhFlow(2)
    y = torch.sinh(1.3 * torch.randn(500, 2, generator=generator, dtype=torch.float64))
    model = recalibrate(flow, x.expand(500, 2), y)
    side = torch.sinh(torch.linspace(-9, 9, 1001, dtype=torch.float64))  # finer at the centre
    middle, width = (side[1:] + side[:-1]) / 2, side.diff()
    grid = torch.cartesian_prod(middle, middle)
    area = torch.cartesian_prod(width, width).prod(-1)
    assert (model(x).log_prob(grid).exp() * area).sum().item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("fit", [*FITS.values(), EmpiricalRadius.fit], ids=[*FITS, "empirical"])
def test_quantile_recalibration_is_a_special_case(fit, generator):
    flow = NormalCDFFlow(scale=1.0)
    x = torch.randn(120, 1, generator=generator, dtype=torch.float64)
    y = x + 0.6 * torch.randn(120, 1, generator=generator, dtype=torch.float64)
    model = recalibrate(flow, x[:60], y[:60], fit=fit)
    # Kuleshov et al. (2018): F'(y|x) = F_U(F(y|x)), with F_U fitted to u_i = F(y_i|x_i).
    normal = Normal(x, 1.0)
    u = normal.cdf(y)[:, 0]
    law = model.base.radius
    torch.testing.assert_close(latent_norms(flow, x, y), u, rtol=1e-9, atol=0)
    assert (latent_pit(model(x[60:]), y[60:]) - law.cdf(u[60:])).abs().max() < 1e-9
    if fit != EmpiricalRadius.fit:
        density = normal.log_prob(y)[:, 0] + law.log_prob(u)
        assert (model(x).log_prob(y) - density).abs().max() < 1e-9
        draws = model(x[:1]).sample((2000,), generator=generator)
        assert distance_to_uniform(law.cdf(Normal(x[0], 1.0).cdf(draws))) < uniform_limit(2000)


@pytest.mark.parametrize("n", [19, 50, 99, 200, 999])
def test_sublevel_sets_of_the_empirical_law_are_the_split_conformal_ones(n, generator):
    flow = SinhFlow(2)
    x, y = _data(generator, n=n + 10_000)
    model = recalibrate(flow, x[:n], y[:n], fit=EmpiricalRadius.fit)
    scores = latent_norms(flow, x, y)
    ordered, test = scores[:n].sort().values, scores[n:]
    next_rank_differs = 0
    for percent in range(1, 101):
        rank = math.ceil(fractions.Fraction(percent, 100) * (n + 1))
        conformal = test <= ordered[rank - 1] if rank <= n else torch.ones(10_000, dtype=torch.bool)
        level = torch.tensor(percent / 100, dtype=torch.float64)
        assert same.decided(test <= model.base.radius.icdf(level), conformal)
        next_rank_differs += rank < n and not same.decided(test <= ordered[rank], conformal)
    assert next_rank_differs > 0.7 * min(n, 90)  # control


def test_the_flow_itself_is_not_changed(generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    before = flow(x).log_prob(y)
    model = recalibrate(flow, x, y, fit=_doubled)
    assert same.repeated(flow(x).log_prob(y), before)
    assert flow.recalibration is None
    assert type(model) is SinhFlow
    assert model.weight is flow.weight


def test_the_default_law_is_the_stack(generator):
    x, y = _data(generator)
    assert isinstance(recalibrate(SinhFlow(2), x, y).base.radius, StackedRadius)


def test_the_fit_gets_norms_reference_features_and_weights(generator):
    x, y = _data(generator)
    flow, weights, calls = SinhFlow(2), torch.rand(60, generator=generator), []
    recalibrate(flow, x, y, fit=lambda sample: calls.append(sample) or Chi(2), weights=weights)
    (sample,) = calls
    torch.testing.assert_close(sample.radii, latent_norms(flow, x, y))
    assert sample.reference is flow.base.radius
    assert same.copied(sample.x, x)
    torch.testing.assert_close(sample.weights, weights.double() / weights.double().mean())
    assert sample.weighted


# --- the record


def test_the_record_says_how_the_model_was_made(generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    model = recalibrate(flow, x, y, fit=ScaledRadius.fit)
    record = model.recalibration
    assert isinstance(record, Recalibration)
    assert record.law is model.base.radius
    assert record.reference is flow.base
    assert record.n == 60
    expected = guarantee(record.law, latent_norms(flow, x, y))
    assert record.lambda_ == pytest.approx(expected.lambda_)
    assert record.epsilon == pytest.approx((1 + record.lambda_) / 61)
    assert record.tied == 0
    assert 0 < record.fit_seconds < 60
    assert record.fingerprint.share_of(x, y) == 1
    text = str(record)
    assert text.startswith("Recalibrated on 60 points: ScaledRadius in place of Chi\n")
    assert f"epsilon     {record.epsilon:.4f} (lambda = {record.lambda_:.2f}, computed from the data" in text
    assert "tied norms  0.0%" in text


def test_the_bound_of_a_law_that_depends_on_x_is_that_of_its_pit_values(generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    model = recalibrate(flow, x, y, fit=lambda _: ScaleFromX(Chi(2)))
    u = Chi(2).cdf(latent_norms(flow, x, y) / x[:, 0].exp()).sort().values
    distance = (u - torch.arange(1, 61) / 61).abs().max().item()
    assert model.recalibration.lambda_ == pytest.approx(61 * distance)


def test_tied_norms_are_counted(generator):
    x, y = _data(generator)
    y[1:5], x[1:5] = y[0].clone(), x[0].clone()
    assert recalibrate(SinhFlow(2), x, y, fit=_doubled).recalibration.tied == pytest.approx(5 / 60)


def test_a_second_recalibration_on_the_same_rows_warns(generator):
    x, y = _data(generator, n=120)
    once = recalibrate(SinhFlow(2), x[:60], y[:60], fit=_doubled)
    twice = recalibrate(once, x[60:], y[60:], fit=_doubled)  # new rows: silent
    torch.testing.assert_close(twice.base.radius.law.law.cdf(torch.ones(1)), Chi(2).cdf(torch.ones(1)))
    assert twice.recalibration.reference is once.recalibration.reference
    for rows in (slice(0, 60), slice(60, 120)):  # the record covers both calibration sets
        with pytest.warns(CalibrationReuseWarning, match=r"About 50% .*second recalibration"):
            recalibrate(twice, x[rows], y[rows], fit=_doubled)
    with pytest.warns(CalibrationReuseWarning, match="About 100%") as caught:
        recalibrate(once, DataLoader(TensorDataset(x, y), batch_size=7), fit=_doubled)
    assert caught[0].filename == __file__


# --- the norms


def test_latent_norms_are_those_of_the_encoded_points(generator):
    x, y = _data(generator)
    norms = latent_norms(SinhFlow(2), x, y)
    torch.testing.assert_close(norms, torch.linalg.vector_norm(SinhFlow(2).encode(y, x)[0], dim=-1).detach())
    assert norms.dtype == torch.float64
    assert not norms.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_way_to_hand_over_data_gives_the_same(dtype, generator):
    x, y = _data(generator)
    flow = SinhFlow(2, dtype=dtype)
    expected = latent_norms(flow, x, y)
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    pairs = [(x[:40].numpy(), y[:40].numpy()), [x[40:], y[40:]]]
    for norms in (
        latent_norms(flow, x, y, batch_size=11),
        latent_norms(flow, x.numpy(), y.numpy()),
        latent_norms(flow, x.float(), y) if dtype == torch.float32 else expected,
        latent_norms(flow, loader),
        latent_norms(flow, loader, batch_size=2),
        latent_norms(flow, pairs),
        latent_norms(flow, iter(pairs)),
        latent_norms(flow, ((x[i : i + 5], y[i : i + 5]) for i in range(0, 60, 5))),
    ):
        torch.testing.assert_close(norms, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)
    whole, streamed = recalibrate(flow, x, y), recalibrate(flow, loader)
    torch.testing.assert_close(streamed(x).log_prob(y), whole(x).log_prob(y), rtol=0, atol=1e-4)
    assert streamed.recalibration.fingerprint == whole.recalibration.fingerprint
    assert streamed.recalibration.n == 60


def test_batches_of_an_unconditional_flow_are_y_alone(generator):
    y = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    flow = scaled_gaussian(3, 1.0)
    expected = latent_norms(flow, None, y)
    for batches in (
        DataLoader(TensorDataset(y), batch_size=8),
        DataLoader(y, batch_size=8),
        [y.numpy()],
        [(None, y)],
    ):
        torch.testing.assert_close(latent_norms(flow, batches), expected)


def test_batches_are_used_one_by_one_and_let_go(generator):
    x, y = _data(generator)
    alive = []

    def batches():
        for i in range(0, 60, 10):
            batch = y[i : i + 10].numpy().copy()
            alive.append(weakref.ref(batch))  # lives as long as any tensor that looks at it
            yield x[i : i + 10], torch.from_numpy(batch)
            del batch
            assert sum(reference() is not None for reference in alive) <= 1

    assert recalibrate(SinhFlow(2), batches(), fit=_doubled).recalibration.n == 60
    assert len(alive) == 6


class _Moody(SinhFlow):
    """Dropout in training mode, an error on request."""

    def __init__(self):
        super().__init__(2)
        self.dropout, self.frozen, self.fails = nn.Dropout(0.9), nn.BatchNorm1d(2).eval(), False

    def encode(self, y, x=None):
        if self.fails:
            raise RuntimeError("on purpose")
        assert not torch.is_grad_enabled()
        z, log_abs_det = super().encode(y, x)
        return self.dropout(z), log_abs_det


def test_the_flow_runs_in_evaluation_mode_without_gradients_and_gets_its_mode_back(generator):
    x, y = _data(generator)
    flow = _Moody().train()
    flow.frozen.eval()
    torch.testing.assert_close(latent_norms(flow, x, y), latent_norms(SinhFlow(2), x, y))
    flow.fails = True
    with pytest.raises(RuntimeError, match="on purpose"):
        latent_norms(flow, x, y)
    assert flow.training
    assert flow.dropout.training
    assert not flow.frozen.training
    assert torch.is_grad_enabled()


def test_progress_is_shown_on_request(generator, capsys, monkeypatch):
    monkeypatch.setattr("latentcal._internal.progress_bar.SECONDS_BETWEEN_LINES", 0.0)
    x, y = _data(generator)
    latent_norms(SinhFlow(2), x, y, batch_size=30)
    assert capsys.readouterr().err == ""
    latent_norms(SinhFlow(2), x, y, batch_size=30, progress=True)
    assert "60/60" in capsys.readouterr().err
    recalibrate(SinhFlow(2), [(x, y)], fit=_doubled, progress=True)
    assert "60 points" in capsys.readouterr().err


def test_the_cheaper_latent_is_used_where_a_flow_has_one(generator):
    class Lazy(SinhFlow):
        def encode(self, y, x=None):
            raise AssertionError("the determinant is not needed")

        def latent(self, y, x=None):
            return SinhFlow.encode(self, y, x)[0]

    x, y = _data(generator)
    torch.testing.assert_close(latent_norms(Lazy(2), x, y), latent_norms(SinhFlow(2), x, y))


# --- the terms of the likelihood


@each_fit
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_three_terms_sum_to_the_negative_log_likelihood(fit, dtype, generator):
    x, y = _data(generator, dtype=dtype)
    flow = SinhFlow(2, dtype=dtype)
    model = recalibrate(flow, x, y, fit=fit)
    terms = nll_decomposition(model, x, y)
    total = terms.latent + terms.radial + terms.flow
    torch.testing.assert_close(total, -model(x).log_prob(y.double()), rtol=0, atol=1e-9)
    torch.testing.assert_close(terms.flow, nll_decomposition(flow, x, y).flow)
    torch.testing.assert_close(terms.flow, torch.log1p(y**2).sum(-1).double() / 2, rtol=1e-5, atol=1e-6)
    assert all(term.shape == (60,) and term.dtype == torch.float64 for term in terms)


def test_the_terms_of_a_stretched_law_are_known(generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    model = recalibrate(flow, x, y, fit=_doubled)
    z = flow.encode(y, x)[0].detach()
    terms = nll_decomposition(model, x, y)
    torch.testing.assert_close(terms.latent, -Normal(0, 1).log_prob(z / 2).sum(-1))
    torch.testing.assert_close(terms.radial, torch.full((60,), 2 * math.log(2.0), dtype=torch.float64))


def test_a_flow_that_was_not_recalibrated_has_no_radial_term(generator):
    x, y = _data(generator)
    terms = nll_decomposition(SinhFlow(2), x, y)
    assert same.defined(terms.radial, torch.zeros(60, dtype=torch.float64))
    torch.testing.assert_close(terms.latent + terms.flow, -SinhFlow(2)(x).log_prob(y).detach())


def test_the_terms_of_a_model_recalibrated_twice_start_from_the_trained_base(generator):
    x, y = _data(generator, n=120)
    once = recalibrate(SinhFlow(2), x[:60], y[:60], fit=_doubled)
    twice = recalibrate(once, x[60:], y[60:], fit=_doubled)
    terms = nll_decomposition(twice, x, y)
    torch.testing.assert_close(terms.radial, torch.full((120,), 2 * math.log(4.0), dtype=torch.float64))


@each_fit
@pytest.mark.parametrize("dim", [2, 100])
def test_the_terms_sum_to_the_likelihood_for_latents_of_any_size(fit, dim, generator):
    y = 1.3 * torch.randn(100, dim, generator=generator, dtype=torch.float64)
    model = recalibrate(scaled_gaussian(dim, 1.0), None, y, fit=fit)
    far = torch.zeros(50, dim, dtype=torch.float64)
    far[:, 0] = torch.logspace(-12, 2, 50, dtype=torch.float64) * math.sqrt(dim)
    terms = nll_decomposition(model, None, far)
    expected = -model().log_prob(far)
    assert torch.isfinite(expected).all()
    torch.testing.assert_close(terms.latent + terms.radial + terms.flow, expected, rtol=1e-9, atol=1e-9)


def test_a_point_of_density_zero_has_an_infinite_latent_term_and_no_nan(generator):
    flow = scaled_gaussian(2, 1.0).with_base(uniform_ball(2))
    model = recalibrate(flow, None, flow().sample((50,), generator=generator) ** 2, fit=ScaledRadius.fit)
    terms = nll_decomposition(model, None, torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    assert (terms.latent.item(), terms.radial.item(), terms.flow.item()) == (math.inf, 0.0, 0.0)


# --- what can go wrong


def test_errors_say_what_came_and_what_to_do(generator):
    x, y = _data(generator)
    x = torch.cat([x, x[:, :1]], 1)
    flow = LinearGaussianFlow.fit(x, y)
    for call in (latent_norms, recalibrate):
        with pytest.raises(
            ValueError, match=r"y has 3 outputs .*has 2 \(x: \(60, 2\), y: \(60, 3\)\).*swapped"
        ):
            call(flow, y, x)
        with pytest.raises(ValueError, match="x has 60 rows and y has 59"):
            call(flow, x, y[:59])
        with pytest.raises(
            ValueError, match=r"one row for each point \(x: \(60, 3\), y: \(60,\)\)\. .* y\[:, None\]"
        ):
            call(flow, x, y[:, 0])
        with pytest.raises(ValueError, match="There are no calibration points"):
            call(flow, x[:0], y[:0])
        with pytest.raises(ValueError, match="There are no calibration points"):
            call(flow, [])
        with pytest.raises(ValueError, match=r"y is missing.*\(flow, None, y\)"):
            call(flow, y)
        with pytest.raises(ValueError, match="y is missing"):
            call(flow, y.numpy())
        with pytest.raises(ValueError, match="y is missing"):
            call(flow, None)
        with pytest.raises(TypeError, match=r"flow must be a ConditionalFlow, got Linear\..*adapter"):
            call(nn.Linear(1, 1), x, y)
        with pytest.raises(TypeError, match=r"A batch must be a pair \(x, y\), or y alone; got dict"):
            call(flow, [{"x": x, "y": y}])
        with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
            call(flow, x, y, batch_size=0)
        with pytest.raises(
            ValueError, match=r"y has NaN or infinite values in 1 of 60 points \(first at \(3,\)\)"
        ):
            call(flow, x, y.index_fill(0, torch.tensor([3]), math.nan))
        with pytest.raises(ValueError, match="x has NaN or infinite values in 2 of 60 points"):
            call(flow, x.index_fill(0, torch.tensor([3, 5]), math.inf), y)
        with pytest.raises(ValueError, match="x has 2 features, but the flow has weights for 3"):
            call(flow, x[:, :2], y)
    with pytest.raises(TypeError, match=r"pass StackedRadius\.fit"):
        recalibrate(flow, x, y, fit=StackedRadius)
    with pytest.raises(TypeError, match="fit must return a RadiusLaw, got float"):
        recalibrate(flow, x, y, fit=lambda _: 1.0)
    with pytest.raises(ValueError, match=r"weights must be \(60,\), one for each point; got \(3,\)"):
        recalibrate(flow, x, y, weights=np.ones(3))


def test_latents_that_are_not_numbers_are_counted(generator):
    class Overflows(SinhFlow):
        def encode(self, y, x=None):
            z, log_abs_det = super().encode(y, x)
            return torch.where((y > 1) & (y < 2), self.filler, z), log_abs_det

    x, y = torch.zeros(10, 2), torch.zeros(10, 2)
    y[7:9] = 1.5
    flow = Overflows(2)
    flow.filler = math.inf
    with pytest.raises(ValueError, match=r"2 of 10 latent norms are infinite \(first rows: \[7, 8\]\)"):
        latent_norms(flow, x, y)
    with pytest.raises(ValueError, match=r"1 of 4 latent norms are infinite \(first rows: \[7\]\)"):
        latent_norms(flow, x, y, batch_size=4)
    flow.filler = math.nan
    with pytest.raises(ValueError, match=r"encode gave NaN for 2 of 10 points"):
        recalibrate(flow, x, y)


def test_a_law_without_density_says_so_when_it_is_asked_for_one(generator):
    x, y = _data(generator)
    model = recalibrate(SinhFlow(2), x, y, fit=EmpiricalRadius.fit)
    with pytest.raises(NotImplementedError, match="step function and has no density"):
        model(x).log_prob(y)
    with pytest.raises(NotImplementedError, match="cannot be sampled"):
        model(x).sample()


def test_a_subclass_is_all_that_a_user_writes(generator):
    class Shift(ConditionalFlow):
        def encode(self, y, x=None):
            return y - x, torch.zeros(y.shape[:-1], dtype=y.dtype)

        def decode(self, z, x=None):
            return z + x

    x, y = _data(generator)
    model = recalibrate(Shift(standard_normal(2)), x, y)
    assert torch.isfinite(model(x).log_prob(y)).all()
    assert model(x).sample((3,)).shape == (3, 60, 2)


def test_infinite_latents_are_counted_by_rows():
    z = torch.zeros(5, 3)
    z[1, 0] = z[1, 2] = z[4, 1] = math.inf
    with pytest.raises(ValueError, match=r"2 of 5 latent norms are infinite \(first rows: \[11, 14\]\)"):
        _check_norms(z, 10)
    with pytest.raises(ValueError, match=r"1 of 5 latent norms are infinite \(first rows: \[4\]\)"):
        _check_norms(z[:, 1], 0)
