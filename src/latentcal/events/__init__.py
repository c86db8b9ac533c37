"""Events: sets of outputs, their probabilities, and decisions by expected utility."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .decisions import (
        Payoff as Payoff,
        best_action as best_action,
        expected_utility as expected_utility,
    )
    from .integration import Estimate as Estimate, InfiniteVarianceWarning as InfiniteVarianceWarning
    from .sets import (
        Box as Box,
        HalfSpace as HalfSpace,
        Maximum as Maximum,
        Membership as Membership,
        Sum as Sum,
        probability as probability,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "decisions": ["Payoff", "best_action", "expected_utility"],
        "integration": ["Estimate", "InfiniteVarianceWarning"],
        "sets": ["Box", "HalfSpace", "Maximum", "Membership", "Sum", "probability"],
    },
)
