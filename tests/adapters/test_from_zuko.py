import pytest
import torch
from torch import nn
from torch.distributions import Distribution

import latentcal as lc
import same
from latentcal.adapters import from_zuko

zuko = pytest.importorskip("zuko")

KINDS = ["NSF", "MAF", "NICE", "GF", "SOSPF", "BPF", "NAF", "CNF"]


def fresh(kind: str, features: int = 3, dim: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return getattr(zuko.flows, kind)(dim, features)


@pytest.mark.parametrize("features", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_the_library_s_and_the_promises_are_kept(kind, features):
    network = fresh(kind, features)
    flow = from_zuko(network)
    x = torch.randn(20, features) if features else None
    y = torch.randn(20, 2)
    with torch.no_grad():
        tolerance = 1e-3 if kind == "CNF" else 1e-5
        torch.testing.assert_close(
            flow(x).log_prob(y), network(x).log_prob(y), rtol=tolerance, atol=tolerance
        )
    points = 2 if kind == "CNF" else 8  # its equations take long
    checks = lc.check_flow(flow, x, y, points=points).checks
    failed = [check.name for check in checks if check.passed is False]
    # An untrained GF has latents that zuko's bisection on [-10, 10] does not reach; the check says so.
    assert failed == (["round trip of base draws"] if (kind, features) == ("GF", 0) else [])


@pytest.mark.parametrize("kind", KINDS)
def test_extra_sample_dims_go_with_a_batch_of_x(kind):
    network = fresh(kind)
    x, y = torch.randn(5, 3), torch.randn(4, 5, 2)
    pred = from_zuko(network)(x)
    with torch.no_grad():
        expected = torch.stack([network(x).log_prob(each) for each in y])
        tolerance = 1e-3 if kind == "CNF" else 1e-5
        torch.testing.assert_close(pred.log_prob(y), expected, rtol=tolerance, atol=tolerance)
    assert pred.sample((6,)).shape == (6, 5, 2)


def with_base(law, *arguments, dim=2, lazy=None):
    """A spline flow on another base."""
    base = lazy or zuko.lazy.UnconditionalDistribution(law, *arguments, buffer=True)
    return zuko.flows.Flow(fresh("NSF", 3, dim).transform, base)


def test_a_base_that_is_not_standard_is_standardised():
    loc, scale = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    network = with_base(zuko.distributions.DiagNormal, loc, scale)
    flow = from_zuko(network)
    x = torch.randn(2000, 3)
    with torch.no_grad():
        y = network(x).sample()
        torch.testing.assert_close(flow(x).log_prob(y), network(x).log_prob(y), rtol=1e-5, atol=1e-5)
        naive, _ = network(x).transform.call_and_ladj(y)
    limit = 0.045  # Kolmogorov distance that 2000 uniforms exceed with probability 6e-4
    right, wrong = (
        lc.metrics.uniformity_test(lc.radius.Chi(2).cdf(z.norm(dim=-1))).statistic
        for z in (flow(x).latent(y), naive)
    )
    assert right < limit < wrong


def test_a_box_that_is_no_circle_is_a_cube():
    network = with_base(zuko.distributions.BoxUniform, -torch.ones(2), 3 * torch.ones(2))
    x = torch.randn(20, 3)
    with torch.no_grad():
        y = network(x).sample()
        flow = from_zuko(network)
        torch.testing.assert_close(flow(x).log_prob(y), network(x).log_prob(y), rtol=1e-5, atol=1e-5)
    assert isinstance(flow.base.norm, lc.norms.MaxNorm)


def test_element_wise_determinants_are_summed_over_the_outputs():
    transform = zuko.lazy.UnconditionalTransform(
        zuko.transforms.MonotonicAffineTransform, torch.ones(2), torch.tensor([0.5, 1.0]), buffer=True
    )
    base = zuko.lazy.UnconditionalDistribution(
        zuko.distributions.DiagNormal, torch.zeros(2), torch.ones(2), buffer=True
    )
    network = zuko.flows.Flow(transform, base)
    y = torch.randn(20, 2)
    torch.testing.assert_close(from_zuko(network)().log_prob(y), network().log_prob(y))


class MovingBase(zuko.lazy.LazyDistribution):
    def forward(self, c=None):
        return zuko.distributions.DiagNormal(c[..., :2], torch.exp(c[..., 1:]))


def test_a_base_that_depends_on_x_is_read_at_each_call():
    network = with_base(None, lazy=MovingBase())
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    with pytest.raises(TypeError, match=r"from_zuko\(flow, x\)"):
        from_zuko(network)
    flow = from_zuko(network, x[:1])
    lc.testing.check_flow_contract(flow, x, y, log_prob=network(x).log_prob(y))


def test_a_circle_has_no_centre_and_is_refused_unless_taken_as_a_box():
    network = zuko.flows.NCSF(2, 3)
    with pytest.raises(ValueError, match=r"NCSF is defined on a circle.*recalibrate_prerank"):
        from_zuko(network)
    x, y = torch.randn(20, 3), 2 * torch.rand(20, 2) - 1
    with torch.no_grad():
        flow = from_zuko(network, circular=True)
        torch.testing.assert_close(flow(x).log_prob(y), network(x).log_prob(y), rtol=1e-5, atol=1e-5)


def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after():
    network = fresh("MAF")
    for transform in network.transform.transforms:
        transform.hyper.append(nn.Dropout(0.5))
    network.train()
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    with torch.no_grad():
        assert same.different(network(x).log_prob(y), network(x).log_prob(y))  # control: it is random
        flow = from_zuko(network)
        assert network.training
        z, _ = flow.encode(y, x)
        assert same.repeated(flow.encode(y, x)[0], z)
        torch.testing.assert_close(flow.decode(z, x), y, rtol=1e-4, atol=1e-4)
    assert all(module.training for module in network.modules())


def test_gradients_dtype_and_training_are_those_of_the_model():
    network = fresh("NSF")
    flow = from_zuko(network)
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    ours, theirs = (
        torch.autograd.grad(d.log_prob(y).mean(), list(network.parameters())) for d in (flow(x), network(x))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    network.double()
    assert flow(x).sample((2,)).dtype == torch.float64
    lc.testing.check_flow_contract(flow, x.double(), y.double())


def test_answers_do_not_depend_on_the_argument_checks_of_torch():
    network = fresh("NSF")
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    before = Distribution._validate_args
    try:
        answers = []
        for checks in (True, False):
            Distribution.set_default_validate_args(checks)
            flow = from_zuko(network)
            answers.append(flow(x).log_prob(y).detach())
            assert Distribution._validate_args is checks
            with pytest.raises(ValueError, match="NaN or infinite"):
                flow(x).log_prob(y * float("nan"))
    finally:
        Distribution.set_default_validate_args(before)
    torch.testing.assert_close(*answers)


def test_a_flow_without_context_does_not_look_at_x_and_one_with_it_wants_it():
    y = torch.randn(4, 2)
    alone = from_zuko(fresh("MAF", 0))
    torch.testing.assert_close(alone(torch.zeros(4, 7)).log_prob(y), alone().log_prob(y))
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        from_zuko(fresh("MAF", 3))().log_prob(y)


WRONG = {
    "a network": (lambda: nn.Linear(2, 2), TypeError, "zuko flow such as .* got Linear"),
    "a transform": (lambda: fresh("NSF").transform, TypeError, "is a zuko transform, which has no base law"),
    "a distribution": (lambda: fresh("NSF", 0)(), TypeError, "zuko flow at one x"),
    "one of ours": (lambda: lc.flows.AutoregressiveFlow(2, 1), TypeError, "needs no adapter"),
    "a mixture": (lambda: zuko.flows.GMM(2, 0), ValueError, "Mixture.*no latent.*recalibrate_prerank"),
    "a gamma base": (
        lambda: with_base(torch.distributions.Gamma, torch.ones(2), torch.ones(2)),
        ValueError,
        "Gamma.*recalibrate_prerank",
    ),
}


@pytest.mark.parametrize(("make", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_zuko_flow_is_refused_with_a_reason(make, error, words):
    with pytest.raises(error, match=words):
        from_zuko(make())
