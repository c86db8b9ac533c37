"""What holds for all adapters: light to import, and recalibration works through each of them."""

import subprocess
import sys

import pytest
import torch
from torch import distributions as td

import latentcal as lc
from latentcal.adapters import from_functions, from_torch, from_velocity, from_zuko


def test_importing_the_adapters_loads_no_library_and_changes_no_global():
    script = """
import sys, torch
def settings():
    return (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.initial_seed(),
            torch.distributions.Distribution._validate_args, torch.get_rng_state().sum().item(),
            type(torch.distributions.Distribution.__dict__["arg_constraints"]))
before = settings()
import latentcal.adapters
try:
    latentcal.adapters.from_zuko(torch.nn.Identity())
except TypeError:
    pass
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


MAKERS = {"zuko": zuko_flow, "torch": torch_flow, "velocity": velocity_flow, "functions": function_flow}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_recalibration_through_an_adapter_brings_the_calibration_error_into_its_band(make, generator):
    n_test, n_cal = 250, 5000
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
    # Of 20,000 sets of uniforms one in a thousand is beyond: the failure rate of a calibrated model.
    uniforms = torch.rand(20_000, n_test, generator=generator, dtype=torch.float64).sort(-1).values
    grid = torch.arange(1, n_test + 1) / (n_test + 1)
    band = float(torch.quantile((uniforms - grid).abs().mean(-1), 0.999))
    assert after < band < before
