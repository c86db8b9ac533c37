import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from latentcal.base import student_t
from latentcal.flows import LinearGaussianFlow, Standardized
from latentcal.radius.reference import Chi
from toys import scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit


def _linear(dtype=torch.float64):
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.3, 2.0]], dtype=dtype)
    scale = torch.tensor([[0.5, 0.0], [0.7, 3.0]], dtype=dtype)
    return LinearGaussianFlow(weight, torch.tensor([3.0, -1.0], dtype=dtype), scale)


def _truth(flow, x):
    return MultivariateNormal(x @ flow.weight.T + flow.bias, scale_tril=flow.scale_tril)


def _x(generator, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("inner_dtype", [torch.float32, torch.float64])
def test_a_standardized_flow_answers_in_the_users_units(inner_dtype, generator):
    inner = _linear(inner_dtype)
    y_mean, y_scale = torch.tensor([1e6, -5.0]).double(), torch.tensor([0.1, 30.0]).double()
    x_mean, x_scale = torch.tensor([2.0, 0.0, -1.0]).double(), torch.tensor([3.0, 1.0, 0.2]).double()
    flow = Standardized(inner, y_mean, y_scale, x_mean, x_scale)
    x = x_mean + x_scale * _x(generator, 50, 3)
    exact = _truth(_linear(), (x - x_mean) / x_scale)
    truth = MultivariateNormal(
        y_mean + y_scale * exact.mean, scale_tril=torch.diag(y_scale) @ _linear().scale_tril
    )
    y = flow(x).sample((20,), generator=generator)
    tolerance = 1e-4 if inner_dtype == torch.float32 else 1e-8
    assert y.dtype == torch.float64
    torch.testing.assert_close(flow(x).log_prob(y), truth.log_prob(y), rtol=0, atol=tolerance)
    z, _ = flow.encode(y, x)
    torch.testing.assert_close(flow.decode(z, x), y, rtol=0, atol=1e-4)
    torch.testing.assert_close(flow.latent(y, x), z)
    u = Chi(2).cdf(flow(x).latent_norm(y))
    assert distance_to_uniform(u) < uniform_limit(1000)


def test_standardized_without_x_statistics_leaves_x_alone(generator):
    flow = Standardized(_linear(), torch.zeros(2), torch.ones(2))
    x, y = _x(generator, 5, 3), _x(generator, 5, 2)
    torch.testing.assert_close(flow(x).log_prob(y), _linear()(x).log_prob(y))
    assert Standardized(scaled_gaussian(2, 1.0), torch.zeros(2), torch.ones(2))().sample((3,)).shape == (3, 2)


def test_standardized_takes_another_base():
    flow = Standardized(_linear(), torch.zeros(2), 2 * torch.ones(2)).with_base(student_t(2, 3.0))
    plain = _linear().with_base(student_t(2, 3.0))
    x, y = torch.zeros(3).double(), torch.ones(2).double()
    torch.testing.assert_close(flow(x).log_prob(2 * y), plain(x).log_prob(y) - 2 * math.log(2.0))


def test_standardized_says_what_is_wrong_with_its_statistics():
    flow, zero, one = _linear(), torch.zeros(2), torch.ones(2)
    with pytest.raises(ValueError, match=r"y_scale must be positive, but is not at \[1\].*Use scale 1"):
        Standardized(flow, zero, torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match=r"y_mean must have shape \(2,\), got \(3,\)"):
        Standardized(flow, torch.zeros(3), one)
    with pytest.raises(ValueError, match="both x_mean and x_scale, or neither"):
        Standardized(flow, zero, one, torch.zeros(3))
    with pytest.raises(ValueError, match="y_mean must be finite"):
        Standardized(flow, torch.tensor([0.0, math.nan]), one)
    with pytest.raises(ValueError, match=r"x_scale must have shape \(3,\), got \(2,\)"):
        Standardized(flow, zero, one, torch.zeros(3), one)
