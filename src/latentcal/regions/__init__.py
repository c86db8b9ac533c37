from .decisions import Payoff, best_action, expected_utility
from .integration import Estimate
from .membership import Box, HalfSpace, Membership
from .probability import probability

__all__ = [
    "Box",
    "Estimate",
    "HalfSpace",
    "Membership",
    "Payoff",
    "best_action",
    "expected_utility",
    "probability",
]
