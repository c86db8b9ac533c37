"""Numbers of every kind are understood, or refused in words: one entry for all public functions."""

import numpy as np
import pytest
import torch

import latentcal as lc
import same
from latentcal._internal.numerics import to_tensor

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def rows():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=source, dtype=torch.float64)
    return x, x + torch.randn(60, 2, generator=source, dtype=torch.float64)


@pytest.fixture(scope="module")
def flow(rows):
    return lc.flows.LinearGaussianFlow.fit(*rows)


@pytest.fixture(scope="module")
def model(rows, flow):
    return lc.recalibrate(flow, rows[0][:40], rows[1][:40], fit=lc.ScaledRadius.fit)


CALLS = {
    "log_prob": lambda model, x, y: model(x).log_prob(y),
    "latent": lambda model, x, y: model(x).latent(y),
    "latent_pit": lambda model, x, y: lc.latent_pit(model(x), y),
    "hdr_pit": lambda model, x, y: lc.hdr_pit(model(x), y, generator=torch.Generator().manual_seed(0)),
    "marginal_pit": lambda model, x, y: lc.marginal_pit(
        model(x), y, generator=torch.Generator().manual_seed(0)
    ),
    "probability": lambda model, x, y: (
        lc.probability(model, x, lc.events.Box(-1, 1), generator=torch.Generator().manual_seed(0)).value
    ),
    "latent_norms": lambda model, x, y: lc.latent_norms(model, x, y),
    "recalibrate": lambda model, x, y: lc.recalibrate(model, x, y, fit=lc.ScaledRadius.fit).base.radius.cdf(
        1.0 + torch.arange(3)
    ),
    "conformal_region": lambda model, x, y: lc.conformal_region(model, x, y).threshold,
    "contains": lambda model, x, y: lc.Region(
        model, lc.conformal.LatentScore(), torch.arange(20.0).double(), 0.5
    ).contains(y, x),
    "linear fit": lambda model, x, y: lc.flows.LinearGaussianFlow.fit(x, y).bias,
    "energy score": lambda model, x, y: lc.metrics.energy_score(torch.zeros(3, len(y), 2), y),
}
KINDS = {
    "numpy": lambda v: v.numpy(),
    "frame": lambda v: pd.DataFrame(v.numpy(), columns=["a", "b"], index=[f"row {i}" for i in range(len(v))]),
    "lists": lambda v: v.tolist(),
    "objects": lambda v: v.numpy().astype(object),
    "big-endian": lambda v: v.numpy().astype(">f8"),
    "long double": lambda v: v.numpy().astype(np.longdouble),
    "read-only": lambda v: np.broadcast_to(v.numpy(), v.shape),
    "backwards": lambda v: np.ascontiguousarray(v.numpy()[::-1])[::-1],
    "columns first": lambda v: np.asfortranarray(v.numpy()),
    "negative bit": lambda v: torch._neg_view(-v),
    "transposed": lambda v: v.T.contiguous().T,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::latentcal.recalibration.CalibrationReuseWarning")
def test_every_kind_of_numbers_gives_the_same_answer(name, kind, model, rows):
    x, y = (part[40:] for part in rows)
    expected = CALLS[name](model, x, y)
    found = CALLS[name](model, KINDS[kind](x), KINDS[kind](y))
    torch.testing.assert_close(found, expected, check_dtype=False)


REFUSED = {
    "complex": (lambda v: v.numpy() * 1j, "real numbers"),
    "complex tensor": (lambda v: v * 1j, "real numbers"),
    "text": (lambda v: np.full(v.shape, "a"), "numbers"),
    "dates": (lambda v: np.full(v.shape, "2020-01-01", dtype="M8[D]"), "numbers"),
    "text in a frame": (lambda v: pd.DataFrame({"a": v[:, 0].numpy(), "b": "text"}), "numbers"),
    "rows of unequal length": (lambda v: [[1.0, 2.0], [3.0]], "equal length"),
    "sparse": (lambda v: v.to_sparse(), "dense"),
    "eight bits": (lambda v: v.to(torch.float8_e4m3fn), "at least 16 bits"),
    "nan": (lambda v: torch.full_like(v, float("nan")), "NaN"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("probability", "energy score")])
def test_what_cannot_be_understood_is_refused_in_words(name, kind, model, rows):
    make, message = REFUSED[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        CALLS[name](model, rows[0], make(rows[1]))


@pytest.mark.parametrize(
    "name", ["log_prob", "latent", "latent_pit", "hdr_pit", "marginal_pit", "probability", "contains"]
)
def test_no_rows_give_no_answers(name, model):
    found = CALLS[name](model, torch.empty(0, 2), torch.empty(0, 2))
    assert found.shape[0] == 0


def test_no_rows_give_no_actions(model):
    assert (
        lc.best_action(
            model, torch.empty(0, 2), {"go": lc.events.Payoff(lc.events.Box(-1, 1), 1, -1), "wait": 0.0}
        )
        == []
    )


@pytest.mark.parametrize(
    ("shape", "error"), [(5, TypeError), ((-1,), ValueError), ((2.0,), TypeError), ("a", TypeError)]
)
def test_a_shape_of_draws_that_is_none_is_refused_in_words(shape, error, model):
    with pytest.raises(error, match="shape of draws"):
        model(torch.zeros(3, 2)).sample(shape)


def test_a_latent_that_overflows_has_density_zero():
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(1), 1e-30 * torch.eye(1))
    for model in (flow, flow.with_base(lc.RadialBase(lc.ScaledRadius(lc.radius.Chi(1), 2.0, 1.5), 1))):
        assert model().log_prob(torch.tensor([1e30])) == -torch.inf


def test_numbers_keep_their_values_and_tensors_their_graph():
    values = torch.randn(3, 2, requires_grad=True)
    assert to_tensor(values) is values
    assert same.copied(to_tensor(np.arange(4, dtype=np.uint16)), torch.arange(4))
    assert to_tensor(7.5).shape == ()
    assert to_tensor(np.float32(1)).dtype == torch.float32


def test_a_single_number_given_backwards_is_taken():
    assert same.copied(to_tensor(np.array([0.5])[::-1]), torch.tensor([0.5], dtype=torch.float64))


def test_tensors_without_numbers_are_refused():
    with pytest.raises(TypeError, match="u must be a dense tensor"):
        to_tensor(torch.empty(3, device="meta"), "u")


@pytest.mark.parametrize("fit", [lc.StackedRadius.fit, lc.ScaledRadius.fit, lc.GammaKDE.fit])
def test_one_output_whose_latent_overflows_has_density_zero_under_every_law(fit):
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(1), torch.eye(1))
    source = torch.Generator().manual_seed(0)
    model = lc.recalibrate(flow, None, 1.5 * torch.randn(60, 1, generator=source), fit=fit)
    far = torch.tensor([[1e300]], dtype=torch.float64)  # infinite in the flow's float32
    assert model().log_prob(far) == -torch.inf
    terms = lc.nll_decomposition(model, None, far)
    assert not any(bool(torch.isnan(term).any()) for term in terms)


def test_features_that_overflow_the_dtype_of_the_flow_are_refused():
    flow = lc.flows.LinearGaussianFlow(torch.ones(1, 1), torch.zeros(1), torch.eye(1))
    with pytest.raises(ValueError, match=r"x in the flow's torch\.float32 has NaN or infinite"):
        flow(torch.full((2, 1), 1e300, dtype=torch.float64))


def test_a_law_refuses_nan():
    for law in (lc.radius.Chi(2), lc.ScaledRadius(lc.radius.Chi(1), 2.0, 1.5)):
        for method in (law.cdf, law.log_prob, law.log_sf):
            with pytest.raises(ValueError, match="1 of 2 values of r are NaN"):
                method(torch.tensor([1.0, torch.nan]))


def test_a_quantile_beyond_the_floats_is_infinite():
    heavy = lc.radius.StudentRadius(2, 3.0)
    assert heavy.icdf_log_sf(torch.tensor([-1e59], dtype=torch.float64)) == torch.inf
    assert heavy.icdf_log_cdf(torch.tensor([-1e59], dtype=torch.float64)) == 0
    inside = torch.tensor([-600.0], dtype=torch.float64)
    torch.testing.assert_close(heavy.log_sf(heavy.icdf_log_sf(inside)), inside)


def test_radii_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match="radii reach 1e\\+200"):
        lc.StackedRadius.fit(torch.tensor([1.0, 2.0, 1e200], dtype=torch.float64), reference=lc.radius.Chi(2))


def test_the_moments_of_large_numbers_are_not_nan():
    flow = lc.flows.LinearGaussianFlow(
        torch.ones(1, 1).double(), torch.zeros(1).double(), torch.eye(1).double()
    )
    mean, variance = flow(torch.full((2, 1), 1e300, dtype=torch.float64)).moments(10)
    torch.testing.assert_close(mean, torch.full_like(mean, 1e300))
    assert not torch.isnan(variance).any()
    assert flow(torch.empty(0, 1)).moments(10)[1].shape == (0, 1)


def test_whole_numbers_of_numpy_are_taken_and_others_refused_by_name(model, rows):
    x, y = rows
    torch.testing.assert_close(
        lc.latent_norms(model, x, y, batch_size=np.int64(7)), lc.latent_norms(model, x, y)
    )
    for wrong, error in ((2.5, ValueError), (0, ValueError), ("3", TypeError), (True, TypeError)):
        with pytest.raises(error, match="batch_size must be"):
            lc.latent_norms(model, x, y, batch_size=wrong)


def test_successes_are_at_most_the_trials():
    with pytest.raises(ValueError, match="successes must be at most n, got 5 of 3"):
        lc.metrics.binomial_interval(5, 3)


def test_scores_refuse_nan_in_samples():
    with pytest.raises(ValueError, match="samples has NaN"):
        lc.metrics.energy_score(torch.full((2, 1, 1), torch.nan), torch.zeros(1, 1))


def test_the_estimator_takes_tensors_of_any_kind_and_refuses_dates(rows):
    pytest.importorskip("sklearn")
    x, y = rows
    fitted = lc.FlowRegressor("linear_gaussian", recalibration=None, random_state=0).fit(
        x.bfloat16(), torch._neg_view(-y).requires_grad_()
    )
    assert fitted.predict(x[:2].numpy().astype(">f8")).shape == (2, 2)
    with pytest.raises(TypeError, match="Encode dates"):
        fitted.predict(np.full((2, 2), "2020-01-01", dtype="M8[D]"))


@pytest.mark.parametrize(
    "weights", [-torch.ones(60), torch.zeros(60), torch.ones(59), torch.full((60,), torch.nan)]
)
def test_weights_that_are_none_are_refused_alike_everywhere(weights, model, rows):
    flow = model.with_base(lc.base.standard_normal(2))
    calls = (
        lambda: lc.recalibrate(flow, *rows, weights=weights),
        lambda: lc.align(flow, *rows, weights=weights),
        lambda: lc.autocalibrate(flow, *rows, weights=weights),
        lambda: lc.cross_calibrate(lc.flows.LinearGaussianFlow.fit, *rows, weights=weights),
        lambda: lc.ScaledRadius.fit(rows[1][:, 0].abs(), reference=lc.radius.Chi(1), weights=weights),
        lambda: lc.guarantee(lc.radius.Chi(1), rows[1][:, 0].abs(), weights=weights),
    )
    for call in calls:
        with pytest.raises(
            ValueError, match=r"^weights (must be finite|must be \(60,\), one for each point; got \(59,\))"
        ):
            call()


@pytest.mark.parametrize("score", ["latent", "density", "hpd", "pcp"])
def test_a_region_without_rows_has_no_volumes(score, flow, rows):
    region = lc.conformal_region(flow, *rows, coverage=0.8, score=score)
    assert region.volume(torch.empty(0, 2), samples=64).value.shape == (0,)


def test_numbers_whose_sum_overflows_are_finite():
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(1, dtype=torch.float64), torch.eye(1).double())
    large = torch.full((4, 1), 1.5e308, dtype=torch.float64)
    assert same.decided(bool(torch.isneginf(flow().log_prob(large)).all()), True)
    for wrong in (torch.inf, -torch.inf, torch.nan):
        with pytest.raises(ValueError, match="y has NaN or infinite values in 1 of 4 points"):
            flow().log_prob(large.index_fill(0, torch.tensor([2]), wrong))
