import copy
import math
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Distribution, MultivariateNormal, Normal

import latentcal as lc
import same
from latentcal import flow as flow_module
from latentcal.base import standard_normal, student_t
from latentcal.flow import ConditionalFlow, FlowDistribution, evaluation_mode, tensor_options
from latentcal.flows import LinearGaussianFlow
from latentcal.radius.reference import Chi
from toys import NormalCDFFlow, ScaledBy, ScaleFromX, SinhFlow, scaled_gaussian
from uniformity import distance_to_uniform, uniform_limit


def _linear(dtype=torch.float64):
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.3, 2.0]], dtype=dtype)
    scale = torch.tensor([[0.5, 0.0], [0.7, 3.0]], dtype=dtype)
    return LinearGaussianFlow(weight, torch.tensor([3.0, -1.0], dtype=dtype), scale)


def _truth(flow, x):
    return MultivariateNormal(x @ flow.weight.T + flow.bias, scale_tril=flow.scale_tril)


def _x(generator, *shape, dtype=torch.float64):
    return torch.randn(*shape, generator=generator, dtype=dtype)


@pytest.mark.parametrize("shape", [(), (7,), (4, 7)])
def test_log_prob_is_the_known_density_for_every_leading_shape(shape, generator):
    flow, x = _linear(), _x(generator, *shape, 3)
    pred = flow(x)
    assert isinstance(pred, Distribution)
    assert pred.batch_shape == shape
    assert pred.event_shape == (2,)
    for leading in (shape, (5, *shape), (2, 5, *shape), ()):
        y = _x(generator, *leading, 2)
        expected = _truth(flow, x).log_prob(y.expand(*torch.broadcast_shapes(leading, shape), 2))
        torch.testing.assert_close(pred.log_prob(y), expected, rtol=1e-12, atol=1e-12)


class WantsRows(NormalCDFFlow):
    """As models of other libraries, which may not take arrays without rows."""

    def encode(self, y, x=None):
        return super().encode(y, x.reshape(len(x), -1))

    def decode(self, z, x=None):
        return super().decode(z, x.reshape(len(x), -1))


@pytest.mark.parametrize("flow", [_linear(), WantsRows(1.0)], ids=["linear", "wants rows"])
def test_an_empty_batch_is_a_batch(flow):
    pred, dim = flow(torch.zeros(0, 3)), flow.base.dim
    assert pred.log_prob(torch.zeros(5, 0, dim)).shape == (5, 0)
    assert pred.latent(torch.zeros(5, 0, dim)).shape == (5, 0, dim)
    assert pred.latent_norm(torch.zeros(0, dim)).dtype == torch.float64
    for draw in (pred.sample, pred.rsample):
        assert draw((5,)).shape == (5, 0, dim)


def test_the_answer_comes_in_the_dtype_of_y(generator):
    x, y = _x(generator, 6, 3), _x(generator, 6, 2)
    for flow in (_linear(torch.float32), _linear(torch.float64)):
        for dtype in (torch.float32, torch.float64):
            log_prob = flow(x).log_prob(y.to(dtype))
            assert log_prob.dtype == dtype
            torch.testing.assert_close(log_prob.double(), _truth(_linear(), x).log_prob(y), rtol=0, atol=1e-4)
    assert _linear()(x).log_prob(torch.ones(6, 2, dtype=torch.int64)).is_floating_point()


def test_a_large_log_det_does_not_swallow_the_base_density():
    class Far(ConditionalFlow):
        def encode(self, y, x=None):
            return y, torch.full(y.shape[:-1], 2.0**25, dtype=y.dtype)

    flow = Far(standard_normal(1))
    y = torch.tensor([[0.0], [1.0]])
    difference = flow().log_prob(y.double()).diff().item()
    assert difference == pytest.approx(-0.5)  # in float32 the sum would lose it


def test_numpy_arrays_are_taken(generator):
    x, y = _x(generator, 6, 3), _x(generator, 6, 2)
    torch.testing.assert_close(_linear()(x.numpy()).log_prob(y.numpy()), _linear()(x).log_prob(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_have_their_dims_in_front_and_the_dtype_of_the_flow(dtype, generator):
    pred = _linear(dtype)(_x(generator, 4, 7, 3))
    for draw in (pred.sample, pred.rsample):
        assert draw().shape == (4, 7, 2)
        assert draw((5, 6), generator=generator).shape == (5, 6, 4, 7, 2)
        assert draw((5,)).dtype == dtype
    assert pred.log_prob(pred.sample((5,))).shape == (5, 4, 7)


def test_samples_follow_the_density(generator):
    flow, n = _linear(), 4000
    pred = flow(_x(generator, 3))
    y = pred.sample((n,), generator=generator)
    z = torch.linalg.solve_triangular(flow.scale_tril, (y - _truth(flow, pred.x).mean).T, upper=False)
    for coordinate in z:
        assert distance_to_uniform(Normal(0, 1).cdf(coordinate)) < uniform_limit(n)
        assert distance_to_uniform(Normal(0.2, 1).cdf(coordinate)) > uniform_limit(n)  # control


def test_samples_repeat_with_the_generator_and_leave_the_global_one_alone(generator):
    pred = _linear()(_x(generator, 5, 3))
    state = torch.get_rng_state()
    first, second = (pred.sample((3,), generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert same.drawn(first, second)
    assert same.drawn(state, torch.get_rng_state())


def test_an_unconditional_flow_needs_no_x(generator):
    flow = scaled_gaussian(3, 2.0)
    pred = flow()
    y = pred.sample((10,), generator=generator)
    assert y.shape == (10, 3)
    torch.testing.assert_close(pred.log_prob(y), Normal(0, 2.0).log_prob(y).sum(-1))
    assert pred.expand((4,)).batch_shape == (4,)
    assert pred.expand((4,)).sample((10,)).shape == (10, 4, 3)
    assert pred.expand((4,)).log_prob(y[0]).shape == (4,)


def test_expand_repeats_the_prediction(generator):
    flow, x, y = _linear(), _x(generator, 7, 3), _x(generator, 7, 2)
    pred = flow(x).expand((5, 7))
    assert isinstance(pred, FlowDistribution)
    assert pred.batch_shape == (5, 7)
    assert pred.sample((2,)).shape == (2, 5, 7, 2)
    torch.testing.assert_close(pred.log_prob(y), flow(x).log_prob(y).expand(5, 7))
    with pytest.raises(ValueError, match="cannot be expanded"):
        flow(x).expand((6,))
    with pytest.raises(ValueError, match="cannot be expanded"):
        scaled_gaussian(2, 1.0)().expand((4,)).expand((3,))


@pytest.mark.parametrize("validate", [True, False])
def test_our_checks_do_not_hang_on_the_validation_of_torch(validate, generator):
    flow, before = _linear(), Distribution._validate_args
    try:
        Distribution.set_default_validate_args(validate)
        pred = flow(_x(generator, 4, 3))
        assert pred.log_prob(pred.sample((3,))).shape == (3, 4)
        with pytest.raises(ValueError, match="y has NaN or infinite values in 1 of 4 points"):
            pred.log_prob(torch.tensor([[0.0, 1.0], [0.0, math.nan], [0.0, 1.0], [1.0, 1.0]]))
    finally:
        Distribution.set_default_validate_args(before)


def test_moments_are_estimated_only_on_request(generator):
    flow, x = _linear(), _x(generator, 4, 3)
    pred = flow(x)
    for name in ("mean", "variance", "stddev"):
        with pytest.raises(NotImplementedError, match=r"pred\.moments\(samples=1000\)"):
            getattr(pred, name)
    mean, variance = pred.moments(20_000, generator)
    truth = _truth(flow, x)
    # Five standard errors of a mean and of a variance: 16 comparisons fail with probability 1e-5.
    error = 5 * torch.sqrt(truth.variance / 20_000)
    assert ((mean - truth.mean).abs() < error).all()
    assert ((variance - truth.variance).abs() < 5 * truth.variance * math.sqrt(2 / 20_000)).all()
    assert ((mean - truth.mean - 0.3).abs() > error).all()  # control
    with pytest.raises(ValueError, match="samples must be at least 2, got 1"):
        pred.moments(1)


def test_moments_in_pieces_are_those_of_the_whole(generator, monkeypatch):
    pred = _linear()(_x(generator, 4, 3))
    draws = pred.sample((100,), generator=torch.Generator().manual_seed(7))
    pieces = iter(draws.split(16))
    monkeypatch.setattr("latentcal.flow.rows_at_a_time", lambda numbers: 16 * 8 // numbers)
    monkeypatch.setattr(pred, "sample", lambda shape, generator: next(pieces)[: shape[0]])
    mean, variance = pred.moments(100)
    torch.testing.assert_close(mean, draws.mean(0))
    torch.testing.assert_close(variance, draws.var(0))


def test_rsample_gradients_agree_with_finite_differences(generator):
    scale = nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
    flow = SinhFlow(2, standard_normal(2).with_radius(ScaledBy(Chi(2), scale)))
    x = _x(generator, 5, 2).requires_grad_()

    def loss():
        draws = flow(x).rsample((3,), generator=torch.Generator().manual_seed(1))
        return (draws**2).mean()

    parameters = (scale, flow.weight, x)
    gradients = torch.autograd.grad(loss(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        for index in range(parameter.numel()):
            values = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter.view(-1)[index] += step
                    values.append(loss().item())
                    parameter.view(-1)[index] -= step
            measured = (values[0] - values[1]) / 2e-6
            assert gradient.reshape(-1)[index].item() == pytest.approx(measured, rel=1e-6, abs=1e-7)
    assert not flow(x).sample((3,)).requires_grad


def test_log_prob_differentiates_by_y_x_and_flow(generator):
    flow, x, y = SinhFlow(2), _x(generator, 3, 2).requires_grad_(), _x(generator, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda y, x: flow(x).log_prob(y), (y, x))
    flow(x).log_prob(y).sum().backward()
    assert flow.weight.grad.abs().min() > 0


def test_a_base_that_depends_on_x_follows_the_features(generator):
    base = standard_normal(2).with_radius(ScaleFromX(Chi(2)))
    flow = scaled_gaussian(2, 1.0).with_base(base)
    x = torch.tensor([[0.0], [1.0], [-2.0]], dtype=torch.float64)
    pred = flow(x)
    y = pred.sample((2000,), generator=generator)
    torch.testing.assert_close(pred.log_prob(y), Normal(0, x.exp()).log_prob(y).sum(-1))
    torch.testing.assert_close(pred.expand((4, 3)).log_prob(y[:4]), pred.log_prob(y[:4]))
    u = Chi(2).cdf(pred.latent_norm(y) / x.exp()[:, 0])
    assert distance_to_uniform(u) < uniform_limit(6000)
    assert distance_to_uniform(Chi(2).cdf(pred.latent_norm(y))) > uniform_limit(6000)  # control


def test_latent_norm_is_the_norm_of_the_latent(generator):
    flow, x, y = _linear(), _x(generator, 6, 3), _x(generator, 4, 6, 2)
    expected = torch.linalg.vector_norm(flow.encode(y, x)[0], dim=-1)
    torch.testing.assert_close(flow(x).latent_norm(y), expected)
    assert _linear(torch.float32)(x).latent_norm(y).dtype == torch.float64


def test_a_point_of_density_zero_is_minus_infinity_and_not_nan():
    class Explodes(ConditionalFlow):
        def encode(self, y, x=None):
            return y * math.inf, torch.full(y.shape[:-1], math.inf)

    assert Explodes(standard_normal(2))().log_prob(torch.ones(3, 2)).tolist() == [-math.inf] * 3


def test_with_base_shares_the_maps_and_leaves_the_flow_alone():
    flow = SinhFlow(2)
    other = flow.with_base(student_t(2, 4.0))
    assert type(other) is SinhFlow
    assert other.weight is flow.weight
    assert isinstance(flow.base.radius, Chi)
    assert not isinstance(other.base.radius, Chi)
    with torch.no_grad():
        flow.weight.mul_(2)
    assert same.copied(other.weight, flow.weight)
    flow.double().float()
    assert other.weight.dtype == torch.float32  # a cast reaches both
    flow.recalibration = "a record"
    assert flow.with_base(standard_normal(2)).recalibration is None
    with pytest.raises(ValueError, match="new base has 3 dimensions, the flow's latent has 2"):
        flow.with_base(standard_normal(3))


def test_buffers_are_shared_too():
    flow = _linear()
    other = flow.with_base(student_t(2, 4.0))
    flow.float()
    assert other.bias.dtype == torch.float32
    assert copy.deepcopy(other).bias is not flow.bias


def test_the_dtype_of_a_flow_is_not_that_of_its_law():
    base = standard_normal(2).with_radius(ScaledBy(Chi(2), torch.tensor(1.0)))
    assert tensor_options(SinhFlow(2, base, torch.float32))[0] == torch.float32
    assert tensor_options(NormalCDFFlow(1.0))[0] is None


def test_a_flow_without_tensors_works_in_the_dtype_of_its_data(generator):
    flow = NormalCDFFlow(2.0)
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(3, 1, dtype=dtype)
        y = flow(x).sample((4,), generator=generator)
        assert y.dtype == dtype
        torch.testing.assert_close(flow(x).log_prob(y), Normal(0, 2.0).log_prob(y)[..., 0])


def test_evaluation_mode_gives_every_module_its_own_mode_back():
    flow = SinhFlow(2)
    flow.frozen, flow.drop = nn.BatchNorm1d(2).eval(), nn.Dropout()

    def fail():
        with evaluation_mode(flow):
            assert not flow.training
            assert not flow.drop.training
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert flow.training
    assert flow.drop.training
    assert not flow.frozen.training


class _Broken(ConditionalFlow):
    def __init__(self, encode):
        super().__init__(standard_normal(2))
        self._encode = encode

    def encode(self, y, x=None):
        return self._encode(y)

    def decode(self, z, x=None):
        return z[..., :1]


def test_errors_say_what_came_and_what_to_do(generator):
    pred = _linear()(_x(generator, 4, 3))
    with pytest.raises(
        ValueError, match=r"y has 3 outputs .* 2 dimensions \(y: \(4, 3\), x: \(4, 3\)\).*swapped"
    ):
        pred.log_prob(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="y has no outputs"):
        pred.log_prob(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"y \(5, 2\) does not match .* batch shape \(4,\)"):
        pred.log_prob(torch.zeros(5, 2))
    with pytest.raises(
        ValueError, match=r"y has NaN or infinite values in 2 of 4 points \(first at \(1,\)\)"
    ):
        pred.latent_norm(torch.tensor([[0.0, 0], [math.inf, 0], [0, math.nan], [0, 0]]))
    with pytest.raises(ValueError, match="x has NaN or infinite values in 1 of 4 points"):
        _linear()(torch.tensor([[0.0] * 3, [math.nan] * 3, [0.0] * 3, [0.0] * 3]))
    with pytest.raises(ValueError, match="x is a single number"):
        _linear()(torch.tensor(1.0))
    y = torch.zeros(5, 2)
    with pytest.raises(ValueError, match=r"encode gave NaN for 5 of 5 points.*check_flow"):
        _Broken(lambda y: (y * math.nan, y[..., 0]))().log_prob(y)
    with pytest.raises(ValueError, match=r"NaN log\|det\| for 5 of 5 points.*check_flow"):
        _Broken(lambda y: (y, y[..., 0] * math.nan))().log_prob(y)
    with pytest.raises(ValueError, match=r"log\|det\| of shape \(5, 2\) .*sum it over the outputs"):
        _Broken(lambda y: (y, y))().log_prob(y)
    with pytest.raises(ValueError, match=r"encode gave z of shape \(5, 1\) for y \(5, 2\)"):
        _Broken(lambda y: (y[..., :1], y[..., 0]))().log_prob(y)
    with pytest.raises(ValueError, match=r"decode gave y of shape \(5, 1\) for z \(5, 2\)"):
        _Broken(None)().sample((5,))
    with pytest.raises(TypeError, match=r"got Normal\. For N\(0, I\) use standard_normal\(d\)"):
        ConditionalFlow(Normal(0, 1))


def test_a_prediction_says_what_it_is():
    pred = _linear()(torch.zeros(4, 3).double())
    assert repr(pred) == "FlowDistribution(LinearGaussianFlow, batch_shape=(4,), event_shape=(2,))"
    assert pred.support.check(torch.zeros(3, 2)).all()
    assert pred.has_rsample


def test_whole_number_features_stay_whole_numbers():
    class Labels(ConditionalFlow):
        def __init__(self):
            super().__init__(standard_normal(1))
            self.shift = nn.Embedding(3, 1)

        def encode(self, y, x=None):
            return y - self.shift(x[..., 0]), torch.zeros(y.shape[:-1])

    pred = Labels()(torch.from_numpy(np.array([[0], [2]])))
    assert pred.log_prob(torch.zeros(2, 1)).shape == (2,)


class Dropping(lc.ConditionalFlow):
    """A flow whose latent is random in training mode."""

    def __init__(self) -> None:
        super().__init__(lc.base.standard_normal(2))
        self.dropout = torch.nn.Dropout(0.5)
        self.linear = torch.nn.Linear(2, 2)

    def encode(self, y, x=None):
        return self.dropout(y), torch.zeros(y.shape[:-1])


def test_threads_share_a_flow_in_evaluation_mode():
    """One thread gave the modules their mode back while another still computed: it ran with dropout."""
    flow, y, wrong = Dropping().train(), torch.ones(2000, 2), []

    def work() -> None:
        for _ in range(50):
            norms = lc.latent_norms(flow, None, y)
            wrong.extend(norms[(norms - 2**0.5).abs() > 1e-6].tolist())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert flow.training
    assert flow.dropout.training
    assert flow_module._MODES == {}
    with torch.no_grad():
        assert (flow.encode(y)[0] == 0).any()  # control: in training mode it drops


def test_modes_are_given_back_one_by_one_and_after_an_error():
    flow = Dropping().train()
    flow.linear.eval()
    with evaluation_mode(flow):
        with pytest.raises(RuntimeError, match="on purpose"), evaluation_mode(flow):
            raise RuntimeError("on purpose")
        flow.train()  # another thread goes on training
        with evaluation_mode(flow):
            assert not flow.dropout.training
    assert (flow.training, flow.dropout.training, flow.linear.training) == (True, True, False)


@pytest.mark.parametrize("kind", [lc.flows.ConvexPotentialFlow, lc.flows.FlowMatching])
def test_autocast_around_a_model_changes_nothing(kind, generator):
    """Log densities moved by 0.05 in bfloat16, and sampling a convex potential flow failed."""
    flow = kind(2, 1).eval().requires_grad_(False)
    x, y = torch.randn(20, 1, generator=generator), torch.randn(20, 2, generator=generator)
    expected = flow(x).log_prob(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.randn(9, 9) @ torch.randn(9, 9)).dtype == torch.bfloat16  # control: it is on
        torch.testing.assert_close(flow(x).log_prob(y), expected)
        assert torch.isfinite(flow(x).sample()).all()
