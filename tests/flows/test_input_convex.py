import math

import pytest
import torch

from latentcal.flows.convex_derivatives import derivatives_of, log_det
from latentcal.flows.input_convex import InputConvexNetwork


def network(features: int, layers: int) -> InputConvexNetwork:
    torch.manual_seed(0)
    return InputConvexNetwork(3, features, hidden=7, layers=layers).double()


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("features", [0, 2])
def test_gradient_and_hessian_are_those_of_the_value(features, layers, generator):
    net = network(features, layers)
    y = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    x = torch.randn(5, features, generator=generator, dtype=torch.float64)
    value, gradient, hessian = net.value_and_derivatives(y, net.context_of(x))
    for i in range(5):
        own = net.context_of(x[i])
        potential = lambda point, own=own: net.value(point, own)  # noqa: E731
        torch.testing.assert_close(value[i], potential(y[i]))
        torch.testing.assert_close(gradient[i], torch.autograd.functional.jacobian(potential, y[i]))
        torch.testing.assert_close(hessian[i], torch.autograd.functional.hessian(potential, y[i]))


def test_the_value_is_strongly_convex_in_y(generator):
    net = network(2, 3)
    x, y, other = (torch.randn(200, k, generator=generator, dtype=torch.float64) for k in (2, 3, 3))
    context = net.context_of(x)
    middle = net.value((y + other) / 2, context)
    chord = (net.value(y, context) + net.value(other, context)) / 2
    assert bool((middle <= chord - net.alpha / 8 * ((y - other) ** 2).sum(-1) + 1e-12).all())


def test_one_context_serves_many_points(generator):
    net = network(2, 2)
    x, y = torch.randn(4, 2, generator=generator).double(), torch.randn(6, 4, 3, generator=generator).double()
    shared = net.gradient_and_hessian(y, net.context_of(x))
    own = net.gradient_and_hessian(y, net.context_of(x.expand(6, 4, 2)))
    for left, right in zip(shared, own, strict=True):
        torch.testing.assert_close(left, right)
    many = net.gradient_and_hessian(y[0, 0], net.context_of(x))
    for left, right in zip(
        many, net.gradient_and_hessian(y[0, 0].expand(4, 3), net.context_of(x)), strict=True
    ):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("features", [0, 2])
def test_the_written_out_derivatives_are_those_of_automatic_differentiation(features, layers, generator):
    net = network(features, layers)
    y = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, features, generator=generator, dtype=torch.float64, requires_grad=True)
    wanted = [y, *net.parameters(), *([x] if features else [])]
    of_both = [torch.randn(shape, generator=generator).double() for shape in ((6, 5, 3), (6, 5, 3, 3))]
    answers = []
    for method in (net.gradient_and_hessian, lambda y, context: derivatives_of(net.weights, y, context)[:2]):
        answers.append(torch.autograd.grad(method(y, net.context_of(x)), wanted, of_both))
        one = method(y, net.context_of(x))[0]  # a Hessian that nothing depends on
        answers[-1] += torch.autograd.grad(one, wanted, of_both[0], materialize_grads=True)
    for ours, automatic in zip(*answers, strict=True):
        torch.testing.assert_close(ours, automatic)


def test_derivatives_of_the_hessian_have_derivatives(generator):
    net = network(2, 3)
    y, x = (torch.randn(2, k, generator=generator, dtype=torch.float64, requires_grad=True) for k in (3, 2))
    both = lambda y, x: net.gradient_and_hessian(y, net.context_of(x))  # noqa: E731
    assert torch.autograd.gradgradcheck(both, (y, x))


def positive_definite(generator: torch.Generator) -> torch.Tensor:
    root = torch.randn(4, 3, 3, generator=generator, dtype=torch.float64)
    return root @ root.mT + torch.eye(3, dtype=torch.float64)


def test_the_log_determinant_and_its_derivatives_of_both_orders_are_right(generator):
    matrix = positive_definite(generator).requires_grad_()
    torch.testing.assert_close(log_det(matrix), torch.logdet(matrix))
    # Only a symmetric matrix has a Cholesky factor, so the check moves within these.
    symmetric = lambda root: log_det(root @ root.mT)  # noqa: E731
    root = torch.randn(4, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(symmetric, root)
    assert torch.autograd.gradgradcheck(symmetric, root)


def test_the_log_determinant_can_be_vectorised(generator):
    matrix = positive_definite(generator)
    gradient = torch.func.vmap(torch.func.grad(log_det))(matrix)
    torch.testing.assert_close(gradient, torch.linalg.inv(matrix))


def test_a_matrix_that_is_not_positive_definite_has_no_log_determinant(generator):
    for wrong in (-torch.eye(3), torch.zeros(3, 3), torch.full((3, 3), math.nan)):
        matrix = positive_definite(generator)
        matrix[2] = wrong
        assert torch.isnan(log_det(matrix)).tolist() == [False, False, True, False]
