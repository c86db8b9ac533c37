import math

import numpy as np
import pytest
import torch

from latentcal.flows import process_fitting
from latentcal.flows.gaussian_process import KernelRegression, KernelSpread, kernel_between
from latentcal.flows.process_fitting import fit_gaussian_process


def _rows(n=90, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(n, 3, generator=generator, dtype=torch.float64) + 5
    noise = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    y = torch.stack([10 * torch.sin(x[:, 0]), 0.3 * x[:, 1]], 1) + torch.tensor([1.0, 0.1]) * noise
    return x, y, torch.arange(n) % 3, torch.ones(n, dtype=torch.float64)


def test_a_process_answers_as_that_of_scikit_learn_with_the_same_kernel():
    process = pytest.importorskip("sklearn.gaussian_process")
    kernels = process.kernels
    x, y, fold, weights = _rows()
    fit = fit_gaussian_process(x, y, fold, weights)
    own, new = fit.mean, _rows(40, 1)[0]
    for k in range(2):
        linear = kernels.ConstantKernel(float(own.slope[k]) / 3) * kernels.DotProduct(0.0, "fixed")
        matern = kernels.ConstantKernel(float(own.signal[k])) * kernels.Matern(own.length[k].numpy(), nu=2.5)
        model = process.GaussianProcessRegressor(
            matern + linear, alpha=float(fit.spread.noise[k]), optimizer=None
        )
        model.fit(own.points.numpy(), (y[:, k] - own.level[k]).numpy())
        mean, deviation = model.predict(own.standardize(new).numpy(), return_std=True)
        expected = np.log(deviation**2 + float(fit.spread.noise[k])) / 2
        torch.testing.assert_close(own(new)[:, k] - own.level[k], torch.from_numpy(mean), rtol=0, atol=1e-6)
        torch.testing.assert_close(fit.spread(new)[:, k], torch.from_numpy(expected), rtol=0, atol=1e-6)


def _posteriors(weights):
    x, y, fold, _ = _rows()
    rows, target = (x - x.mean(0)) / x.std(0), (y[:, 0] - y[:, 0].mean()) / y[:, 0].std()
    kernel = process_fitting._Kernel(torch.tensor([0.3, 0.1, -0.7, -2.0, 0.2, 0.0, -0.4]).double())
    exact = process_fitting._Exact(rows, target, weights, kernel)
    sparse = process_fitting._Sparse(rows, rows, target, weights, kernel)
    return rows, target, fold, kernel, exact, sparse


@pytest.mark.parametrize("equal", [True, False])
def test_a_process_without_a_fold_is_what_the_other_rows_say(equal):
    x, y, fold, weights = _rows()
    weights = weights if equal else torch.linspace(0.5, 1.5, 90).double()
    fit = fit_gaussian_process(x, y, fold, weights)
    for number, (mean, spread) in enumerate(fit.by_fold):
        own = fold == number
        rows = mean.standardize(x)
        covariance = [
            kernel_between(rows, rows, *parts)
            for parts in zip(mean.length, mean.signal, mean.slope, strict=True)
        ]
        for k, whole in enumerate(covariance):
            known = whole[~own][:, ~own] + torch.diag(spread.noise[k] / weights[~own])
            across = whole[own][:, ~own]
            expected = across @ torch.linalg.solve(known, y[~own, k] - mean.level[k]) + mean.level[k]
            torch.testing.assert_close(mean(x[own])[:, k], expected, rtol=1e-5, atol=1e-5)
            told = (across @ torch.linalg.inv(known) * across).sum(1)
            variance = whole.diagonal()[own] - told + spread.noise[k]
            torch.testing.assert_close(spread(x[own])[:, k], variance.log() / 2, rtol=1e-5, atol=1e-5)


def test_all_rows_as_points_make_the_sparse_process_exact():
    *_, exact, sparse = _posteriors(torch.ones(90).double())
    rows, _, _, kernel, _, _ = _posteriors(torch.ones(90).double())
    new = kernel(rows[:20] + 0.3, rows)
    torch.testing.assert_close(new @ sparse.coefficients, new @ exact.coefficients, rtol=1e-4, atol=1e-4)
    known = ((new @ each.precision) * new for each in (exact, sparse))
    first, second = (each.sum(1) for each in known)
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_a_process_of_many_rows_has_few_points_and_learns_a_bent_function():
    x, y, fold, weights = _rows(700)
    fit = fit_gaussian_process(x, y, fold, weights, tried=150)
    assert len(fit.mean.points) == 500
    new, truth, *_ = _rows(400, 1)
    # The noise has variance 1 and 0.01; a linear model leaves most of the variance 50 of the sine.
    error = (fit.mean(new) - truth).square().mean(0)
    assert bool((error < torch.tensor([1.5, 0.015])).all())
    linear = torch.linalg.lstsq(torch.cat([x, torch.ones(700, 1)], 1), y).solution
    left = (torch.cat([new, torch.ones(400, 1)], 1) @ linear - truth).square().mean(0)
    assert float(left[0]) > 20
    # Held-out residuals have the size that the process expects, up to a few percent.
    for number, (mean, spread) in enumerate(fit.by_fold):
        own = fold == number
        ratio = ((y[own] - mean(x[own])) / spread(x[own]).exp()).square().mean(0)
        assert bool(((ratio > 0.7) & (ratio < 1.4)).all())


def test_a_process_is_finite_far_from_all_rows():
    fit = fit_gaussian_process(*_rows())
    far = torch.tensor([[1e300, -1e300, 0.0]]).double()
    assert bool(torch.isfinite(fit.mean(far)).all())
    assert bool(torch.isfinite(fit.spread(far)).all())


def test_arrays_that_are_no_process_are_refused():
    ones, square = torch.ones(2).double(), torch.ones(2, 2).double()
    regression = KernelRegression(ones, ones, square, square, ones, ones, square, ones)
    with pytest.raises(ValueError, match="scale and length must be positive"):
        KernelRegression(ones, 0 * ones, square, square, ones, ones, square, ones)
    with pytest.raises(ValueError, match="must not be negative"):
        KernelRegression(ones, ones, square, square, -ones, ones, square, ones)
    with pytest.raises(ValueError, match="noise must be positive"):
        KernelSpread(regression, torch.zeros(2, 2, 2).double(), 0 * ones)
    with pytest.raises(ValueError, match=r"precision must have shape \(k = 2, m = 2, m = 2\)"):
        KernelSpread(regression, torch.zeros(2, 3, 3).double(), ones)


def test_the_gradient_of_the_evidence_is_its_slope():
    x, y, _, weights = _rows(30)
    evidence = process_fitting._Evidence((x - x.mean(0)) / x.std(0), y[:, 0] / y[:, 0].std(), weights)
    at = np.array([0.5, 0.2, -1.0, -1.5, 0.3, -0.2, 0.1])
    for penalty in ((True, 0.4), (False, 0.8)):
        _, gradient = evidence.loss(at, 30, *penalty)
        for j, step in enumerate(np.eye(7) * 1e-5):
            slope = (
                evidence.loss(at + step, 30, *penalty)[0] - evidence.loss(at - step, 30, *penalty)[0]
            ) / 2e-5
            assert math.isclose(slope, gradient[j], rel_tol=1e-4, abs_tol=1e-4)


def test_the_evidence_is_the_likelihood_under_the_kernel():
    x, y, _, _ = _rows(30)
    weights = torch.linspace(0.5, 2.0, 30, dtype=torch.float64)
    rows, target = (x - x.mean(0)) / x.std(0), y[:, 0] / y[:, 0].std()
    evidence = process_fitting._Evidence(rows, target, weights)

    def likelihood(values: np.ndarray) -> float:
        kernel = process_fitting._Kernel(torch.from_numpy(values))
        covariance = kernel(rows, rows) + torch.diag(kernel.noise / weights)
        normal = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), covariance)
        return float(normal.log_prob(target))

    # Shapes of one common and three own length scales, the same penalties: only the likelihood differs.
    one, other = (
        np.array([0.5, 0.2, -1.0, -1.5, 0.3, -0.2, 0.1]),
        np.array([0.5, 0.2, -1.0, -1.5, -0.3, 0.2, -0.1]),
    )
    gain = evidence.loss(one, 30, True, 0.4)[0] - evidence.loss(other, 30, True, 0.4)[0]
    expected = likelihood(other) - likelihood(one)
    assert abs(expected) > 0.1  # control: the two kernels are told apart
    assert math.isclose(gain, expected, rel_tol=1e-8)
