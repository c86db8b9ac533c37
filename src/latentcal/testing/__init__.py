"""Checks of user-defined laws, flows and adapters, for any test runner."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .flow_contract import check_flow_contract as check_flow_contract, flow_checks as flow_checks
    from .law_contract import check_law_contract as check_law_contract, law_checks as law_checks

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "flow_contract": ["check_flow_contract", "flow_checks"],
        "law_contract": ["check_law_contract", "law_checks"],
    },
)
