"""Outputs that are positive, bounded, counts, censored, missing, or have point masses."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from .atom_chances import AtomChance as AtomChance
    from .box_integrals import interval_likelihood as interval_likelihood
    from .chain import (
        ChainDistribution as ChainDistribution,
        ChainModel as ChainModel,
        OutputLaw as OutputLaw,
        fit_mixed as fit_mixed,
    )
    from .chain_flow import ChainFlow as ChainFlow
    from .conditioning import (
        ConditionedDistribution as ConditionedDistribution,
        condition as condition,
    )
    from .grid import (
        GridDistribution as GridDistribution,
        GridModel as GridModel,
        close as close,
        dequantize as dequantize,
        on_support as on_support,
        to_line as to_line,
    )
    from .incomplete import (
        as_bounds as as_bounds,
        draw_inside as draw_inside,
        fit_gaussian as fit_gaussian,
        fit_incomplete as fit_incomplete,
        recalibrate_incomplete as recalibrate_incomplete,
    )
    from .kind_guessing import (
        check_kinds as check_kinds,
        choose_links as choose_links,
        describe_kinds as describe_kinds,
        guess_cautiously as guess_cautiously,
        guess_kinds as guess_kinds,
        resolve_kinds as resolve_kinds,
    )

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "atom_chances": ["AtomChance"],
        "box_integrals": ["interval_likelihood"],
        "chain": ["ChainDistribution", "ChainModel", "OutputLaw", "fit_mixed"],
        "chain_flow": ["ChainFlow"],
        "conditioning": ["ConditionedDistribution", "condition"],
        "grid": ["GridDistribution", "GridModel", "close", "dequantize", "on_support", "to_line"],
        "incomplete": [
            *("as_bounds", "draw_inside", "fit_gaussian", "fit_incomplete", "recalibrate_incomplete"),
        ],
        "kind_guessing": [
            *("check_kinds", "choose_links", "describe_kinds"),
            *("guess_cautiously", "guess_kinds", "resolve_kinds"),
        ],
    },
)
