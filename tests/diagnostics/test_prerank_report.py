import pytest
import torch
from torch import distributions as td

import latentcal as lc
from latentcal.diagnostics import prerank_report


class Draws(td.Distribution):
    """Paths that can be sampled and have no density."""

    def __init__(self, mean, scale, correlation):
        self.law = path_law(mean, scale, correlation)
        super().__init__(mean.shape[:-1], mean.shape[-1:], validate_args=False)

    def sample(self, shape=()):
        return self.law.sample(shape)


def path_law(mean, scale, correlation):
    d = mean.shape[-1]
    distance = (torch.arange(d)[:, None] - torch.arange(d)).abs()
    return td.MultivariateNormal(mean, scale**2 * correlation ** distance.double())


def rows(n, seed, d=5):
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, dtype=torch.float64, generator=source)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return x, path_law(x.expand(n, d), 1.0, 0.7).sample()


def sampler(scale=1.0, correlation=0.7, shift=0.0):
    return lambda x: Draws(x.expand(len(x), 5) + shift, scale, correlation)


def test_a_right_model_is_rarely_accused():
    """60 sets at level 0.03: more than 8 accusations have probability 5e-5, and the seed is fixed."""
    accused = sum(bool(prerank_report(sampler(), *rows(100, seed), samples=20).found) for seed in range(60))
    assert accused <= 8


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (sampler(scale=0.6), "energy", "too narrow"),
        (sampler(scale=1.6), "energy", "too wide"),
        (sampler(shift=0.5), "mean", "too high"),
        (sampler(correlation=0.01), "dependence", "too different"),
    ],
)
def test_planted_faults_are_named(model, name, words):
    report = prerank_report(model, *rows(600, 0), thresholds=(1.0,))
    assert name in report.found
    line = next(line for line in str(report).splitlines() if line.strip().startswith(name))
    assert words in line


def test_flows_and_single_outputs_are_taken_too():
    x, y = rows(60, 0)
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(5).double(), torch.eye(5).double())
    assert "energy" in prerank_report(flow, None, y).u
    one = lc.flows.LinearGaussianFlow(None, torch.zeros(1).double(), torch.eye(1).double())
    assert list(prerank_report(one, None, y[:, :1]).u) == ["energy", "outputs"]
    with pytest.raises(ValueError, match="at least 20 rows"):
        prerank_report(flow, None, y[:5])
    with pytest.raises(TypeError, match="prerank_report"):
        lc.diagnose(sampler(), x, y)


def test_a_function_that_draws_is_tested_as_it_is():
    def draw(x, scale=1.0):
        return path_law(x.expand(len(x), 5), scale, 0.7).sample((7,))

    report = prerank_report(draw, *rows(200, 0), samples=40)
    assert not report.found
    assert "energy" in prerank_report(lambda x: draw(x, 0.6), *rows(200, 0), samples=40).found
    x, y = rows(200, 0)
    with pytest.raises(TypeError, match="from_sampler"):
        lc.recalibrate_prerank(draw, x, y)
