from functools import partial

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_pyro
from toys import moved_by

dist = pytest.importorskip("pyro.distributions")
transforms = dist.transforms

moved = partial(moved_by, size=0.2)
DIM, FEATURES = 2, 3


def standard(dtype=torch.float32):
    return dist.Normal(torch.zeros(DIM, dtype=dtype), torch.ones(DIM, dtype=dtype)).to_event(1)


def with_features(name, **options):
    return moved(getattr(transforms, f"conditional_{name}")(DIM, FEATURES, hidden_dims=[8], **options))


KINDS = {
    "spline autoregressive": lambda: [with_features("spline_autoregressive", count_bins=4, bound=3.0)],
    "affine autoregressive": lambda: [with_features("affine_autoregressive")],
    "affine coupling": lambda: [with_features("affine_coupling") for _ in range(2)],
    "element-wise spline": lambda: [with_features("spline", count_bins=4)],
    "matrix exponential": lambda: [with_features("matrix_exponential")],
    "several": lambda: [
        with_features("spline", count_bins=4),
        transforms.Permute(torch.tensor([1, 0])),
        with_features("affine_autoregressive"),
        dist.transforms.AffineTransform(torch.tensor([5.0, -20.0]), torch.tensor([0.3, 4.0])),
    ],
}


def distribution_of(kind="several", base=None):
    return dist.ConditionalTransformedDistribution(standard() if base is None else base, KINDS[kind]())


def data(distribution, n=20):
    """Features, and the library's own draws at each of them."""
    x = torch.randn(n, FEATURES)
    with torch.no_grad():
        return x, distribution.condition(x).sample((n,))


@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_library_s_and_the_promises_are_kept(kind):
    distribution = distribution_of(kind)
    x, y = data(distribution)
    flow = from_pyro(distribution, x[:1])
    lc.testing.check_flow_contract(flow, x, y, log_prob=distribution.condition(x).log_prob(y))


@pytest.mark.parametrize("kind", KINDS)
def test_extra_sample_dims_go_with_a_batch_of_x(kind):
    distribution = distribution_of(kind)
    x, y = data(distribution, 5)
    y = torch.stack([y, y + 0.1, y - 0.2, y])
    pred = from_pyro(distribution, x)(x)
    with torch.no_grad():
        expected = torch.stack([distribution.condition(x).log_prob(each) for each in y])
        torch.testing.assert_close(pred.log_prob(y), expected, rtol=1e-5, atol=1e-5)
    assert pred.sample((6,)).shape == (6, 5, DIM)
    assert pred.sample().shape == (5, DIM)


def test_element_wise_determinants_are_summed_over_the_outputs():
    distribution = distribution_of("element-wise spline")
    x, y = data(distribution)
    with torch.no_grad():
        z, log_abs_det = from_pyro(distribution, x).encode(y, x)
        (transform,) = distribution.condition(x).transforms
        u = transform.inv(y.clone())
        naive = -transform.log_abs_det_jacobian(u, y)
    assert naive.shape == y.shape  # what an unreduced recipe would have: one number a coordinate
    torch.testing.assert_close(log_abs_det, naive.sum(-1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z, u)


class AroundX(dist.ConditionalDistribution):
    """A base law that moves with x."""

    def condition(self, context):
        return dist.Normal(10 * context[..., :DIM], 0.1 + context[..., 1:] ** 2).to_event(1)


def test_a_base_that_depends_on_x_is_read_at_each_call():
    distribution = distribution_of("affine coupling", AroundX())
    x = torch.randn(20, FEATURES)
    with torch.no_grad():
        y = distribution.condition(x).sample()
        flow = from_pyro(distribution, x[:1])
        expected = distribution.condition(x).log_prob(y)
    lc.testing.check_flow_contract(flow, x, y, log_prob=expected)


def test_a_multivariate_t_base_is_standardised():
    tril = torch.tensor([[2.0, 0.0], [0.5, 0.3]])
    distribution = distribution_of("affine coupling", dist.MultivariateStudentT(5.0, torch.ones(DIM), tril))
    x, y = data(distribution)
    flow = from_pyro(distribution, x)
    lc.testing.check_flow_contract(flow, x, y, log_prob=distribution.condition(x).log_prob(y))


def without_features():
    chain = [transforms.spline_autoregressive(DIM, [8], 4), transforms.affine_coupling(DIM, [8])]
    return dist.TransformedDistribution(standard(), [moved(transform) for transform in chain])


def test_a_distribution_without_features_does_not_look_at_x_and_one_with_them_wants_it():
    distribution = without_features()
    y = distribution.sample((20,))
    flow = from_pyro(distribution)
    with torch.no_grad():
        torch.testing.assert_close(flow().log_prob(y), distribution.log_prob(y), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(flow(torch.randn(20, 7)).log_prob(y), flow().log_prob(y))
    assert flow().sample((4,)).shape == (4, DIM)
    assert len(list(flow.parameters())) > 0
    lc.testing.check_flow_contract(flow, None, y)
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        from_pyro(distribution_of(), torch.zeros(1, FEATURES))().log_prob(y)


def test_gradients_reach_the_model():
    distribution = distribution_of()
    x, y = data(distribution)
    flow = from_pyro(distribution, x)
    parameters = list(flow.parameters())
    assert len(parameters) == sum(
        len(list(t.parameters())) for t in distribution.transforms if isinstance(t, nn.Module)
    )
    ours, theirs = (
        torch.autograd.grad(d.log_prob(y).mean(), parameters) for d in (flow(x), distribution.condition(x))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_double_model_is_evaluated_in_double():
    chain = [with_features("spline_autoregressive", count_bins=4).double()]
    distribution = dist.ConditionalTransformedDistribution(standard(torch.float64), chain)
    x = torch.randn(20, FEATURES).double()
    y = distribution.condition(x).sample((20,))
    flow = from_pyro(distribution, x)
    assert flow(x).sample((3,)).dtype == torch.float64
    with torch.no_grad():
        expected = distribution.condition(x).log_prob(y)
        torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-10, atol=1e-10)
    lc.testing.check_flow_contract(flow, x, y)


class WrongInverse(transforms.AffineAutoregressive):
    def _inverse(self, y):
        return super()._inverse(y) + 1


def test_a_cache_does_not_hide_a_wrong_inverse():
    transform = WrongInverse(transforms.affine_autoregressive(DIM, [8]).arn)
    z = torch.randn(10, DIM)
    assert transform.inv(transform(z)) is z  # control: a round trip without an error, whatever the inverse
    flow = from_pyro(dist.TransformedDistribution(standard(), [transform]))
    with torch.no_grad():
        assert float((flow.latent(flow.decode(z)) - z).abs().max()) > 0.5
    assert not lc.check_flow(flow, None, torch.randn(10, DIM)).passed


def test_a_cache_does_not_return_what_old_parameters_gave():
    distribution = without_features()
    flow, y = from_pyro(distribution), torch.randn(10, DIM)
    with torch.no_grad():
        ours, before = flow().log_prob(y), distribution.log_prob(y)
        for transform in distribution.transforms:
            moved(transform)
        torch.testing.assert_close(distribution.log_prob(y), before)  # control: the library's is what it was
        assert float((flow().log_prob(y) - ours).abs().max()) > 0.1
        distribution.clear_cache()
        torch.testing.assert_close(flow().log_prob(y), distribution.log_prob(y), rtol=1e-5, atol=1e-5)


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    distribution = distribution_of("affine autoregressive")
    network = distribution.transforms[0].nn
    network.f = nn.Sequential(nn.ReLU(), nn.Dropout(0.5))
    network.f[0].eval()  # a module with a mode of its own
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    with torch.no_grad():
        values = [distribution.condition(x).log_prob(y) for _ in range(2)]
        assert float((values[0] - values[1]).abs().max()) > 0.1  # control: they are random
        flow = from_pyro(distribution, x)
        z, _ = flow.encode(y, x)
        assert same.repeated(flow.encode(y, x)[0], z)
        torch.testing.assert_close(flow.decode(z, x), y, rtol=1e-4, atol=1e-4)
        assert [network.training, network.f[1].training, network.f[0].training] == [True, True, False]
        network.eval()
        expected = distribution.condition(x).log_prob(y)
        torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-5, atol=1e-5)


def test_batch_statistics_stay_as_they_are():
    normalised = transforms.batchnorm(DIM)
    distribution = dist.TransformedDistribution(standard(), [normalised])
    y = 5 + 3 * torch.randn(50, DIM)
    for _ in range(3):
        distribution.log_prob(y)
        distribution.clear_cache()
    statistics = [normalised.moving_mean.clone(), normalised.moving_variance.clone()]
    flow = from_pyro(distribution)
    with torch.no_grad():
        torch.testing.assert_close(flow().log_prob(y[:5]), flow().log_prob(y)[:5])  # no neighbour matters
    assert same.copied(normalised.moving_mean, statistics[0])
    assert same.copied(normalised.moving_variance, statistics[1])
    assert normalised.training


@pytest.mark.parametrize("conditional", [False, True])
def test_a_transform_that_goes_one_way_says_so(conditional):
    pytest.importorskip("zuko")  # it gives torch's inverses another name
    x, y = torch.randn(5, FEATURES), torch.randn(5, DIM)
    transform = with_features("planar") if conditional else transforms.planar(DIM)
    law = dist.ConditionalTransformedDistribution if conditional else dist.TransformedDistribution
    generating = from_pyro(law(standard(), [transform]), x if conditional else None)
    assert generating(x).sample((3,)).shape == (3, 5, DIM)
    with pytest.raises(NotImplementedError, match="Planar implements only one"):
        generating(x).log_prob(y)
    measuring = from_pyro(law(standard(), [transform.inv]), x if conditional else None)
    assert measuring(x).log_prob(y).shape == (5,)
    with pytest.raises(NotImplementedError, match="Planar implements only one"):
        measuring(x).sample((3,))


class OnlyBackward(torch.distributions.Transform):
    domain = codomain = torch.distributions.constraints.real
    bijective = True

    def _inverse(self, y):
        return y / 2

    def log_abs_det_jacobian(self, x, y):
        return torch.full_like(x, 0.6931)


def test_the_transform_that_goes_one_way_is_named_after_its_inverse_was_used_too():
    flow = from_pyro(dist.TransformedDistribution(standard(), [OnlyBackward()]))
    assert flow().log_prob(torch.ones(3, DIM)).shape == (3,)
    with pytest.raises(NotImplementedError, match="OnlyBackward implements only one"):
        flow().sample((2,))


WRONG = {
    "a network": (lambda: nn.Linear(2, 2), None, TypeError, "distribution of pyro, got Linear"),
    "one of ours": (lambda: lc.flows.AutoregressiveFlow(2, 1), None, TypeError, "needs no adapter"),
    "no x": (distribution_of, None, TypeError, r"is conditional.*from_pyro\(distribution, x\)"),
    "a transform": (
        lambda: with_features("affine_coupling"),
        torch.zeros(1, FEATURES),
        TypeError,
        "ConditionalAffineCoupling is a transform, which has no base law",
    ),
    "outputs in the batch": (
        lambda: distribution_of("element-wise spline", dist.Normal(torch.zeros(DIM), torch.ones(DIM))),
        torch.zeros(1, FEATURES),
        ValueError,
        r"Independent\(distribution, 1\)",
    ),
    "a mixture as base": (
        lambda: distribution_of("affine coupling", mixture()),
        torch.zeros(1, FEATURES),
        ValueError,
        "MixtureSameFamily has no latent norm.*recalibrate_prerank",
    ),
}


def mixture():
    parts = dist.Normal(torch.randn(3, DIM), torch.ones(3, DIM)).to_event(1)
    return dist.MixtureSameFamily(dist.Categorical(logits=torch.zeros(3)), parts)


@pytest.mark.parametrize(("make", "x", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_flow_on_a_radial_base_is_refused_with_a_reason(make, x, error, words):
    with pytest.raises(error, match=words):
        from_pyro(make(), x)


def test_data_that_do_not_fit_are_refused():
    x = torch.randn(4, FEATURES)
    flow = from_pyro(distribution_of(), x)
    with pytest.raises(ValueError, match="y has 3 outputs"):
        flow(x).log_prob(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="y has NaN or infinite values"):
        flow(x).log_prob(torch.full((4, DIM), torch.nan))
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        flow(x * torch.nan)
