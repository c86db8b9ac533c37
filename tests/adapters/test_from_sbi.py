import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import finite_pairs, from_sbi, predictor_from_sbi
from toys import moved_by, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit

pytest.importorskip("sbi")
from sbi import inference, neural_nets
from sbi.inference.posteriors import DirectPosterior, EnsemblePosterior, VectorFieldPosterior
from sbi.neural_nets.embedding_nets import CNNEmbedding
from sbi.samplers.ode_solvers import build_neural_ode
from sbi.utils import BoxUniform

pytestmark = pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated:UserWarning")  # nflows'

moved = partial(moved_by, size=0.1)
LOC, SCALE = torch.tensor([5.0, -10.0]), torch.tensor([0.3, 4.0])
DENSITIES = ["maf", "nsf", "maf_rqs", "zuko_nsf"]
FIELDS = ["fmpe", "fmpe composed", "npse ve", "npse vp", "npse subvp"]


def simulations(n=200):
    """Parameters and observations, neither of them near 0 or of size 1."""
    theta = LOC + SCALE * torch.randn(n, 2)
    noise = torch.randn(n, 3)
    x = torch.cat([100 + 3 * theta[:, :1], 0.01 * theta[:, 1:], theta.sum(-1, keepdim=True)], -1)
    return theta, x + torch.tensor([1.0, 0.01, 5.0]) * noise


def builder(kind, embedding=None, **options):
    options |= {} if embedding is None else {"embedding_net": embedding}
    if kind in FIELDS:
        options |= {"hidden_features": 16, "num_layers": 2}
        family, *rest = kind.split()
        if family == "npse":
            return neural_nets.posterior_score_nn(sde_type=rest[0], **options)
        return neural_nets.posterior_flow_nn(compose_standardization=bool(rest), **options)
    return neural_nets.posterior_nn(kind, hidden_features=10, num_transforms=2, **options)


def estimator_of(kind, embedding=None, **options):
    """An estimator as sbi builds it from simulations, not trained, in training mode as sbi leaves it."""
    theta, x = simulations()
    return moved(builder(kind, embedding, **options)(theta, x))


def own_log_prob(estimator, theta, x):
    """Log density by sbi alone, of an estimator in evaluation mode."""
    if not isinstance(estimator, neural_nets.estimators.ConditionalVectorFieldEstimator):
        return estimator.log_prob(theta, x)
    distribution = own_ode(estimator, x)
    if not estimator.compose_enabled:
        return distribution.log_prob(theta.double()).float()
    return distribution.log_prob(estimator.to_z(theta).double()).float() - estimator.log_abs_det()


def own_ode(estimator, x):
    """sbi's probability flow, solved in float64 around the float32 network."""

    def field(input, condition, times):
        return estimator.ode_fn(input.float(), condition.float(), times.float()).double()

    ode = build_neural_ode(
        field,
        estimator.net,
        estimator.mean_base.double(),
        estimator.std_base.double(),
        estimator.condition_shape,
        t_min=estimator.t_min,
        t_max=estimator.t_max,
        atol=1e-7,
        rtol=1e-7,
    )
    return ode(x.double())


@pytest.mark.parametrize("kind", DENSITIES)
def test_the_density_is_the_library_s_and_the_promises_are_kept(kind):
    estimator = estimator_of(kind)
    theta, x = simulations(20)
    flow = from_sbi(estimator)
    with torch.no_grad():
        expected = own_log_prob(estimator, theta[None], x)[0]
        error = (flow.decode(flow.latent(theta, x), x) - theta) / SCALE
    assert float(error.abs().max()) < 1e-4
    lc.testing.check_flow_contract(flow, x, theta, log_prob=expected)


@pytest.mark.parametrize("kind", FIELDS)
def test_the_density_of_a_vector_field_is_that_of_the_library_s_own_ode(kind):
    estimator = estimator_of(kind).eval()
    theta, x = simulations(3)
    flow = from_sbi(estimator)
    with torch.no_grad():
        expected = own_log_prob(estimator, theta, x)
        torch.testing.assert_close(flow(x).log_prob(theta), expected, rtol=0, atol=1e-3)
        error = (flow.decode(flow.latent(theta, x), x) - theta) / SCALE
    assert float(error.abs().max()) < 1e-3
    if kind.startswith("fmpe"):
        lc.testing.check_flow_contract(flow, x, theta, points=1)


@pytest.mark.parametrize("kind", [kind for kind in FIELDS if kind.startswith("npse")])
def test_the_determinant_of_a_score_model_is_that_of_autograd(kind):
    flow = from_sbi(estimator_of(kind))
    theta, x = simulations(1)
    theta.requires_grad_()
    z, log_abs_det = flow.encode(theta, x)
    rows = [torch.autograd.grad(z[0, j], theta, retain_graph=True)[0][0] for j in range(2)]
    expected = torch.linalg.slogdet(torch.stack(rows).double()).logabsdet
    assert float(log_abs_det[0].detach()) == pytest.approx(float(expected), abs=1e-3)


def test_the_density_is_that_of_the_library_s_posterior_of_a_vector_field():
    estimator = estimator_of("fmpe composed")
    theta, x = simulations(4)
    wide = BoxUniform(LOC - 100 * SCALE, LOC + 100 * SCALE)
    posterior = VectorFieldPosterior(estimator, wide)
    flow = from_sbi(posterior)
    with torch.no_grad():
        expected = posterior.log_prob(theta, x=x[:1])
        torch.testing.assert_close(flow(x[:1]).log_prob(theta), expected, rtol=0, atol=1e-3)


def test_fixed_steps_are_quick_and_coarse():
    estimator = moved(estimator_of("fmpe"), size=0.3)
    theta, x = simulations(10)
    with torch.no_grad():
        exact = from_sbi(estimator).latent(theta, x)
        errors = [
            float((from_sbi(estimator, **options).latent(theta, x) - exact).abs().max())
            for options in ({"steps": 40}, {"steps": 3}, {"tolerance": 1e-3})
        ]
    assert errors[0] < 1e-3 < min(errors[1:])


@pytest.mark.parametrize("kind", ["maf", "zuko_nsf", "fmpe"])
def test_extra_sample_dims_go_with_a_batch_of_x(kind):
    estimator = estimator_of(kind).eval()
    theta, x = simulations(12)
    theta, x = theta.reshape(4, 3, 2), x[:3]
    pred = from_sbi(estimator)(x)
    with torch.no_grad():
        expected = own_log_prob(estimator, theta, x)
        tolerance = 1e-3 if kind == "fmpe" else 1e-5
        torch.testing.assert_close(pred.log_prob(theta), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            from_sbi(estimator)(x[:, None]).log_prob(theta.transpose(0, 1)).T,
            expected,
            rtol=tolerance,
            atol=tolerance,
        )
    assert pred.sample((6,)).shape == (6, 3, 2)
    assert pred.sample().shape == (3, 2)


@pytest.mark.parametrize("kind", ["maf", "zuko_nsf", "fmpe"])
def test_gradients_reach_the_model(kind):
    estimator = estimator_of(kind).eval()
    theta, x = simulations(6)
    parameters = list(estimator.parameters())
    ours, theirs = (
        torch.autograd.grad(log_density.mean(), parameters)
        for log_density in (from_sbi(estimator)(x).log_prob(theta), own_log_prob(estimator, theta[None], x))
    )
    tolerance = 1e-2 if kind == "fmpe" else 1e-4
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


@pytest.mark.parametrize("kind", ["maf", "nsf", "zuko_nsf"])
def test_a_double_model_is_evaluated_and_sampled_in_double(kind):
    estimator = estimator_of(kind).double()
    theta, x = (values.double() for values in simulations(20))
    flow = from_sbi(estimator)
    with torch.no_grad():
        expected = estimator.log_prob(theta, x)[0]  # with log(2 pi) as it was rounded to float32
        torch.testing.assert_close(flow(x).log_prob(theta), expected, rtol=0, atol=1e-7)
    assert flow(x).sample((2,)).dtype == torch.float64
    lc.testing.check_flow_contract(flow, x, theta)


@pytest.mark.parametrize("kind", ["maf", "zuko_nsf", "fmpe"])
def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after(kind):
    embedding = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)).eval()
    estimator = estimator_of(kind, embedding).train()
    estimator.embedding_net[-1][1].eval()  # a module with a mode of its own
    modes = [module.training for module in estimator.modules()]
    theta, x = simulations(10)
    with torch.no_grad():
        values = [estimator.embedding_net(x) for _ in range(2)]
        assert float((values[0] - values[1]).abs().max()) > 0.1  # control: they are random
        flow = from_sbi(estimator)
        z, _ = flow.encode(theta, x)
        assert same.repeated(flow.encode(theta, x)[0], z)
        error = (flow.decode(z, x) - theta) / SCALE
        assert float(error.abs().max()) < 1e-3
        assert modes == [module.training for module in estimator.modules()]
        expected = own_log_prob(estimator.eval(), theta, x).reshape(-1)
        torch.testing.assert_close(flow(x).log_prob(theta), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["maf", "zuko_nsf", "fmpe"])
def test_an_image_is_given_flat_and_embedded_as_an_image(kind):
    theta, _ = simulations()
    images = 10 + theta.sum(-1)[:, None, None] * torch.rand(len(theta), 6, 6)
    cnn = CNNEmbedding((6, 6), out_channels_per_layer=[2], num_conv_layers=1, kernel_size=3, output_dim=4)
    estimator = moved(builder(kind, cnn)(theta, images)).eval()
    theta, images = theta[:5], images[:5]
    flow = from_sbi(estimator)
    tolerance = 1e-3 if kind == "fmpe" else 1e-5
    with torch.no_grad():
        expected = own_log_prob(estimator, theta, images).reshape(-1)
        ours = flow(images.flatten(1)).log_prob(theta)
        torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance)
    assert flow(images[:3].flatten(1)).sample((4,)).shape == (4, 3, 2)
    with pytest.raises(ValueError, match=r"shape \(6, 6\), so x must have 36 features, got 6"):
        flow(images).log_prob(theta[:, None])


def test_no_rows_are_no_trouble():
    theta, x = simulations(5)
    assert from_sbi(estimator_of("maf"))(x[:0]).log_prob(theta[:0]).shape == (0,)


def test_the_library_s_inverse_transform_is_not_the_way_to_the_latent():
    for kind in ("maf", "nsf"):
        estimator = moved(estimator_of(kind), size=0.3)
        _, x = simulations(20)
        z = torch.randn(20, 2)
        with torch.no_grad():
            theta, _ = estimator.net._transform.inverse(z, context=estimator.embedding_net(x))
            naive = estimator.inverse_transform(theta, x)  # which does not embed x
            ours = from_sbi(estimator).latent(theta, x)
        assert float((ours - z).abs().max()) < 1e-3
        assert float((naive - z).abs().max()) > 0.5


@pytest.mark.parametrize("kind", ["npse ve", "npse vp"])
def test_the_noise_of_a_score_model_is_standardised(kind):
    estimator = estimator_of(kind)
    _, x = simulations(4)
    z = torch.randn(4, 2)
    with torch.no_grad():
        transform = own_ode(estimator, x).transform
        theta = transform.inv((estimator.mean_base + estimator.std_base * z).double()).float()
        naive = transform(theta.double()).float()
        ours = from_sbi(estimator).latent(theta, x)
    assert float((ours - z).abs().max()) < 1e-2
    assert float((naive - z).abs().max()) > 0.2


def test_a_composed_standardisation_keeps_its_scale_next_to_a_large_shift():
    theta = torch.tensor([1000.0, -3000.0]) + 0.01 * torch.randn(200, 2)
    x = torch.randn(200, 3)
    estimator = builder("fmpe composed")(theta, x)
    flow = from_sbi(estimator)
    naive = estimator.from_z(torch.ones(1, 2)) - estimator.from_z(torch.zeros(1, 2))
    assert same.copied(flow.y_scale, estimator._theta_scale[0])
    assert float((naive / estimator._theta_scale - 1).abs().max()) > 1e-3  # control


def test_of_a_posterior_the_estimator_is_taken_without_the_bounds_of_the_prior():
    estimator = estimator_of("maf")
    theta, x = simulations(20)
    prior = BoxUniform(LOC - SCALE / 2, LOC + SCALE / 2)  # which most of the density lies outside of
    posterior = DirectPosterior(estimator, prior)
    inside = (prior.log_prob(theta) > -torch.inf).nonzero().reshape(-1)
    with torch.no_grad():
        flow = from_sbi(posterior)
        raw = estimator.log_prob(theta[:, None], x[:1])[:, 0]
        torch.testing.assert_close(flow(x[:1]).log_prob(theta), raw, rtol=1e-5, atol=1e-5)
        naive = posterior.log_prob(theta, x=x[:1])
    assert 0 < len(inside) < 20
    assert torch.isneginf(naive).sum() == 20 - len(inside)
    assert float((naive - raw)[inside].min()) > 0.5  # renormalised: no density of the flow


def test_a_flow_to_an_unconstrained_space_is_taken_with_its_bijection():
    prior = BoxUniform(LOC - 5 * SCALE, LOC + 5 * SCALE)
    theta, x = simulations()
    estimator = builder("zuko_nsf", z_score_theta="transform_to_unconstrained", x_dist=prior)(theta, x)
    flow = from_sbi(moved(estimator))
    with torch.no_grad():
        expected = estimator.log_prob(theta, x)[0]
        torch.testing.assert_close(flow(x).log_prob(theta), expected, rtol=1e-5, atol=1e-5)
        draws = flow(x).sample((20,))
    assert torch.isfinite(prior.log_prob(draws)).all()
    lc.testing.check_flow_contract(flow, x, theta)


@pytest.mark.parametrize("kind", ["maf", "zuko_nsf", "fmpe composed"])
def test_a_copy_has_networks_of_its_own_and_a_pickle_gives_the_same_flow(kind):
    estimator = estimator_of(kind)
    theta, x = simulations(5)
    flow = from_sbi(estimator)
    with torch.no_grad():
        before = flow(x).log_prob(theta)
        clone, again = copy.deepcopy(flow), pickle.loads(pickle.dumps(flow))
        moved(estimator)
        assert float((flow(x).log_prob(theta) - before).abs().max()) > 1e-2  # control: nothing was copied
        for other in (clone, again):
            torch.testing.assert_close(other(x).log_prob(theta), before, rtol=1e-5, atol=1e-5)


NO_LATENT = {
    "mdn": "MixtureDensityEstimator is not a flow",
    "made": "base law MADEMoG.* has no latent",
}


@pytest.mark.parametrize(("kind", "words"), NO_LATENT.items(), ids=NO_LATENT.keys())
def test_an_estimator_without_a_latent_names_the_pre_rank_route(kind, words):
    with pytest.raises(ValueError, match=f"{words}.*recalibrate_prerank.*predictor_from_sbi"):
        from_sbi(estimator_of(kind))


def test_what_is_no_posterior_is_refused_with_a_reason(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where the trainer puts its log
    prior = BoxUniform(LOC - SCALE, LOC + SCALE)
    posterior = DirectPosterior(estimator_of("maf"), prior)
    for thing, words in (
        (inference.NPE(prior, show_progress_bars=False), r"NPE_C is a trainer.*build_posterior\(\)"),
        (EnsemblePosterior([posterior, posterior]), "ensemble of posteriors .*FlowEnsemble"),
        (nn.Linear(2, 2), "posterior or an estimator of sbi, got Linear"),
        (prior, "posterior or an estimator of sbi, got BoxUniform"),
        (scaled_gaussian(2, 1.0), "needs no adapter"),
    ):
        for adapter in (from_sbi, predictor_from_sbi):
            with pytest.raises(TypeError, match=words):
                adapter(thing)


def test_parameters_and_observations_that_change_places_are_noticed():
    flow = from_sbi(estimator_of("maf"))
    theta, x = simulations(5)
    with pytest.raises(ValueError, match=r"x must have 3 features, got 2. Were x and y swapped\?"):
        flow(theta).log_prob(theta)
    with pytest.raises(ValueError, match="y has 3 outputs"):
        flow(x).log_prob(x)
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        flow(x / 0)


@pytest.mark.parametrize("kind", ["mdn", "made", "maf"])
def test_a_predictor_has_the_library_s_density_and_draws(kind):
    estimator = estimator_of(kind).train()
    theta, x = simulations(12)
    theta, x = theta.reshape(4, 3, 2), x[:3]
    pred = predictor_from_sbi(estimator)(x)
    with torch.no_grad():
        expected = estimator.eval().log_prob(theta, x)
        estimator.train()
        torch.testing.assert_close(pred.log_prob(theta), expected)
        torch.testing.assert_close(pred.log_prob(theta.double()), expected, check_dtype=False)
    assert (pred.batch_shape, pred.event_shape) == ((3,), (2,))
    assert pred.sample((6, 2)).shape == (6, 2, 3, 2)
    assert pred.sample().shape == (3, 2)
    assert estimator.training
    with pytest.raises(ValueError, match="y has NaN or infinite values"):
        pred.log_prob(theta * torch.nan)
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        predictor_from_sbi(estimator)(x * torch.nan)


def test_a_predictor_pairs_each_value_with_its_own_x():
    estimator = moved(estimator_of("mdn"), size=0.3)
    theta, x = simulations(15)
    theta, x = theta.reshape(3, 5, 2), x[:3]
    with torch.no_grad():
        expected = torch.stack([estimator.log_prob(theta[i][:, None], x[i : i + 1])[:, 0] for i in range(3)])
        pred = predictor_from_sbi(estimator)(x[:, None])  # one x for five values each
        torch.testing.assert_close(pred.log_prob(theta), expected)
        naive = estimator.log_prob(theta.reshape(-1, 3, 2), x).reshape(3, 5)  # rows as they come
    assert float((naive - expected).abs().max()) > 0.1
    assert predictor_from_sbi(estimator)(x[0]).log_prob(theta[0]).shape == (5,)


def test_a_predictor_of_a_posterior_is_that_of_its_estimator():
    estimator = estimator_of("mdn")
    theta, x = simulations(5)
    posterior = DirectPosterior(estimator, BoxUniform(LOC - SCALE, LOC + SCALE))
    ours, expected = (predictor_from_sbi(each)(x).log_prob(theta) for each in (posterior, estimator))
    torch.testing.assert_close(ours, expected)


def test_a_vector_field_has_no_density_for_a_predictor():
    with pytest.raises(TypeError, match=r"FlowMatchingEstimator has no density.*from_sbi"):
        predictor_from_sbi(estimator_of("fmpe"))


def test_a_mixture_density_network_is_recalibrated_by_its_pre_rank():
    n_cal, n_test = 600, 400
    _, x = simulations(n_cal + n_test)
    model = predictor_from_sbi(estimator_of("mdn"))
    theta = LOC + 1.6 * (model(x).sample() - LOC)  # wider than the model believes
    with torch.no_grad():
        recalibrated = lc.recalibrate_prerank(model, x[:n_cal], theta[:n_cal])
        before, after = model(x[n_cal:]), recalibrated(x[n_cal:])
        before = distance_to_uniform(lc.hdr_pit(before, theta[n_cal:], samples=100))
        after = distance_to_uniform(
            lc.prerank_pit(after, theta[n_cal:], recalibrated.base_prerank, samples=100)
        )
    # Errors of the fitted law and of the test rows, each exceeded with probability 1e-6, and of ranks of 100.
    limit = uniform_limit(n_cal) + uniform_limit(n_test) + 0.01
    assert after < limit < before


def test_simulations_that_failed_are_dropped_with_a_count():
    x, y = torch.randn(10, 2, 3), torch.randn(10, 2)
    x[1, 0, 2], x[4, 1, 1], y[4, 0], y[7, 1] = torch.nan, torch.inf, torch.nan, -torch.inf
    with pytest.warns(UserWarning, match="3 of 10 simulations have NaN or infinite"):
        kept_x, kept_y = finite_pairs(x, y)
    keep = [0, 2, 3, 5, 6, 8, 9]
    assert same.copied(kept_x, x[keep])
    assert same.copied(kept_y, y[keep])
    assert all(same.copied(a, b) for a, b in zip(finite_pairs(kept_x, kept_y), (kept_x, kept_y), strict=True))
    with pytest.raises(ValueError, match="x has 10 simulations, but y has 9"):
        finite_pairs(x, y[:9])
