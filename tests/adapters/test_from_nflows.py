from functools import partial

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_nflows
from toys import moved_by
from uniformity import distance_to_uniform, uniform_limit

pytest.importorskip("nflows")
from nflows import distributions, flows, transforms
from nflows import nn as networks

moved = partial(moved_by, size=0.3)
DIM, FEATURES, CONTEXT = 2, 3, 4


def autoregressive(context=CONTEXT, **options):
    layers = []
    for _ in range(2):
        layers += [
            transforms.ReversePermutation(DIM),
            transforms.MaskedAffineAutoregressiveTransform(DIM, 8, context_features=context, **options),
        ]
    return transforms.CompositeTransform(layers)


def coupling_spline(context=CONTEXT, **options):
    def conditioner(inputs, outputs):
        return networks.nets.ResidualNet(inputs, outputs, 8, context_features=context, **options)

    return transforms.CompositeTransform(
        [
            transforms.PiecewiseRationalQuadraticCouplingTransform(
                mask, conditioner, num_bins=4, tails="linear", tail_bound=3.0
            )
            for mask in (torch.tensor([1, 0]), torch.tensor([0, 1]))
        ]
    )


def embedding():
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, CONTEXT))


TRANSFORMS = {"autoregressive": autoregressive, "coupling spline": coupling_spline}
BASES = {
    "standard": lambda: distributions.StandardNormal([DIM]),
    "diagonal": lambda: distributions.DiagonalNormal([DIM]),
    "conditional": lambda: distributions.ConditionalDiagonalNormal([DIM], nn.Linear(CONTEXT, 2 * DIM)),
}


def network_of(transform="autoregressive", base="standard", **options):
    return moved(flows.Flow(TRANSFORMS[transform](**options), BASES[base](), embedding()))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_the_density_is_the_library_s_and_the_promises_are_kept(transform, base):
    network = network_of(transform, base)
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    flow = from_nflows(network, x[:1])
    lc.testing.check_flow_contract(flow, x, y, log_prob=network.log_prob(y, context=x))


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_extra_sample_dims_go_with_a_batch_of_x(transform):
    network = network_of(transform, "conditional")
    x, y = torch.randn(5, FEATURES), torch.randn(4, 5, DIM)
    pred = from_nflows(network, x)(x)
    with torch.no_grad():
        expected = torch.stack([network.log_prob(each, context=x) for each in y])
        torch.testing.assert_close(pred.log_prob(y), expected, rtol=1e-5, atol=1e-5)
    assert pred.sample((6,)).shape == (6, 5, DIM)
    assert pred.sample().shape == (5, DIM)


def test_an_embedding_sees_rows_whatever_the_leading_dims_of_x_are():
    normalised = nn.Sequential(nn.Linear(FEATURES, CONTEXT), nn.BatchNorm1d(CONTEXT))
    for _ in range(20):  # running statistics that differ from one feature to the next
        normalised(torch.randn(64, FEATURES) * torch.tensor([1.0, 5.0, 0.2]) + 2)
    network = flows.Flow(autoregressive(), BASES["standard"](), moved(normalised)).eval()
    x, y = torch.randn(6, CONTEXT, FEATURES), torch.randn(6, CONTEXT, DIM)
    with torch.no_grad():
        expected = network.log_prob(y.flatten(0, 1), context=x.flatten(0, 1)).reshape(6, CONTEXT)
        # Control: as many rows as contexts, and batch norm takes the rows for its channels.
        wrong = network._transform(y.flatten(0, 1), context=network._embedding_net(x).flatten(0, 1))[0]
        flow = from_nflows(network)
        torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-5, atol=1e-5)
        assert float((flow.latent(y, x).flatten(0, 1) - wrong).abs().max()) > 0.1
        torch.testing.assert_close(flow(x[0, 0]).log_prob(y[0, 0]), expected[0, 0], rtol=1e-5, atol=1e-5)
        assert flow(x[0, :0]).log_prob(y[0, :0]).shape == (0,)


def test_the_transforms_see_the_embedding_and_not_x():
    same_size = nn.Sequential(nn.Linear(CONTEXT, CONTEXT), nn.Tanh())
    network = moved(flows.Flow(autoregressive(), BASES["standard"](), same_size))
    x, y = torch.randn(20, CONTEXT), torch.randn(20, DIM)
    with torch.no_grad():
        z = from_nflows(network).latent(y, x)
        torch.testing.assert_close(z, network.transform_to_noise(y, context=x), rtol=1e-5, atol=1e-5)
        naive, _ = network._transform(y, context=x)
    assert float((z - naive).abs().max()) > 0.5


def test_gradients_reach_the_model():
    network = network_of("coupling spline", "conditional")
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    flow, parameters = from_nflows(network, x), list(network.parameters())
    ours, theirs = (
        torch.autograd.grad(log_density.mean(), parameters)
        for log_density in (flow(x).log_prob(y), network.log_prob(y, context=x))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert {id(p) for p in flow.parameters()} == {id(p) for p in parameters}


@pytest.mark.parametrize("base", BASES)
def test_a_double_model_is_evaluated_and_sampled_in_double_which_the_library_cannot(base):
    network = network_of(base=base).double()
    x, y = torch.randn(20, FEATURES).double(), torch.randn(20, DIM).double()
    if base == "standard":
        with pytest.raises(RuntimeError, match="dtype"):  # control: its noise is float32
            network.sample(3, context=x)
    flow = from_nflows(network, x)
    assert flow(x).sample((3,)).dtype == torch.float64
    with torch.no_grad():
        torch.testing.assert_close(
            flow(x).log_prob(y), network.log_prob(y, context=x), rtol=1e-10, atol=1e-10
        )
    lc.testing.check_flow_contract(flow, x, y)


def test_samples_lie_next_to_their_own_x():
    # y = x + z: a conditional base around x, and a transform that changes nothing.
    base = distributions.ConditionalDiagonalNormal([DIM], lambda x: torch.cat([x, torch.zeros_like(x)], -1))
    network = flows.Flow(transforms.IdentityTransform(), base)
    x = torch.tensor([[-100.0, -100.0], [100.0, 100.0]])
    naive = network.sample(50, context=x).reshape(50, 2, DIM)  # as if samples came first
    ours = from_nflows(network, x)(x).sample((50,))
    assert float((naive - x).abs().max()) > 100
    assert float((ours - x).abs().max()) < 10  # ten standard deviations


@pytest.mark.parametrize("base", ["diagonal", "conditional"])
def test_a_base_that_is_not_standard_is_standardised(base):
    network = network_of(base=base)
    n, x = 2000, torch.randn(2000, FEATURES)
    with torch.no_grad():
        context = network._embedding_net(x)
        law = network._distribution
        if base == "diagonal":
            law.mean_.copy_(torch.tensor([[1.0, -2.0]]))
            law.log_std_.copy_(torch.tensor([[-0.7, 1.1]]))
            mean, log_std = law.mean_, law.log_std_
        else:
            law._context_encoder.bias.add_(torch.tensor([1.0, -2.0, -0.7, 1.1]))
            mean, log_std = law._compute_params(context)
        u = mean + torch.exp(log_std) * torch.randn(n, DIM)
        y, _ = network._transform.inverse(u, context=context)
        right = from_nflows(network, x).latent(y, x)
        naive, _ = network._transform(y, context=context)
    limit = uniform_limit(n)  # a true base law fails with probability 1e-6
    right, wrong = (distance_to_uniform(lc.radius.Chi(DIM).cdf(z.norm(dim=-1))) for z in (right, naive))
    assert right < limit < wrong


def test_the_base_is_read_at_each_call():
    network = network_of(base="diagonal")
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    flow = from_nflows(network)
    moved(network._distribution, size=1.0)
    with torch.no_grad():
        torch.testing.assert_close(flow(x).log_prob(y), network.log_prob(y, context=x), rtol=1e-5, atol=1e-5)


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    network = network_of(dropout_probability=0.5, use_batch_norm=True).train()
    network._embedding_net.append(nn.Dropout(0.5))
    network._embedding_net[1].eval()  # a module with a mode of its own
    modes = [module.training for module in network.modules()]
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    with torch.no_grad():
        latents = [network.transform_to_noise(y, context=x) for _ in range(2)]
        assert float((latents[0] - latents[1]).abs().max()) > 0.1  # control: they are random
        flow = from_nflows(network)
        statistics = {name: value.clone() for name, value in network.named_buffers()}
        z, _ = flow.encode(y, x)
        assert same.repeated(flow.encode(y, x)[0], z)
        torch.testing.assert_close(flow.decode(z, x), y, rtol=1e-4, atol=1e-4)
        assert modes == [module.training for module in network.modules()]
        assert all(same.copied(value, statistics[name]) for name, value in network.named_buffers())
        expected = network.eval().log_prob(y, context=x)
        torch.testing.assert_close(flow(x).log_prob(y), expected, rtol=1e-5, atol=1e-5)


def test_a_flow_without_context_does_not_look_at_x():
    for network in (
        flows.MaskedAutoregressiveFlow(DIM, 8, 2, 1, batch_norm_between_layers=True),
        flows.SimpleRealNVP(DIM, 8, 2, 1),
    ):
        moved(network, size=0.1)
        for _ in range(30):  # statistics for batch norm
            network.log_prob(torch.randn(64, DIM))
        network.eval()
        y = torch.randn(20, DIM)
        flow = from_nflows(network)
        lc.testing.check_flow_contract(flow, None, y, log_prob=network.log_prob(y))
        torch.testing.assert_close(flow(torch.randn(20, 7)).log_prob(y), flow().log_prob(y))


@pytest.mark.parametrize("base", ["standard", "conditional"])
@pytest.mark.parametrize("embed", [True, False])
def test_a_conditional_flow_wants_x_although_the_library_answers_without(embed, base):
    network = flows.Flow(autoregressive(), BASES[base](), embedding() if embed else None)
    y = torch.randn(4, DIM)
    if not embed and base == "standard":
        assert torch.isfinite(network.log_prob(y)).all()  # control: no context, and not a word about it
    flow = from_nflows(network, torch.zeros(1, FEATURES if embed else CONTEXT))
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        flow().log_prob(y)
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        flow().sample((2,))


class OwnConditioner(nn.Module):
    """A network of the user's own, of which nothing says that it looks at a context; it may be left out."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.layer = nn.Linear(inputs + FEATURES, outputs)

    def forward(self, y, context=None):
        context = torch.zeros(len(y), FEATURES) if context is None else context
        return self.layer(torch.cat([y, context], -1))


def test_it_can_be_said_that_a_flow_of_one_s_own_networks_is_conditional():
    transform = transforms.AffineCouplingTransform(torch.tensor([1, 0]), OwnConditioner)
    network = flows.Flow(transform, BASES["standard"]())
    x, y = torch.randn(20, FEATURES), torch.randn(20, DIM)
    with torch.no_grad():
        expected = network.log_prob(y, context=x)
        torch.testing.assert_close(from_nflows(network, conditional=True)(x).log_prob(y), expected)
        assert float((from_nflows(network)(x).log_prob(y) - expected).abs().max()) > 0.01  # control


WRONG = {
    "a network": (lambda: nn.Linear(2, 2), TypeError, "nflows flow such as .* got Linear"),
    "a transform": (autoregressive, TypeError, "nflows flow such as .* got CompositeTransform"),
    "one of ours": (lambda: lc.flows.AutoregressiveFlow(2, 1), TypeError, "needs no adapter"),
    "a mixture as base": (
        lambda: flows.Flow(
            autoregressive(), distributions.MADEMoG(DIM, 8, CONTEXT, num_mixture_components=2)
        ),
        ValueError,
        "MADEMoG has no latent norm.*recalibrate_prerank",
    ),
    "images": (
        lambda: flows.Flow(transforms.IdentityTransform(), distributions.StandardNormal([2, 3])),
        ValueError,
        r"shape \(2, 3\), not \(d,\)",
    ),
    "a base that depends on x, without x": (
        lambda: network_of(base="conditional"),
        TypeError,
        r"ConditionalDiagonalNormal depends on x.*from_nflows\(flow, x\)",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_flow_on_a_radial_base_is_refused_with_a_reason(make, error, words):
    with pytest.raises(error, match=words):
        from_nflows(make())


def test_data_that_do_not_fit_are_refused():
    flow = from_nflows(network_of())
    x, y = torch.randn(4, FEATURES), torch.randn(4, DIM)
    with pytest.raises(ValueError, match="y has 3 outputs"):
        flow(x).log_prob(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="y has NaN or infinite values"):
        flow(x).log_prob(y / 0)
    with pytest.raises(ValueError, match="x has NaN or infinite values"):
        flow(x * torch.nan)
