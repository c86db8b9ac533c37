import copy
import math
import os
import pickle
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_sbi, predictor_from_sbi, to_sbi
from latentcal.flows import LinearGaussianFlow
from latentcal.radius.smooth import SmoothRadius
from uniformity import distance_to_uniform, uniform_limit

pytest.importorskip("sbi")
from sbi import neural_nets
from sbi.diagnostics import LC2ST, LC2ST_NF, run_sbc, run_tarp
from sbi.inference import NPE
from sbi.neural_nets.embedding_nets import CNNEmbedding
from sbi.utils import BoxUniform

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}:UserWarning")
    for words in (
        "Maximum number of epochs",
        "Capping max_sampling_batch_size",
        "Number of (SBC|TARP|posterior) samples",
    )
]

PRIOR = BoxUniform(torch.tensor([-2.0, 10.0]), torch.tensor([2.0, 14.0]))
QUIET = {"show_progress_bars": False}
KINDS = ["radial", "automatic", "by features"]


def simulate(n):
    theta = PRIOR.sample((n,))
    return theta, without_noise(theta) + torch.randn(n, 3)


def without_noise(theta):
    return theta @ torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A posterior of sbi after few epochs on few simulations, and pairs that it has not seen."""
    torch.manual_seed(0)
    home = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("sbi"))  # where sbi puts its log
    try:
        network = neural_nets.posterior_nn("maf", hidden_features=10, num_transforms=2)
        trainer = NPE(PRIOR, density_estimator=network, **QUIET)
        trainer.append_simulations(*simulate(300)).train(50, learning_rate=5e-3, max_num_epochs=20)
        posterior = trainer.build_posterior()
    finally:
        os.chdir(home)
    return SimpleNamespace(posterior=posterior, flow=from_sbi(posterior), pairs=simulate(300))


@pytest.fixture(scope="module")
def models(trained):
    torch.manual_seed(0)
    theta, x = trained.pairs
    return {
        "radial": lc.recalibrate(trained.flow, x, theta),
        "automatic": lc.autocalibrate(trained.flow, x[:150], theta[:150], folds=2),
        "by features": lc.recalibrate(trained.flow, x, theta, fit=SmoothRadius.fit),
    }


@pytest.fixture
def posterior(models):
    return to_sbi(models["radial"], PRIOR)


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_model_s_inside_the_prior_and_zero_outside(models, kind):
    model = models[kind]
    posterior = to_sbi(model, PRIOR)
    theta, x = simulate(20)
    theta[3], theta[7] = torch.tensor([-2.1, 12.0]), torch.tensor([0.0, 14.1])
    outside = torch.isneginf(PRIOR.log_prob(theta))
    with torch.no_grad():
        raw = model(x[:1]).log_prob(theta)
        alone = posterior.log_prob(theta, x=x[0], norm_posterior=False)
        batch = posterior.log_prob_batched(theta, x=x, norm_posterior=False)
        each = model(x).log_prob(theta)
    assert outside.sum() == 2
    for ours, expected in ((alone, raw), (batch[0], each)):
        assert torch.isneginf(ours[outside]).all()
        torch.testing.assert_close(ours[~outside], expected[~outside], rtol=1e-5, atol=1e-5)
    assert batch.shape == (1, 20)


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_integrates_to_one_over_the_prior(models, kind):
    model = models[kind]
    posterior = to_sbi(model, PRIOR)
    x = without_noise(torch.tensor([2.0, 14.0]))  # of a corner: much of the flow lies outside
    cells = 100
    side = (torch.arange(cells) + 0.5) / cells
    grid = torch.cartesian_prod(side, side) * 4 + torch.tensor([-2.0, 10.0])
    area = (4 / cells) ** 2
    with torch.no_grad():
        draws = 10_000
        normalised = posterior.log_prob(grid, x=x, leakage_correction_params={"num_rejection_samples": draws})
        naive = model(x).log_prob(grid)
    inside, total = (float(values.double().exp().sum()) * area for values in (naive, normalised))
    assert inside < 0.9  # control: without the prior's bounds it does not
    # Five standard errors of the share that the draws measure (failure rate 6e-7), and those of the grid.
    error = 5 * math.sqrt((1 - inside) / (inside * draws)) + 2e-3
    assert total == pytest.approx(1, abs=error)


def test_draws_lie_inside_the_prior_and_next_to_their_own_x(posterior):
    theta = torch.tensor([[-1.9, 10.1], [1.9, 13.9]])
    x = without_noise(theta)
    alone = posterior.sample((50,), x=x[0], **QUIET)
    batch = posterior.sample_batched((50,), x=x, **QUIET)
    assert alone.shape == (50, 2)
    assert batch.shape == (50, 2, 2)
    assert torch.isfinite(PRIOR.log_prob(batch)).all()
    assert torch.isfinite(PRIOR.log_prob(alone)).all()
    near, far = batch.mean(0)
    assert ((near < torch.tensor([0.0, 12.0])) & (far > torch.tensor([0.0, 12.0]))).all()


def test_draws_of_many_x_come_with_their_own_densities_unlike_the_library_s(trained, models):
    x = without_noise(torch.tensor([[-2.0, 10.0], [0.0, 12.0], [2.0, 14.0]]))
    right = to_sbi(models["radial"], PRIOR).posterior_estimator
    wrong = trained.posterior.posterior_estimator
    with torch.no_grad():
        errors = []
        for estimator in (right, wrong):
            theta, log_density = estimator.sample_and_log_prob(torch.Size([40]), x)
            assert theta.shape == (40, 3, 2)
            errors.append(float((estimator.log_prob(theta, x) - log_density).abs().max()))
    assert errors[0] < 1e-4
    assert errors[1] > 1  # nats


def test_the_map_is_denser_than_any_draw(posterior):
    _, x = simulate(1)
    posterior.set_default_x(x)
    peak = posterior.map(num_iter=100, num_to_optimize=10, num_init_samples=100, **QUIET)
    draws = posterior.sample((100,), **QUIET)
    assert peak.shape == (1, 2)
    assert posterior.potential(peak)[0] >= posterior.potential(draws).max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_s_diagnostics_run(models, kind):
    posterior = to_sbi(models[kind], PRIOR)
    theta, x = simulate(10)
    options = {"num_posterior_samples": 20, "show_progress_bar": False}
    ranks, draws = run_sbc(theta, x, posterior, **options)
    assert ranks.shape == draws.shape == (10, 2)
    assert ((ranks >= 0) & (ranks <= 20)).all()
    assert ranks.float().std() > 0
    coverage, _ = run_sbc(theta[:3], x[:3], posterior, reduce_fns=posterior.log_prob, **options)
    assert coverage.shape == (3, 1)
    expected, levels = run_tarp(theta, x, posterior, num_bins=5, **options)
    assert expected.shape == levels.shape == (6,)
    assert torch.isfinite(expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_local_tests_run_in_the_space_of_the_parameters_and_of_the_latents(models, kind):
    posterior = to_sbi(models[kind], PRIOR)
    theta, x = simulate(40)
    draws = posterior.sample_batched((1,), x=x, **QUIET)[0]
    options = {
        "classifier": "random_forest",
        "classifier_kwargs": {"n_estimators": 2},
        "num_trials_null": 2,
    }
    test = LC2ST(theta, x, draws, **options)
    test.train_on_observed_data(verbosity=0).train_under_null_hypothesis(verbosity=0)
    assert 0 <= test.p_value(posterior.sample((20,), x=x[0], **QUIET), x[:1]) <= 1
    test = LC2ST_NF(
        theta,
        x,
        draws,
        flow_inverse_transform=posterior.posterior_estimator.inverse_transform,
        flow_base_dist=torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2)),
        num_eval=20,
        **options,
    )
    test.train_on_observed_data(verbosity=0).train_under_null_hypothesis(verbosity=0)
    assert 0 <= test.p_value(x[:1]) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_latents_of_draws_are_standard_normal(models, kind):
    model, n = models[kind], 2000
    estimator = to_sbi(model, PRIOR).posterior_estimator
    _, x = simulate(n)
    with torch.no_grad():
        theta = model(x).sample()
        z = estimator.inverse_transform(theta, x)
        naive = model(x).latent(theta)  # without the transport to N(0, I)
    limit = uniform_limit(n)  # a true law fails each of the three checks with probability 1e-6
    assert z.shape == (n, 2)
    assert distance_to_uniform(lc.radius.Chi(2).cdf(z.norm(dim=-1))) < limit
    for coordinate in z.T:
        assert distance_to_uniform(torch.special.ndtr(coordinate)) < limit
    assert distance_to_uniform(lc.radius.Chi(2).cdf(naive.norm(dim=-1))) > limit


def test_latents_are_those_of_each_pair_in_any_leading_shape(models):
    estimator = to_sbi(models["by features"], PRIOR).posterior_estimator
    theta, x = simulate(12)
    with torch.no_grad():
        z = estimator.inverse_transform(theta, x)
        torch.testing.assert_close(
            estimator.inverse_transform(theta.reshape(3, 4, 2), x.reshape(3, 4, 3)), z.reshape(3, 4, 2)
        )
        one = estimator.inverse_transform(theta, x[:1])
        torch.testing.assert_close(one, estimator.inverse_transform(theta, x[:1].expand(12, 3)))


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
def test_the_pair_plot_runs(posterior):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from sbi.analysis import pairplot

    _, x = simulate(1)
    figure, axes = pairplot(posterior.sample((50,), x=x, **QUIET).numpy())
    assert axes.shape == (2, 2)
    matplotlib.pyplot.close(figure)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_and_a_pickle_give_the_same_densities(models, kind):
    posterior = to_sbi(models[kind], PRIOR)
    theta, x = simulate(5)
    before = posterior.log_prob(theta, x=x[0], norm_posterior=False)
    for other in (copy.deepcopy(posterior), pickle.loads(pickle.dumps(posterior))):
        torch.testing.assert_close(other.log_prob(theta, x=x[0], norm_posterior=False), before)
        kept = other.posterior_estimator.state_dict()
        for name, tensor in posterior.posterior_estimator.state_dict().items():
            assert same.copied(kept[name], tensor), name
        assert other.sample((4,), x=x[0], **QUIET).shape == (4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_flow_that_is_not_sbi_s_becomes_a_posterior_where_the_shape_of_x_is_told(dtype):
    theta, x = simulate(300)
    flow = LinearGaussianFlow.fit(x.to(dtype), theta.to(dtype))
    with pytest.raises(TypeError, match=r"to_sbi\(model, prior, x_shape=\(p,\)\)"):
        to_sbi(flow, PRIOR)
    posterior = to_sbi(lc.recalibrate(flow, x, theta), PRIOR, x_shape=(3,))
    draws = posterior.sample((20,), x=x[0], **QUIET)
    assert torch.isfinite(posterior.log_prob(draws, x=x[0])).all()
    assert posterior.sample_batched((4,), x=x[:5], **QUIET).shape == (4, 5, 2)
    ranks, _ = run_sbc(theta[:5], x[:5], posterior, num_posterior_samples=10, show_progress_bar=False)
    assert ranks.shape == (5, 2)


def test_a_prior_of_another_dimension_is_refused(trained):
    wide = BoxUniform(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="prior has 3 parameters, but the flow has 2 outputs"):
        to_sbi(trained.flow, wide)


@pytest.mark.parametrize("kind", ["maf", "fmpe"])
def test_observations_keep_the_shape_that_sbi_has_them_in(kind):
    theta = PRIOR.sample((50,))
    images = theta.sum(-1)[:, None, None] + torch.randn(50, 6, 6)
    cnn = CNNEmbedding((6, 6), out_channels_per_layer=[2], num_conv_layers=1, kernel_size=3, output_dim=4)
    if kind == "maf":
        build = neural_nets.posterior_nn("maf", hidden_features=8, num_transforms=1, embedding_net=cnn)
    else:
        build = neural_nets.posterior_flow_nn(hidden_features=8, num_layers=1, embedding_net=cnn)
    flow = from_sbi(build(theta, images))
    posterior = to_sbi(lc.recalibrate(flow, images.flatten(1), theta), PRIOR)
    assert posterior.posterior_estimator.condition_shape == (6, 6)
    assert posterior.sample((4,), x=images[0], **QUIET).shape == (4, 2)
    assert posterior.sample_batched((4,), x=images[:3], **QUIET).shape == (4, 3, 2)
    log_density = posterior.log_prob(theta[:5], x=images[:1], norm_posterior=False)
    torch.testing.assert_close(
        log_density, posterior.posterior_estimator.net(images[:1].flatten(1)).log_prob(theta[:5]).detach()
    )


def test_an_observation_is_embedded_once_however_many_parameters_are_asked_for(trained):
    seen = []
    embedding = trained.posterior.posterior_estimator.embedding_net
    hook = embedding.register_forward_hook(lambda module, arguments, result: seen.append(len(result)))
    try:
        theta, x = simulate(50)
        posterior = to_sbi(trained.flow, PRIOR)
        posterior.log_prob(theta, x=x[0], norm_posterior=False)
    finally:
        hook.remove()
    assert seen == [1]


def test_members_of_an_ensemble_become_one_posterior(trained, models):
    ensemble = lc.recalibration.FlowEnsemble([models["radial"], trained.flow])
    posterior = to_sbi(ensemble, PRIOR)
    theta, x = simulate(5)
    ours = posterior.log_prob(theta, x=x[0], norm_posterior=False)
    with torch.no_grad():
        members = [flow(x[:1]).log_prob(theta) for flow in (models["radial"], trained.flow)]
    expected = torch.logsumexp(torch.stack(members), 0) - math.log(2)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
    assert posterior.sample((4,), x=x[0], **QUIET).shape == (4, 2)
    with pytest.raises(NotImplementedError, match="Only flows with a base that is radial"):
        posterior.posterior_estimator.inverse_transform(theta, x)


def test_a_model_that_was_recalibrated_by_its_pre_rank_becomes_a_posterior():
    theta, x = simulate(200)
    network = neural_nets.posterior_nn("mdn", hidden_features=10, num_components=2)(theta, x)
    model = lc.recalibrate_prerank(predictor_from_sbi(network), x, theta, samples=50, density_samples=100)
    posterior = to_sbi(model, PRIOR)  # no warning: sbi finds the networks, and with them the device
    assert posterior.sample((30,), x=x[0], **QUIET).shape == (30, 2)
    ours = posterior.log_prob(theta[:5], x=x[0], norm_posterior=False)
    with torch.no_grad():
        torch.testing.assert_close(ours, model(x[:1]).log_prob(theta[:5]), rtol=1e-5, atol=1e-5)


def test_a_cube_has_no_latents_to_compare_with_a_normal_law():
    flow = LinearGaussianFlow(torch.ones(2, 3), torch.zeros(2), torch.eye(2), base=lc.base.uniform_cube(2))
    estimator = to_sbi(flow, PRIOR, x_shape=(3,)).posterior_estimator
    with pytest.raises(NotImplementedError, match="radial in the Euclidean norm"):
        estimator.inverse_transform(torch.zeros(1, 2), torch.zeros(1, 3))


def test_the_loss_is_the_negative_log_density(trained):
    theta, x = simulate(6)
    estimator = to_sbi(trained.flow, PRIOR).posterior_estimator
    with torch.no_grad():
        torch.testing.assert_close(estimator.loss(theta, x), -trained.flow(x).log_prob(theta))
    assert isinstance(estimator.embedding_net, nn.Identity)


def test_a_missing_sbi_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "latentcal.adapters.sbi_posterior", raising=False)
    monkeypatch.setitem(sys.modules, "sbi.inference.posteriors", None)
    with pytest.raises(ImportError, match="to_sbi needs sbi, which is not installed"):
        to_sbi(lambda x: x, PRIOR, x_shape=(3,))
