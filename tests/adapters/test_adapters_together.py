"""What holds for all adapters: light to import, and recalibration works through each of them."""

import subprocess
import sys

import pytest
import torch
from torch import distributions as td

import latentcal as lc
from latentcal.adapters import (
    from_functions,
    from_nflows,
    from_normflows,
    from_pyro,
    from_sbi,
    from_torch,
    from_velocity,
    from_zuko,
)


def test_importing_the_adapters_loads_no_library_and_changes_no_global():
    script = """
import sys, torch
def settings():
    return (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.initial_seed(),
            torch.distributions.Distribution._validate_args, torch.get_rng_state().sum().item(),
            type(torch.distributions.Distribution.__dict__["arg_constraints"]))
before = settings()
import latentcal
import latentcal.adapters
for imported in (latentcal, latentcal.adapters):
    for name in ("zuko", "nflows", "normflows", "pyro", "sbi"):
        try:
            getattr(imported, "from_" + name)(torch.nn.Identity())
        except TypeError:
            continue
        raise AssertionError(name)
assert settings() == before, (before, settings())
libraries = ("zuko", "torchdiffeq", "nflows", "normflows", "pyro", "sbi")
loaded = [name for name in libraries if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def zuko_flow():
    return from_zuko(pytest.importorskip("zuko").flows.MAF(2, 3))


def torch_flow():
    def model(x):
        base = td.Independent(td.Normal(x[..., :2], 1.0), 1)
        return td.TransformedDistribution(base, [td.AffineTransform(0.0, 0.7)])

    return from_torch(model, torch.zeros(1, 3))


def velocity_flow():
    pytest.importorskip("torchdiffeq")
    return from_velocity(lambda t, q, x: x[:, :2] - 0.3 * q, 2, data_at=1)


def function_flow():
    def log_prob(y, x):
        return td.Independent(td.Normal(x[:, :2], 1.0), 1).log_prob(y)

    return from_functions(lambda y, x: y - x[:, :2], lambda z, x: z + x[:, :2], 2, log_prob=log_prob)


def nflows_flow():
    pytest.importorskip("nflows")
    from nflows import distributions, flows, transforms

    transform = transforms.MaskedAffineAutoregressiveTransform(2, 8, context_features=3)
    return from_nflows(flows.Flow(transform, distributions.StandardNormal([2])))


def normflows_flow():
    nf = pytest.importorskip("normflows")
    spline = nf.flows.AutoregressiveRationalQuadraticSpline(2, 1, 8, num_context_channels=3)
    return from_normflows(nf.ConditionalNormalizingFlow(nf.distributions.DiagGaussian(2), [spline]))


def pyro_flow():
    dist = pytest.importorskip("pyro.distributions")
    base = dist.Normal(torch.zeros(2), torch.ones(2)).to_event(1)
    spline = dist.transforms.conditional_spline_autoregressive(2, 3, [8])
    return from_pyro(dist.ConditionalTransformedDistribution(base, [spline]), torch.zeros(1, 3))


def sbi_density():
    pytest.importorskip("sbi")
    from sbi.neural_nets import posterior_nn

    build = posterior_nn("maf", hidden_features=8, num_transforms=2)
    return from_sbi(build(0.5 * torch.randn(200, 2), torch.randn(200, 3)))


def sbi_vector_field():
    pytest.importorskip("sbi")
    from sbi.neural_nets import posterior_flow_nn

    build = posterior_flow_nn(hidden_features=8, num_layers=1)
    return from_sbi(build(0.5 * torch.randn(200, 2), torch.randn(200, 3)))


MAKERS = {
    "zuko": zuko_flow,
    "torch": torch_flow,
    "velocity": velocity_flow,
    "functions": function_flow,
    "nflows": nflows_flow,
    "normflows": normflows_flow,
    "pyro": pyro_flow,
    "sbi density": sbi_density,
    "sbi vector field": sbi_vector_field,
}


N_TEST = 250


@pytest.fixture(scope="module")
def band():
    """The calibration error that one in a thousand of 20,000 sets of uniforms exceeds."""
    generator = torch.Generator().manual_seed(1)
    uniforms = torch.rand(20_000, N_TEST, generator=generator, dtype=torch.float64).sort(-1).values
    grid = torch.arange(1, N_TEST + 1) / (N_TEST + 1)
    return float(torch.quantile((uniforms - grid).abs().mean(-1), 0.999))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_recalibration_through_an_adapter_brings_the_calibration_error_into_its_band(make, band, generator):
    """Of models that are calibrated, one in a thousand fails."""
    n_test, n_cal = N_TEST, 5000
    x = torch.randn(n_cal + n_test, 3, generator=generator)
    noise = td.StudentT(4.0).sample(x[:, :2].shape)
    y = x[:, :2] + 1.5 * noise  # wider than any of the models believe, with heavier tails
    flow = make()
    model = lc.recalibrate(flow, x[:n_cal], y[:n_cal])
    with torch.no_grad():
        before, after = (
            float(lc.metrics.calibration_error(lc.latent_pit(each(x[n_cal:]), y[n_cal:])))
            for each in (flow, model)
        )
    assert after < band < before
