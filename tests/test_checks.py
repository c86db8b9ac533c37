import copy
import math

import pytest
import torch
from torch import nn

import latentcal as lc
import same
from latentcal.base import standard_normal, uniform_ball
from latentcal.checks import PROMISES, check_flow
from latentcal.flows import LinearGaussianFlow, Standardized
from latentcal.radius import Chi
from toys import NormalCDFFlow, SinhFlow, scaled_gaussian


def _data(generator, n=40, d=2, dtype=torch.float64):
    return (torch.randn(n, d, generator=generator).to(dtype) for _ in range(2))


CONTRACT = dict(zip(PROMISES, lc.testing.flow_checks(), strict=True))


def _failed(report):
    return [check.name for check in report.checks if check.passed is False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sound_flows_pass(dtype, generator):
    x, y = _data(generator, dtype=dtype)
    linear = LinearGaussianFlow.fit(x, y)
    flows = (
        SinhFlow(2, dtype=dtype),
        linear,
        Standardized(SinhFlow(2, dtype=dtype), y.mean(0), y.std(0), x.mean(0), x.std(0)),
    )
    for flow in flows:
        report = check_flow(flow, x, y)
        assert report.passed, str(report)
        assert report.require() is report
        assert all(check.passed for check in report.checks)
    assert check_flow(scaled_gaussian(2, 1.0, dtype), None, y).passed
    assert check_flow(NormalCDFFlow(1.0), x[:, :1], y[:, :1]).passed


class _Wrong(SinhFlow):
    """A sound flow with one fault."""

    def __init__(self, fault, base=None):
        super().__init__(2, base)
        self.fault, self.calls, self.cache = fault, 0, []
        self.dropout = nn.Dropout()

    def with_base(self, base):
        return (
            copy.deepcopy(super().with_base(base)) if self.fault == "copied maps" else super().with_base(base)
        )

    def encode(self, y, x=None):
        if self.fault == "in place":
            y += 1.0
        if self.fault == "modes":
            self.dropout.eval()
        if self.fault == "counter":
            self.weight.data += 1e-9
        if self.fault == "global random state":
            torch.rand(1)
        if self.fault == "broadcast" and y.dim() > 2:
            raise RuntimeError("cannot broadcast")
        if self.fault == "one_y" and len(y) != len(x):
            raise RuntimeError("cannot broadcast either")
        z, log_abs_det = super().encode(y, x)
        self.calls += 1
        if self.fault == "log_det":
            log_abs_det = log_abs_det + 0.01
        if self.fault == "elementwise":
            log_abs_det = -torch.log1p(y**2) / 2
        if self.fault == "nan":
            z = torch.where(torch.arange(len(z))[:, None] == 3, math.nan, z)
        if self.fault == "random":
            z = z + 1e-3 * self.calls
        if self.fault == "nan_later" and self.calls > 1:
            log_abs_det = log_abs_det * math.nan
        if self.fault == "own base":
            z = z * (1.0 if isinstance(self.base.radius, Chi) else 1.01)
        if self.fault == "batch":
            z = z - 1e-2 * z.mean(0)
        if self.fault == "far":
            z = 100 * z
            log_abs_det = log_abs_det + 2 * math.log(100)
        if self.fault == "detached":
            z = z.detach()
        if self.fault == "dropout":
            z = self.dropout(z)
        self.cache.append((z, y))
        return z, log_abs_det

    def decode(self, z, x=None):
        for cached, y in self.cache:
            if z is cached:
                return y
        if self.fault == "far":
            z = z / 100
        if self.fault == "noise":
            z = z + 1e-3 * torch.randn_like(z)
        if self.fault == "overflow":
            return super().decode(z, x) * math.inf
        y = super().decode(z, x) * (1.01 if self.fault == "inverse" else 1.0)
        return y.float() if self.fault == "narrower" else y


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("log_det", ["log|det| against autograd"]),
        ("inverse", ["round trip of y", "round trip of base draws"]),
        ("random", ["repeats itself"]),
        ("nan_later", ["repeats itself"]),
        ("batch", ["batch independence"]),
        ("far", ["base law"]),
        ("broadcast", ["extra sample dims"]),
        ("one_y", ["one y for all x"]),
        ("elementwise", ["shapes"]),
        ("nan", ["finite"]),
        ("overflow", ["round trip of base draws"]),
        ("noise", ["samples"]),
        ("narrower", ["samples"]),
        ("copied maps", ["another base"]),
        ("own base", ["another base"]),
        ("in place", ["leaves the model alone"]),
        ("modes", ["leaves the model alone"]),
        ("counter", ["leaves the model alone"]),
        ("global random state", ["leaves the model alone"]),
    ],
)
def test_each_fault_is_found_by_its_check(fault, expected, generator):
    x, y = _data(generator)
    report = check_flow(_Wrong(fault), x, y)
    assert not report.passed
    assert set(expected) <= set(_failed(report)), str(report)
    with pytest.raises(ValueError, match="fails these checks") as error:
        report.require()
    assert expected[0] in str(error.value)
    assert "FAILED" in str(error.value)
    assert " ok " not in str(error.value)
    assert PROMISES[expected[0]] in str(error.value)
    for name in expected:
        with pytest.raises(AssertionError, match=r"_Wrong: The flow fails these checks:\n"):
            CONTRACT[name](_Wrong(fault), x, y)


def test_every_promise_has_a_check_and_a_sound_flow_passes_each(generator):
    x, y = _data(generator)
    flow = SinhFlow(2)
    log_prob = flow(x).log_prob(y)
    for check in lc.testing.flow_checks():
        check(flow, x, y, log_prob=log_prob)
    lc.testing.check_flow_contract(flow, x, y, log_prob=log_prob)
    with pytest.raises(AssertionError, match=r"density of the model +FAILED .* 1e-08"):
        lc.testing.check_flow_contract(flow, x, y, log_prob=log_prob + 1e-6)
    with pytest.raises(AssertionError, match=r"log_prob is \(39,\), the flow's \(40,\)"):
        lc.testing.check_flow_contract(flow, x, y, log_prob=log_prob[1:])


def test_single_checks_are_asked_for_by_name(generator):
    x, y = _data(generator)
    report = check_flow(_Wrong("log_det"), x, y, only=["finite", "samples"])
    assert [check.name for check in report.checks] == ["finite", "samples"]
    assert report.passed
    with pytest.raises(ValueError, match="No check is named 'sample'; did you mean 'samples'"):
        check_flow(SinhFlow(2), x, y, only=["sample"])


def test_a_wrong_inverse_behind_a_cache_is_found(generator):
    x, y = _data(generator)
    flow = _Wrong("inverse")
    z, _ = flow.encode(y, x)
    assert flow.decode(z, x) is y  # the cache hides the fault from whoever does not clone
    assert "round trip of y" in _failed(check_flow(flow, x, y))


def test_latents_outside_the_support_are_found(generator):
    x, y = _data(generator)
    report = check_flow(_Wrong("none", uniform_ball(2)), x, y)
    (check,) = [check for check in report.checks if check.name == "base law"]
    assert check.passed is False
    assert "latent norms lie outside [0, 1]" in check.detail


def test_modules_are_checked_in_evaluation_mode_and_left_as_they_were(generator):
    x, y = _data(generator)
    flow = _Wrong("dropout")
    assert check_flow(flow, x, y).passed
    assert flow.training
    assert flow.dropout.training


def test_what_cannot_be_checked_is_not_tried(generator):
    x, y = _data(generator)
    report = check_flow(_Wrong("detached"), x, y)
    assert report.passed
    assert "encode has no gradient" in str(report)
    y = torch.randn(5, 65, generator=generator)
    report = check_flow(scaled_gaussian(65, 1.0, torch.float32), None, y)
    assert report.passed
    assert "d = 65 is above 64" in str(report)
    assert str(report).endswith("All 12 checks passed, 1 could not be tried.")
    rest = [check.passed for check in check_flow(_Wrong("elementwise"), x, x).checks[1:]]
    assert set(rest) == {None}


def test_the_report_is_a_table_with_a_verdict(generator, capsys):
    x, y = _data(generator)
    report = check_flow(SinhFlow(2), x, y)
    lines = str(report).splitlines()
    assert lines[0].split() == ["check", "error", "allowed"]
    assert lines[1].split() == ["shapes", "ok"]
    assert len(lines) == 2 + len(report.checks)
    assert lines[-1] == "All 13 checks passed."
    wrong = str(check_flow(_Wrong("log_det"), x, y))
    assert wrong.endswith("1 of 13 checks failed: log|det| against autograd.")
    assert capsys.readouterr().out == ""


def test_the_tolerance_is_the_users(generator):
    x, y = _data(generator)
    assert check_flow(_Wrong("log_det"), x, y, tolerance=0.1).passed


def test_the_global_source_of_randomness_is_left_alone(generator):
    x, y = _data(generator)
    state = torch.get_rng_state()
    check_flow(SinhFlow(2), x, y)
    assert same.drawn(state, torch.get_rng_state())


def test_data_of_the_wrong_shape_are_refused(generator):
    x, y = _data(generator)
    with pytest.raises(ValueError, match=r"check_flow needs y of shape \(n, d\), got \(1, 40, 2\)"):
        check_flow(SinhFlow(2), x, y[None])
    with pytest.raises(ValueError, match="y has 3 outputs"):
        check_flow(SinhFlow(2), x, torch.zeros(40, 3))


def test_a_base_of_another_scale_within_a_factor_of_ten_is_not_a_fault(generator):
    y = torch.randn(100, 2, generator=generator).double()
    assert check_flow(scaled_gaussian(2, 0.2), None, y).passed
    assert not check_flow(scaled_gaussian(2, 0.01), None, y).passed
    assert check_flow(scaled_gaussian(2, 0.01).with_base(standard_normal(2)), None, y / 100).passed
