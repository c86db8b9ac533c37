import math
import sys

import pytest
import torch

from latentcal.flows.ode import integrate, with_divergence

pytest.importorskip("torchdiffeq")


def growth(t, q):
    return t * q, t.expand(len(q), 1)


@pytest.mark.parametrize("options", [{}, {"steps": 50}, {"steps": 2000, "solver": "midpoint"}])
@pytest.mark.parametrize("times", [(0.0, 2.0), (2.0, 0.0)])
def test_a_field_is_solved_in_either_direction_of_time(times, options):
    q = torch.randn(5, 1, dtype=torch.float64)
    end, integral = integrate(growth, q, times, traces=1, **options)
    exponent = (times[1] ** 2 - times[0] ** 2) / 2
    torch.testing.assert_close(end, q * math.exp(exponent), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(integral, torch.full_like(q, exponent), rtol=1e-5, atol=1e-6)


def test_without_traces_there_is_nothing_to_integrate():
    end, integral = integrate(lambda t, q: (-q, None), torch.ones(3, 2), (0.0, 1.0))
    assert (end.shape, integral.shape) == ((3, 2), (3, 0))


def test_the_divergence_is_the_trace_of_the_jacobian():
    matrix, q = torch.randn(3, 3), torch.randn(5, 3)
    v, trace = with_divergence(lambda q: torch.tanh(q @ matrix.T), q)
    torch.testing.assert_close(trace, ((1 - v**2) * matrix.diagonal()).sum(-1, keepdim=True))
    torch.testing.assert_close(with_divergence(torch.ones_like, q)[1], torch.zeros(5, 1))


def test_gradients_are_kept_only_where_something_wants_them():
    matrix, q = torch.randn(3, 3), torch.randn(5, 3)
    assert not any(part.requires_grad for part in with_divergence(lambda q: q.sin() @ matrix, q))
    for wanting in ((matrix.clone().requires_grad_(), q), (matrix, q.clone().requires_grad_())):
        v, trace = with_divergence(lambda q, a=wanting[0]: q.sin() @ a, wanting[1])
        assert v.requires_grad
        assert trace.requires_grad
        with torch.no_grad():
            assert not with_divergence(lambda q, a=wanting[0]: q.sin() @ a, wanting[1])[1].requires_grad


def test_a_missing_solver_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match=r"latentcal\[flows\]"):
        integrate(growth, torch.ones(1, 1), (0.0, 1.0))
