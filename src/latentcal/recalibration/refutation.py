"""Do norms contradict the law that a model assumes for them? An exact test that looks at the far tail."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metrics import uniformity_test
from ..radius.law import RadiusLaw

_LARGEST = 3


def contradiction(radii: Tensor, law: RadiusLaw) -> float:
    r"""p-value of the hypothesis that radii (n,) are independent draws from a law.

    .. math:: p = \min\Bigl(1, 4 \min\bigl(p_\text{KS},
              P(N_{r_{(n)}} \ge 1), P(N_{r_{(n-1)}} \ge 2), P(N_{r_{(n-2)}} \ge 3)\bigr)\Bigr), \qquad
              N_r \sim \operatorname{Binomial}(n, 1 - F(r))

    Kolmogorov and Smirnov's test sees what most of the radii say; the three largest are where an
    overconfident model loses its likelihood, and where that test is blind. The factor pays for looking four
    times.
    """
    from scipy.stats import binom

    n = len(radii)
    largest = radii.topk(min(_LARGEST, n)).values
    beyond = torch.exp(law.log_sf(largest))
    tails = [float(binom.sf(count, n, float(share))) for count, share in enumerate(beyond)]
    bulk = uniformity_test(law.cdf(radii).clamp(0, 1)).p_value
    return min(1.0, (1 + _LARGEST) * min(float(bulk), *tails))
