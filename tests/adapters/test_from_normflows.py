import math
from functools import partial

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_normflows
from toys import moved_by
from uniformity import distance_to_uniform, uniform_limit

nf = pytest.importorskip("normflows")

moved = partial(moved_by, size=0.2)
DIM, FEATURES = 2, 3


def splines(features=FEATURES, mixing=True, **options):
    options = {"num_bins": 4, "num_context_channels": features or None, **options}
    layers = []
    for _ in range(2):
        layers.append(nf.flows.AutoregressiveRationalQuadraticSpline(DIM, 1, 8, **options))
        layers += [nf.flows.LULinearPermute(DIM)] if mixing else []
    return layers


def learned():
    base = nf.distributions.DiagGaussian(DIM)
    with torch.no_grad():
        base.loc.copy_(torch.tensor([[1.0, -2.0]]))
        base.log_scale.copy_(torch.tensor([[-0.7, 1.1]]))
    return base


def tempered():
    base = learned()
    base.temperature = 0.4
    return base


def by_features():
    return moved(nf.distributions.base.ConditionalDiagGaussian(DIM, nn.Linear(FEATURES, 2 * DIM)))


BASES = {
    "learned": learned,
    "tempered": tempered,
    "by features": by_features,
    "fixed": lambda: nf.distributions.DiagGaussian(DIM, trainable=False),
}


def network_of(base="learned", **options):
    return nf.ConditionalNormalizingFlow(BASES[base](), [moved(layer) for layer in splines(**options)])


@pytest.mark.parametrize("base", BASES)
def test_the_density_is_the_library_s_and_the_promises_are_kept(base):
    network = network_of(base)
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    flow = from_normflows(network, x[:1])
    lc.testing.check_flow_contract(flow, x, y, log_prob=network.log_prob(y, context=x))


@pytest.mark.parametrize("base", ["learned", "by features"])
def test_extra_sample_dims_go_with_a_batch_of_x(base):
    network = network_of(base)
    x, y = torch.randn(5, FEATURES), torch.randn(4, 5, DIM)
    pred = from_normflows(network, x)(x)
    with torch.no_grad():
        expected = torch.stack([network.log_prob(each, context=x) for each in y])
        torch.testing.assert_close(pred.log_prob(y), expected, rtol=1e-5, atol=1e-5)
    assert pred.sample((6,)).shape == (6, 5, DIM)
    assert pred.sample().shape == (5, DIM)


def test_a_flow_without_features_does_not_look_at_x_and_one_with_them_wants_it():
    network = nf.NormalizingFlow(learned(), [moved(layer) for layer in splines(features=0)])
    flow, y = from_normflows(network), torch.randn(20, DIM)
    lc.testing.check_flow_contract(flow, None, y, log_prob=network.log_prob(y))
    torch.testing.assert_close(flow(torch.randn(20, 7)).log_prob(y), flow().log_prob(y))
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        from_normflows(network_of())().log_prob(y)


class ToUnitCube(nn.Module):
    """From the box [-1, 3]^d of the base to the box [-1, 1]^d of the splines."""

    def forward(self, z, context=None):
        return (z - 1) / 2, z.new_full((len(z),), -DIM * math.log(2))

    def inverse(self, z, context=None):
        return 2 * z + 1, z.new_full((len(z),), DIM * math.log(2))


@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning")  # normflows' own
def test_a_uniform_base_is_a_cube():
    base = nf.distributions.base.Uniform(DIM, -1.0, 3.0)
    layers = [moved(layer) for layer in splines(mixing=False, tail_bound=1.0)]
    network = nf.ConditionalNormalizingFlow(base, [ToUnitCube(), *layers])
    x, y = torch.randn(20, FEATURES), 2 * torch.rand(20, DIM) - 1
    flow = from_normflows(network)
    with torch.no_grad():
        assert torch.isneginf(network.log_prob(y + 3, context=x)).all()
        assert torch.isneginf(flow(x).log_prob(y + 3)).all()
    assert isinstance(flow.base.norm, lc.norms.MaxNorm)
    lc.testing.check_flow_contract(flow, x, y, log_prob=network.log_prob(y, context=x))


def test_gradients_reach_the_model_and_its_learned_base():
    network = network_of()
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    parameters = list(network.parameters())
    ours, theirs = (
        torch.autograd.grad(log_density.mean(), parameters)
        for log_density in (from_normflows(network)(x).log_prob(y), network.log_prob(y, context=x))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert float(ours[[id(p) for p in parameters].index(id(network.q0.loc))].abs().max()) > 1e-3


def test_the_determinant_of_a_double_model_is_summed_in_double_which_the_library_does_not():
    network = network_of().double()
    x, y = torch.randn(20, FEATURES).double(), torch.randn(20, DIM).double()
    flow = from_normflows(network)
    with torch.no_grad():
        _, naive = network.inverse_and_log_det(y, context=x)
        _, log_abs_det = flow.encode(y, x)
        of_base = network.q0.log_scale.sum()
        expected = network.log_prob(y, context=x)  # of which the library sums the parts in double
    torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-10, atol=1e-10)
    assert naive.dtype == torch.float32
    error = float((naive.double() - of_base - log_abs_det).abs().max())
    assert 1e-8 < error < 1e-5  # the library's, not ours: ours agrees with autograd to 1e-10
    assert flow(x).sample((3,)).dtype == torch.float64
    lc.testing.check_flow_contract(flow, x, y, tolerance=1e-10)


@pytest.mark.parametrize("base", ["learned", "tempered", "by features"])
def test_a_base_that_is_not_standard_is_standardised(base):
    network = network_of(base)
    n, x = 2000, torch.randn(2000, FEATURES)
    with torch.no_grad():
        y, _ = network.sample(n, context=x)  # one draw a row
        right = from_normflows(network, x).latent(y, x)
        naive = network.inverse(y, context=x)
    limit = uniform_limit(n)  # a true base law fails with probability 1e-6
    right, wrong = (distance_to_uniform(lc.radius.Chi(DIM).cdf(z.norm(dim=-1))) for z in (right, naive))
    assert right < limit < wrong


def test_the_base_is_read_at_each_call():
    network = network_of()
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    flow = from_normflows(network)
    moved(network.q0, size=1.0)
    network.q0.temperature = 0.7
    with torch.no_grad():
        torch.testing.assert_close(flow(x).log_prob(y), network.log_prob(y, context=x), rtol=1e-5, atol=1e-5)


def test_layers_lead_from_latent_to_data():
    layer = nf.flows.AffineConstFlow(1)
    with torch.no_grad():
        layer.t.fill_(5.0)
        layer.s.fill_(math.log(2.0))
    flow = from_normflows(nf.NormalizingFlow(nf.distributions.DiagGaussian(1), [layer]))
    torch.testing.assert_close(flow.decode(torch.ones(1, 1)), torch.full((1, 1), 7.0))
    torch.testing.assert_close(flow.latent(torch.full((1, 1), 7.0)), torch.ones(1, 1))


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    network = network_of(dropout_probability=0.5).train()
    network.flows[1].eval()  # a module with a mode of its own
    modes = [module.training for module in network.modules()]
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    with torch.no_grad():
        latents = [network.inverse(y, context=x) for _ in range(2)]
        assert float((latents[0] - latents[1]).abs().max()) > 0.1  # control: they are random
        flow = from_normflows(network)
        z, _ = flow.encode(y, x)
        assert same.repeated(flow.encode(y, x)[0], z)
        torch.testing.assert_close(flow.decode(z, x), y, rtol=1e-4, atol=1e-4)
        assert modes == [module.training for module in network.modules()]
        expected = network.eval().log_prob(y, context=x)
        torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-5, atol=1e-5)


WRONG = {
    "a network": (lambda: nn.Linear(2, 2), TypeError, "normflows NormalizingFlow or .* got Linear"),
    "a layer": (lambda: splines()[0], TypeError, "got AutoregressiveRationalQuadraticSpline"),
    "classes": (
        lambda: nf.ClassCondFlow(nf.distributions.ClassCondDiagGaussian(DIM, 3), splines(features=0)),
        TypeError,
        "got ClassCondFlow",
    ),
    "one of ours": (lambda: lc.flows.AutoregressiveFlow(2, 1), TypeError, "needs no adapter"),
    "a mixture as base": (
        lambda: nf.NormalizingFlow(nf.distributions.GaussianMixture(3, DIM), splines(features=0)),
        ValueError,
        "GaussianMixture has no latent norm.*recalibrate_prerank",
    ),
    "part uniform, part normal": (
        lambda: nf.NormalizingFlow(nf.distributions.UniformGaussian(DIM, [0]), splines(features=0)),
        ValueError,
        "UniformGaussian has no latent norm",
    ),
    "images": (
        lambda: nf.NormalizingFlow(nf.distributions.DiagGaussian((2, 3)), []),
        ValueError,
        r"shape \(2, 3\), not \(d,\)",
    ),
    "a base that depends on x, without x": (
        lambda: network_of("by features"),
        TypeError,
        r"ConditionalDiagGaussian depends on x.*from_normflows\(flow, x\)",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_flow_on_a_radial_base_is_refused_with_a_reason(make, error, words):
    with pytest.raises(error, match=words):
        from_normflows(make())


def test_a_layer_without_an_inverse_says_so():
    network = nf.NormalizingFlow(learned(), [nf.flows.Planar((DIM,))])
    with pytest.raises(NotImplementedError, match="no algebraic inverse"):
        from_normflows(network)().log_prob(torch.zeros(4, DIM))


def test_data_that_do_not_fit_are_refused():
    flow = from_normflows(network_of())
    x = torch.randn(4, FEATURES)
    with pytest.raises(ValueError, match="y has 3 outputs"):
        flow(x).log_prob(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="y has NaN or infinite values"):
        flow(x).log_prob(torch.full((4, DIM), torch.inf))
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        flow(x * torch.nan)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            lambda: nf.flows.CircularAutoregressiveRationalQuadraticSpline(DIM, 1, 8, [0]),
            "is defined on a circle",
        ),
        (lambda: nf.flows.HamiltonianMonteCarlo(None, 1, torch.zeros(DIM), torch.zeros(DIM)), "is random"),
    ],
    ids=["circle", "random"],
)
def test_layers_without_a_latent_norm_are_refused(layer, words):
    network = nf.NormalizingFlow(nf.distributions.DiagGaussian(DIM), [layer()])
    with pytest.raises(ValueError, match=rf"{words}.*recalibrate_prerank"):
        from_normflows(network)
