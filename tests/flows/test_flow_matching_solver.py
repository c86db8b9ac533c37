import math
import sys

import pytest
import torch

from latentcal.flows.flow_matching import integrate, with_divergence

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


ADAPTIVE = ["dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun"]


def only_within(t, q):
    """A field that is defined for times in [0.25, 1] alone."""
    return torch.where((t >= 0.25) & (t <= 1.0), q, torch.nan), None


@pytest.mark.parametrize("times", [(0.25, 1.0), (1.0, 0.25)])
@pytest.mark.parametrize("solver", ADAPTIVE)
def test_a_field_is_not_asked_about_times_beyond_the_last_one(solver, times):
    torchdiffeq = pytest.importorskip("torchdiffeq")
    start = torch.full((3, 2), 2.0, dtype=torch.float64)
    # Control: left alone, the solver steps beyond and finds no step that is small enough.
    with pytest.raises(AssertionError, match="underflow"):
        torchdiffeq.odeint(
            lambda t, q: only_within(t, q)[0], start, torch.tensor(times), method=solver, rtol=1e-4, atol=1e-4
        )
    end, _ = integrate(only_within, start, times, solver=solver, tolerance=1e-4)
    torch.testing.assert_close(end, start * math.exp(times[1] - times[0]), rtol=1e-2, atol=0)


def test_a_first_step_that_would_reach_beyond_the_last_time_is_no_trouble():
    start = torch.full((3, 2), 1e4)  # large points that hardly move

    def slow(t, q):
        return torch.where((t >= 0) & (t <= 1), torch.full_like(q, 0.5), torch.nan), None

    torch.testing.assert_close(integrate(slow, start, (0.0, 1.0))[0], start + 0.5)


def test_small_steps_are_not_lost_next_to_large_points():
    torchdiffeq = pytest.importorskip("torchdiffeq")
    start = torch.full((3, 2), 1e4)

    def slow(t, q):
        return torch.full_like(q, 0.3), None

    alone = torchdiffeq.odeint(
        lambda t, q: slow(t, q)[0], start, torch.tensor([0.0, 1.0]), method="rk4", options={"step_size": 1e-3}
    )[-1]
    assert float((alone - start).abs().max()) < 0.01  # control: in float32 each step is rounded away
    end, _ = integrate(slow, start, (0.0, 1.0), steps=1000)
    assert end.dtype == torch.float32
    torch.testing.assert_close(end, start + 0.3, rtol=1e-7, atol=1e-3)


WITHOUT_A_SOLUTION = {
    "runs away": lambda t, q: (q**2, None),  # from 1 at time 0 to infinity at time 1
    "not a number": lambda t, q: (q * torch.nan, None),
}


@pytest.mark.parametrize("field", WITHOUT_A_SOLUTION.values(), ids=WITHOUT_A_SOLUTION.keys())
def test_a_field_without_a_solution_is_said_to_have_none(field):
    with pytest.raises(ArithmeticError, match=r"cannot keep the error below 1e-06.*number of steps"):
        integrate(field, torch.ones(2, 1), (0.0, 2.0))


def test_a_missing_solver_names_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchdiffeq", None)
    with pytest.raises(ImportError, match=r"latentcal\[flows\]"):
        integrate(growth, torch.ones(1, 1), (0.0, 1.0))
