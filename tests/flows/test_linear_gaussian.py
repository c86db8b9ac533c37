import pytest
import torch
from torch.distributions import MultivariateNormal

import latentcal as lc
from latentcal.base import standard_normal, student_t
from latentcal.flows import LinearGaussianFlow
from latentcal.radius.reference import StudentRadius

WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.3, 2.0]], dtype=torch.float64)
BIAS = torch.tensor([3.0, -1.0], dtype=torch.float64)
SCALE = torch.tensor([[0.5, 0.0], [0.7, 3.0]], dtype=torch.float64)


def test_the_prediction_is_the_gaussian_of_linear_regression(generator):
    flow = LinearGaussianFlow(WEIGHT, BIAS, SCALE)
    x = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(5, 20, 2, generator=generator, dtype=torch.float64)
    truth = MultivariateNormal(x @ WEIGHT.T + BIAS, scale_tril=SCALE)
    torch.testing.assert_close(flow(x).log_prob(y), truth.log_prob(y), rtol=1e-12, atol=1e-12)
    lc.testing.check_flow_contract(flow, x, y[0], log_prob=truth.log_prob(y[0]), tolerance=1e-12)


def test_the_fit_is_least_squares(generator):
    x = torch.randn(200, 3, generator=generator, dtype=torch.float64) + 100
    noise = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    y = x @ WEIGHT.T + BIAS + noise @ SCALE.T
    flow = LinearGaussianFlow.fit(x, y)
    residuals = y - x @ flow.weight.T - flow.bias
    design = torch.cat([x, torch.ones(200, 1, dtype=torch.float64)], 1)
    # Normal equations, and the covariance of the residuals with n - p - 1 degrees of freedom.
    assert (design.T @ residuals).abs().max() < 1e-6
    torch.testing.assert_close(flow.scale_tril @ flow.scale_tril.T, residuals.T @ residuals / 196)
    # Five standard errors of the coefficients.
    covariance = torch.linalg.inv(design.T @ design).diagonal()[:3]
    error = 5 * torch.sqrt(covariance * (SCALE @ SCALE.T).diagonal()[:, None])
    assert ((flow.weight - WEIGHT).abs() < error).all()


def test_the_fit_without_features_is_mean_and_covariance(generator):
    y = torch.randn(50, 3, generator=generator)
    flow = LinearGaussianFlow.fit(None, y)
    assert flow.weight is None
    assert flow.bias.dtype == torch.float32
    torch.testing.assert_close(flow.bias, y.mean(0))
    torch.testing.assert_close(flow.scale_tril @ flow.scale_tril.T, torch.cov(y.T))
    assert flow().sample((7,)).shape == (7, 3)


def test_the_smallest_allowed_number_of_points_is_enough(generator):
    x, y = (torch.randn(6, k, generator=generator).double() for k in (3, 2))
    assert torch.isfinite(LinearGaussianFlow.fit(x, y)(x).log_prob(y)).all()
    with pytest.raises(
        ValueError, match=r"5 points are too few for 3 features and 2 outputs: .* = 6 are needed"
    ):
        LinearGaussianFlow.fit(x[:5], y[:5])


def test_repeated_features_do_no_harm(generator):
    x = torch.randn(50, 2, generator=generator).double()
    y = torch.randn(50, 2, generator=generator).double()
    expected = LinearGaussianFlow.fit(x, y)._mean(x)
    twice = torch.cat([x, x], 1)
    for _ in range(1000):  # torch's default method is wrong in one of three hundred
        _dirty_memory()
        torch.testing.assert_close(LinearGaussianFlow.fit(twice, y)._mean(twice), expected)


def _dirty_memory() -> None:
    """Leave small integers where the next small allocation finds them."""
    for size in (4, 4, 4, 8, 16):
        torch.randint(0, 3, (size,), dtype=torch.int32)


def test_numpy_arrays_are_taken(generator):
    x, y = (torch.randn(30, k, generator=generator).double() for k in (3, 2))
    from_arrays, from_tensors = LinearGaussianFlow.fit(x.numpy(), y.numpy()), LinearGaussianFlow.fit(x, y)
    torch.testing.assert_close(from_arrays.bias, from_tensors.bias)


def test_another_base_is_kept():
    flow = LinearGaussianFlow(WEIGHT, BIAS, SCALE, student_t(2, 3.0))
    assert isinstance(flow.base.radius, StudentRadius)
    y = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
    assert isinstance(LinearGaussianFlow.fit(None, y, base=student_t(2, 3.0)).base.radius, StudentRadius)


def test_gradients_reach_tensors_that_are_passed_in():
    bias = BIAS.clone().requires_grad_()
    flow = LinearGaussianFlow(WEIGHT, bias, SCALE)
    flow(torch.zeros(3).double()).log_prob(torch.zeros(2).double()).backward()
    assert bias.grad.abs().min() > 0


def test_errors_say_what_came(generator):
    constant = torch.randn(30, 2, generator=generator).double()
    constant[:, 1] = 4.0
    x = torch.randn(30, 3, generator=generator).double()
    with pytest.raises(ValueError, match="an output is constant"):
        LinearGaussianFlow.fit(x, constant)
    with pytest.raises(ValueError, match="linear function of x"):
        LinearGaussianFlow.fit(x, x[:, :2] @ torch.ones(2, 2).double() + x[:, 1:])
    with pytest.raises(ValueError, match="NaN or infinite"):
        LinearGaussianFlow.fit(None, torch.full((30, 2), torch.nan))
    with pytest.raises(ValueError, match=r"\(x: \(30, 3\), y: \(29, 2\)\)"):
        LinearGaussianFlow.fit(x, constant[:29])
    with pytest.raises(ValueError, match=r"y: \(30,\)"):
        LinearGaussianFlow.fit(x, constant[:, 0])
    with pytest.raises(ValueError, match=r"bias must be \(d,\), got \(1, 2\)"):
        LinearGaussianFlow(WEIGHT, BIAS[None], SCALE)
    with pytest.raises(ValueError, match=r"scale_tril must be \(2, 2\) like the bias, got \(3, 3\)"):
        LinearGaussianFlow(WEIGHT, BIAS, torch.eye(3))
    with pytest.raises(ValueError, match="lower triangular with a positive diagonal"):
        LinearGaussianFlow(WEIGHT, BIAS, SCALE.T)
    with pytest.raises(ValueError, match="lower triangular with a positive diagonal"):
        LinearGaussianFlow(WEIGHT, BIAS, -SCALE)
    with pytest.raises(ValueError, match=r"weight must be \(2, p\) like the bias, got \(3, 2\)"):
        LinearGaussianFlow(WEIGHT.T, BIAS, SCALE)
    with pytest.raises(ValueError, match="base has 3 dimensions, but the bias has 2"):
        LinearGaussianFlow(WEIGHT, BIAS, SCALE, standard_normal(3))
    flow = LinearGaussianFlow(WEIGHT, BIAS, SCALE)
    with pytest.raises(ValueError, match=r"x of shape \(\.\.\., 3\) is missing"):
        flow().sample()
    with pytest.raises(ValueError, match=r"x has 2 features, but the flow has weights for 3 \(x: \(5, 2\)\)"):
        flow(torch.zeros(5, 2)).sample()
