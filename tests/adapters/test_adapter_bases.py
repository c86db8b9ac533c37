import math

import pytest
import torch
from torch import distributions as td

import latentcal as lc
from latentcal.adapters import read_base
from latentcal.adapters.bases import FixedBase

LOC = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
SCALE = torch.tensor([0.5, 3.0, 2.0], dtype=torch.float64)
FACTOR = torch.tensor([[2.0, 0, 0], [0.5, 1.0, 0], [-1.0, 0.3, 0.7]], dtype=torch.float64)


class MultivariateStudentT(td.Distribution):
    """As pyro's, by its attributes."""

    def __init__(self, df, loc, scale_tril):
        self.df, self.loc, self.scale_tril = df, loc, scale_tril
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    def log_prob(self, value):
        whitened = torch.linalg.solve_triangular(self.scale_tril, (value - self.loc)[..., None], upper=False)
        d, nu = self.loc.shape[-1], self.df
        constant = torch.lgamma((nu + d) / 2) - torch.lgamma(nu / 2) - d / 2 * torch.log(nu * math.pi)
        square = (whitened[..., 0] ** 2).sum(-1)
        return constant - self.scale_tril.diagonal().log().sum() - (nu + d) / 2 * torch.log1p(square / nu)


BASES = {
    "normal": td.Independent(td.Normal(LOC, SCALE), 1),
    "full normal": td.MultivariateNormal(LOC, scale_tril=FACTOR),
    "low-rank normal": td.LowRankMultivariateNormal(LOC, FACTOR[:, :1], SCALE),
    "box": td.Independent(td.Uniform(LOC - SCALE, LOC + 2 * SCALE), 1),
    "laplace": td.Independent(td.Laplace(LOC, SCALE), 1),
    "multivariate t": MultivariateStudentT(torch.tensor(4.0, dtype=torch.float64), LOC, FACTOR),
    "one t": td.Independent(td.StudentT(4.0, LOC[:1], SCALE[:1]), 1),
    "conditional normal": td.Independent(td.Normal(LOC + torch.arange(9.0).reshape(9, 1), SCALE), 1),
}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES.keys())
def test_a_standardised_base_has_the_density_of_the_base(base, generator):
    points = LOC + 0.4 * torch.randn(9, 3, generator=generator, dtype=torch.float64)
    points = points[:, : base.event_shape[0]]
    affine = read_base(base)
    z, log_abs_det = affine.standardize(points)
    torch.testing.assert_close(
        affine.kind.radial().log_prob(z) + log_abs_det, base.log_prob(points), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(affine.restore(z), points)


def test_without_standardising_the_density_of_a_base_would_be_wrong():
    base = BASES["normal"]
    naive = lc.base.standard_normal(3).log_prob(LOC)
    assert abs(float(naive - base.log_prob(LOC))) > 1


def test_draws_of_a_cube_stay_inside_it():
    affine = read_base(BASES["box"])
    assert affine.kind.family == "cube"
    z, _ = affine.standardize(BASES["box"].sample((1000,)))
    assert float(z.abs().max()) <= 1


REFUSED = {
    "independent t": (td.Independent(td.StudentT(3.0, LOC, SCALE), 1), "StudentT.*not radial"),
    "gamma": (td.Independent(td.Gamma(SCALE, SCALE), 1), "Gamma"),
    "mixture": (
        td.MixtureSameFamily(
            td.Categorical(torch.ones(2)), td.Independent(td.Normal(torch.zeros(2, 3), 1), 1)
        ),
        "MixtureSameFamily",
    ),
    "t of many kinds": (
        MultivariateStudentT(torch.tensor([3.0, 4.0]), LOC.expand(2, 3), FACTOR.expand(2, 3, 3)),
        "degrees of freedom differ",
    ),
}


@pytest.mark.parametrize(("base", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_base_that_is_not_radial_is_refused_with_its_name_and_another_way(base, words):
    with pytest.raises(ValueError, match=words) as error:
        read_base(base)
    assert "recalibrate_prerank" in str(error.value)


def test_outputs_in_the_batch_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"Independent\(base, 1\)"):
        read_base(td.Normal(LOC, SCALE))
    with pytest.raises(TypeError, match="torch distribution or a RadialBase, got Tensor"):
        read_base(LOC)


def test_a_fixed_base_must_have_the_dimension_of_the_model():
    with pytest.raises(ValueError, match="The base has 3 dimensions, but the model has dim=2"):
        FixedBase.of(BASES["normal"], 2)
    assert FixedBase.of(None, 2).radial.dim == 2
