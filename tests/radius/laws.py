"""Every law with a density, for the tests that hold for all of them: a new law is one line."""

from collections.abc import Callable
from functools import partial

import torch

from latentcal.radius import (
    BallRadius,
    Chi,
    GammaKDE,
    GammaRadius,
    RadiusLaw,
    ScaledRadius,
    SplineRadius,
    StackedRadius,
    StudentRadius,
    TightenedRadius,
    tighten,
)
from latentcal.radius.mixture import MixtureRadius
from latentcal.radius.streaming import StreamingRadius


def fitted(fit: Callable[..., RadiusLaw], reference: RadiusLaw, *, n: int = 100) -> RadiusLaw:
    """A law fitted to n radii that vary more than the reference says."""
    median = reference.icdf(torch.tensor(0.5)) if reference.upper > 1 else 1.0
    radii = median * (reference.sample((n,), torch.Generator().manual_seed(3)) / median) ** 1.2
    return fit(radii, reference=reference)


def tightened(fit: Callable[..., RadiusLaw], reference: RadiusLaw) -> RadiusLaw:
    """The same, pulled so close to the order statistics of its radii that lambda is 0.3."""
    return fitted(lambda radii, **kw: tighten(fit(radii, **kw), radii, max_lambda=0.3), reference, n=20)


def kinks(law: RadiusLaw) -> torch.Tensor:
    """Radii at which the density has a kink, ascending; between them it is smooth."""
    if isinstance(law, SplineRadius):
        return law._breaks() ** 3
    if isinstance(law, ScaledRadius):
        return law.scale * kinks(law.reference) ** law.power
    if isinstance(law, StackedRadius):
        inner = [kinks(part) for part in law.parts]
        return torch.unique(torch.cat([torch.tensor([law._core_end()[0]], dtype=torch.float64), *inner]))
    if isinstance(law, StreamingRadius):
        return kinks(law.snapshot())
    if isinstance(law, MixtureRadius):
        return torch.unique(torch.cat([kinks(part) for part in law.parts]))
    if isinstance(law, TightenedRadius):
        knots = law.law.icdf(torch.cumsum(law.widths / law.widths.sum(), 0)[:-1])
        return torch.unique(torch.cat([knots, kinks(law.law)]))
    return torch.empty(0, dtype=torch.float64)


LAWS = {
    "chi 1": Chi(1),
    "chi 2": Chi(2),
    "chi 16": Chi(16),
    "chi 1000": Chi(1000),
    "chi 196608": Chi(196608),
    "ball 1": BallRadius(1),
    "ball 2": BallRadius(2),
    "ball 16": BallRadius(16),
    "ball 196608": BallRadius(196608),
    "gamma 1": GammaRadius(1),
    "gamma 5": GammaRadius(5),
    "gamma 196608": GammaRadius(196608),
    "student 1": StudentRadius(1, degrees_of_freedom=1.0),
    "student 2": StudentRadius(2, degrees_of_freedom=2.7),
    "student 16": StudentRadius(16, degrees_of_freedom=5),
    "student 784": StudentRadius(784, degrees_of_freedom=30),
    "student 196608": StudentRadius(196608, degrees_of_freedom=500),
    "scaled 2": ScaledRadius(Chi(2), scale=1.4),
    "scaled 1, power": ScaledRadius(Chi(1), scale=0.7, power=1.3),
    "scaled 1000, power": fitted(ScaledRadius.fit, Chi(1000)),
    "scaled 196608, power": ScaledRadius(Chi(196608), scale=1.1, power=0.5),
    "scaled ball 2": fitted(ScaledRadius.fit, BallRadius(2)),
    "scaled student 2": fitted(ScaledRadius.fit, StudentRadius(2, degrees_of_freedom=3)),
    "gamma_kde 1": fitted(GammaKDE.fit, Chi(1)),
    "gamma_kde 16": fitted(GammaKDE.fit, Chi(16)),
    "gamma_kde 196608": fitted(GammaKDE.fit, Chi(196608)),
    "gamma_kde interval": fitted(GammaKDE.fit, BallRadius(1)),
    "spline 2": fitted(SplineRadius.fit, Chi(2), n=40),
    "spline 196608": fitted(SplineRadius.fit, Chi(196608), n=20),
    "spline interval": fitted(SplineRadius.fit, BallRadius(1), n=20),
    "stacked 1": fitted(StackedRadius.fit, Chi(1)),
    "stacked 2": fitted(StackedRadius.fit, Chi(2)),
    "stacked 16": fitted(StackedRadius.fit, Chi(16)),
    "stacked 1000": fitted(StackedRadius.fit, Chi(1000)),
    "stacked 196608": fitted(StackedRadius.fit, Chi(196608)),
    "stacked ball 16": fitted(StackedRadius.fit, BallRadius(16)),
    "stacked interval": fitted(StackedRadius.fit, BallRadius(1)),
    "stacked gamma 5": fitted(StackedRadius.fit, GammaRadius(5)),
    "stacked student 2": fitted(StackedRadius.fit, StudentRadius(2, degrees_of_freedom=2.7)),
    "stacked twice": fitted(StackedRadius.fit, fitted(StackedRadius.fit, Chi(3))),
    "streaming, unused": StreamingRadius(Chi(3)),
    "streaming 1": fitted(StreamingRadius.fit, Chi(1), n=500),
    "streaming 2, window": fitted(partial(StreamingRadius.fit, window=60), Chi(2)),
    "streaming 16, power": fitted(partial(StreamingRadius.fit, half_life=3000), Chi(16), n=5000),
    "streaming 196608": fitted(StreamingRadius.fit, Chi(196608)),
    "streaming student 2": fitted(StreamingRadius.fit, StudentRadius(2, degrees_of_freedom=2.7)),
    "streaming ball 16": fitted(StreamingRadius.fit, BallRadius(16)),
    "streaming interval": fitted(partial(StreamingRadius.fit, window=300), BallRadius(1), n=300),
    "streaming of stacked": fitted(StreamingRadius.fit, fitted(StackedRadius.fit, Chi(3))),
    "tightened spline 2": tightened(SplineRadius.fit, Chi(2)),
    "tightened stacked 196608": tightened(StackedRadius.fit, Chi(196608)),
    "tightened stacked interval": tightened(StackedRadius.fit, BallRadius(1)),
}
