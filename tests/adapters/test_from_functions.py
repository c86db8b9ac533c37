import pytest
import torch
from torch import distributions as td
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_functions
from latentcal.adapters.frame import networks_in

SCALE = torch.tensor([2.0, 0.5])


def truth(x):
    return td.Independent(td.LogNormal(x[..., :2], SCALE.to(x)), 1)


def encode(y, x):
    assert y.dim() == x.dim() == 2  # a function of rows sees rows
    return (y.log() - x[:, :2]) / SCALE.to(y), -(y.log() + SCALE.to(y).log()).sum(-1)


def decode(z, x):
    return (x[:, :2] + SCALE.to(z) * z).exp()


def log_prob(y, x):
    return truth(x).log_prob(y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by_density", [False, True])
def test_the_maps_make_the_density(by_density, dtype):
    x = torch.randn(20, 3, dtype=dtype)
    y = truth(x).sample((4,))
    if by_density:
        flow = from_functions(lambda y, x: encode(y, x)[0], decode, 2, log_prob=log_prob)
    else:
        flow = from_functions(encode, decode, 2)
    torch.testing.assert_close(flow(x).log_prob(y), truth(x).log_prob(y), rtol=1e-5, atol=1e-5)
    lc.testing.check_flow_contract(flow, x, y[0], tolerance=1e-3)


def test_a_density_and_a_determinant_are_recalibrated_alike():
    x = torch.randn(400, 3)
    y = truth(x).sample() ** 1.5
    flows = (
        from_functions(encode, decode, 2),
        from_functions(lambda y, x: encode(y, x)[0], decode, 2, log_prob=log_prob),
    )
    first, second = (lc.recalibrate(flow, x, y)(x).log_prob(y) for flow in flows)
    assert float((first - flows[0](x).log_prob(y)).abs().max()) > 0.1  # control: it changed
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_another_base_is_standardised():
    loc, scale = torch.tensor([1.0, -1.0]), torch.tensor([3.0, 0.2])
    base = td.Independent(td.Laplace(loc, scale), 1)
    flow = from_functions(lambda y: (y.log(), -y.log().sum(-1)), torch.exp, 2, base=base)
    truth = td.TransformedDistribution(base, [td.ExpTransform()])
    y = truth.sample((30,))
    torch.testing.assert_close(flow().log_prob(y), truth.log_prob(y), rtol=1e-5, atol=1e-5)
    assert isinstance(flow.base.norm, lc.norms.L1)
    standard = from_functions(lambda y: (y, y.new_zeros(len(y))), lambda z: z, 2, base=lc.base.laplace(2))
    torch.testing.assert_close(standard().log_prob(y), lc.base.laplace(2).log_prob(y))
    lc.testing.check_flow_contract(flow, None, y)
    assert flow.double()().sample((2,)).dtype == torch.float64


def test_points_outside_the_support_have_density_zero():
    law = td.Uniform(torch.zeros(2), torch.ones(2), validate_args=False)
    box = td.Independent(law, 1, validate_args=False)
    flow = from_functions(lambda y: y, lambda z: z, 2, base=box, log_prob=box.log_prob)
    y = torch.tensor([[0.3, 0.4], [2.0, 0.5]])
    torch.testing.assert_close(flow().log_prob(y), torch.tensor([0.0, -torch.inf]))


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    network = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)).train()
    flow = from_functions(lambda y, x: (y - network(x), y.new_zeros(len(y))), lambda z, x: z + network(x), 2)
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    assert same.different(network(x), network(x))  # control: it is random
    assert same.repeated(flow.latent(y, x), flow.latent(y, x))
    assert all(module.training for module in network.modules())
    assert flow.double()(x).sample().dtype == torch.float64


GLOBAL = nn.Linear(1, 1)
bias = nn.Linear(2, 2)


def names_a_global(x):
    return GLOBAL(x)


def calls_one_that_does(x):
    return names_a_global(x)


def reads_an_attribute(x):
    return GLOBAL(x) + x.bias  # the attribute is not the global of that name


class Model:
    """No module itself."""

    def __init__(self):
        self.network = GLOBAL

    def encode(self, y):
        return self.network(y)


def test_networks_are_found_where_a_function_names_them():
    assert networks_in(calls_one_that_does) == [GLOBAL]
    assert networks_in(lambda x, net=GLOBAL: net(x)) == [GLOBAL]
    assert networks_in([GLOBAL.forward, {"again": GLOBAL}]) == [GLOBAL]
    assert networks_in(Model().encode) == [GLOBAL]
    assert networks_in(torch.exp) == []


def test_networks_that_are_named_are_the_only_ones():
    assert GLOBAL in networks_in(reads_an_attribute)  # and, before some Python version, bias as well
    flow = from_functions(reads_an_attribute, lambda z: z, 1, networks=GLOBAL)
    assert list(flow.networks) == [GLOBAL]


def test_functions_that_return_something_else_are_refused():
    y = torch.zeros(4, 2)
    for options, words in (
        ({"encode": lambda y: y}, r"encode must return \(z, log_abs_det\), got Tensor.*log_prob="),
        ({"encode": lambda y: (y[:, :1], y[:, 0])}, r"the latent must be a tensor of shape \(4, 2\)"),
        ({"encode": lambda y: (y, y)}, r"log_abs_det must be a tensor of shape \(4,\), got \(4, 2\)"),
        ({"encode": lambda y: y, "log_prob": lambda y: 0.0}, r"log_prob must be .* got float"),
    ):
        flow = from_functions(decode=lambda z: z, dim=2, **options)
        with pytest.raises((TypeError, ValueError), match=words):
            flow.encode(y)
    with pytest.raises(TypeError, match="decode must be a function, got NoneType"):
        from_functions(lambda y: y, None, 2)


def test_networks_are_found_although_a_variable_of_the_function_is_not_there_yet():
    network = nn.Linear(1, 1)

    def encode(y):
        return network(y) + later

    found = networks_in(encode)
    later = 1.0
    assert found == [network]
    assert encode(torch.zeros(1, 1)).shape == (1, 1)
