from .decisions import Payoff, best_action, expected_utility
from .integration import Estimate
from .membership import Box, HalfSpace, Membership
from .probability import probability
from .tails import InfiniteVarianceWarning

__all__ = [
    "Box",
    "Estimate",
    "HalfSpace",
    "InfiniteVarianceWarning",
    "Membership",
    "Payoff",
    "best_action",
    "expected_utility",
    "probability",
]
