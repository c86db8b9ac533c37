"""What holds for every law of a radius, whatever its formula; and wrong laws, which each check must find."""

import math

import pytest
import torch
from laws import LAWS, kinks

import latentcal as lc
from latentcal.radius import Chi, EmpiricalRadius, RadiusLaw
from latentcal.radius.law import as_float64


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS.keys())
def test_a_law_keeps_its_contract(law, generator):
    """The check of samples fails for one correct law in a million."""
    lc.testing.check_law_contract(law, kinks=kinks(law), generator=generator)


class PlainChi(RadiusLaw):
    """The chi law as a user may write it, sound."""

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        self.dim = dim

    def log_prob(self, r):
        r = as_float64(r)
        constant = (1 - self.dim / 2) * math.log(2) - math.lgamma(self.dim / 2)
        value = constant + torch.xlogy(self.dim - 1, r.clamp(min=0)) - r**2 / 2
        return value.masked_fill((r < 0) | torch.isposinf(r), -math.inf)

    def log_cdf(self, r):
        return Chi(self.dim).log_cdf(r)

    def log_sf(self, r):
        return Chi(self.dim).log_sf(r)


class Unnormalised(PlainChi):
    def log_prob(self, r):
        return super().log_prob(r) + 1e-4


class OtherDensity(PlainChi):
    """Integrates to 1, but belongs to another distribution function."""

    def log_prob(self, r):
        return Chi(self.dim + 1).log_prob(r)


class RoughQuantiles(PlainChi):
    def icdf_log_tails(self, log_cdf, log_sf):
        return super().icdf_log_tails(log_cdf, log_sf) * (1 + 1e-7)


class SwappedTails(PlainChi):
    def log_tails(self, r):
        return self.log_sf(r), self.log_cdf(r)


class OtherCdf(PlainChi):
    """Its cdf does not belong to its log_cdf."""

    def cdf(self, r):
        return Chi(self.dim + 1).cdf(r)


class HalfOpen(PlainChi):
    """Mirrors negative radii."""

    def log_cdf(self, r):
        return super().log_cdf(as_float64(r).abs())


class NanAtTheOrigin(PlainChi):
    def log_prob(self, r):
        r = as_float64(r)
        return super().log_prob(r) + 0.0 * r.log()


class WrongPower(PlainChi):
    def log_radial_density(self, r, dim):
        return super().log_radial_density(r, dim + 1)


class Detached(PlainChi):
    def log_cdf(self, r):
        return super().log_cdf(r).detach()


class WideSamples(PlainChi):
    def sample(self, shape=(), generator=None):
        return 1.05 * super().sample(shape, generator)


class GlobalSamples(PlainChi):
    def sample(self, shape=(), generator=None):
        return super().sample(shape)


class InDtypeOfRadii(PlainChi):
    def log_prob(self, r):
        return super().log_prob(r).to(r.dtype)


class Rounded(PlainChi):
    """Lets its number be cast with the model."""

    def __init__(self, dim: int = 3, scale: float = 1.1) -> None:
        super().__init__(dim)
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float64))

    def _apply(self, fn, recurse=True):
        return torch.nn.Module._apply(self, fn, recurse)


class AnyProbability(PlainChi):
    def icdf(self, u):
        return super().icdf(torch.as_tensor(u).nan_to_num(0.5).clamp(0, 1))


class HiddenState(PlainChi):
    """Does not keep what it was made of."""

    def __init__(self, degrees: int) -> None:
        super().__init__(degrees + 1)


WRONG = {
    "check_density_integrates_to_one": Unnormalised(),
    "check_density_is_slope_of_cdf": OtherDensity(),
    "check_quantiles_invert_tails": RoughQuantiles(),
    "check_both_tails_at_once": SwappedTails(),
    "check_tails_add_up_to_one": OtherCdf(),
    "check_support": HalfOpen(),
    "check_no_nan": NanAtTheOrigin(),
    "check_radial_density": WrongPower(),
    "check_derivatives": Detached(),
    "check_samples_follow_cdf": WideSamples(),
    "check_sample_shape_and_seed": GlobalSamples(),
    "check_shapes_and_float64": InDtypeOfRadii(),
    "check_casting_does_not_round": Rounded(),
    "check_wrong_probabilities_are_refused": AnyProbability(),
    "check_save_and_load": HiddenState(3),
}


@pytest.mark.parametrize("check", lc.testing.law_checks())
def test_each_check_finds_a_wrong_law(check):
    check(PlainChi())
    with pytest.raises(AssertionError, match=rf"{check.__name__}, {type(WRONG[check.__name__]).__name__}: "):
        check(WRONG[check.__name__])


def test_the_contract_names_all_that_failed_with_what_came_and_what_to_do():
    with pytest.raises(AssertionError) as error:
        lc.testing.check_law_contract(Unnormalised())
    first, integral, slope, *_ = str(error.value).splitlines()
    assert first.endswith("of 15 checks failed.")
    assert "Expected exp(log_prob) to integrate to 1; the integral is 1.0001" in integral
    assert "Make log_prob, log_cdf and log_sf describe one law" in integral
    assert "instead of 1 at" in slope
    with pytest.raises(AssertionError, match=r"NotImplementedError: .*step function"):
        lc.testing.check_law_contract(EmpiricalRadius.fit(torch.linspace(0.5, 2, 30)))
    with pytest.raises(TypeError, match="Expected a RadiusLaw, got Tensor"):
        lc.testing.check_law_contract(torch.ones(2))


def test_a_law_that_depends_on_x_is_checked_at_one_x(generator):
    x = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    radii = Chi(2).sample((200,), generator) * torch.exp(0.3 * x[:, 0])
    law = lc.ConditionalRadius.fit(lc.CalibrationSample(radii, Chi(2), x=x)).given(x[0])
    for check in lc.testing.law_checks():
        check(law, generator=generator)


def test_a_law_is_not_called_like_a_layer():
    with pytest.raises(TypeError, match="use log_prob, cdf, icdf or sample"):
        Chi(2)(torch.ones(1))
