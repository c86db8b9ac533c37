"""Recalibration: keeps a flow's maps and replaces its base law."""

from typing import TYPE_CHECKING

from .._internal.lazy import attach

if TYPE_CHECKING:
    from ..fingerprint import CalibrationReuseWarning as CalibrationReuseWarning
    from .alignment import Aligned as Aligned, Alignment as Alignment, align as align
    from .auto import AutoRecalibration as AutoRecalibration, autocalibrate as autocalibrate
    from .cross import (
        FlowEnsemble as FlowEnsemble,
        cross_calibrate as cross_calibrate,
        rolling_pit as rolling_pit,
    )
    from .discrete import (
        Atoms as Atoms,
        Dequantizer as Dequantizer,
        OutputAtoms as OutputAtoms,
        atoms as atoms,
    )
    from .ladder import Ladder as Ladder
    from .latent import (
        DependenceWarning as DependenceWarning,
        NLLTerms as NLLTerms,
        latent_norms as latent_norms,
        nll_decomposition as nll_decomposition,
        recalibrate as recalibrate,
    )
    from .partitions import (
        evaluate_partitions as evaluate_partitions,
        recalibrate_partitions as recalibrate_partitions,
    )
    from .prerank import (
        PrerankRecalibrated as PrerankRecalibrated,
        PrerankRecalibration as PrerankRecalibration,
        recalibrate_prerank as recalibrate_prerank,
    )
    from .prerank_distribution import PrerankDistribution as PrerankDistribution
    from .prerank_tilted import TiltedDistribution as TiltedDistribution
    from .record import (
        EffectiveSizeWarning as EffectiveSizeWarning,
        Recalibration as Recalibration,
    )
    from .row_order import AutocorrelationWarning as AutocorrelationWarning
    from .rungs import Rung as Rung
    from .shift import density_ratio as density_ratio

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".fingerprint": ["CalibrationReuseWarning"],
        "alignment": ["Aligned", "Alignment", "align"],
        "auto": ["AutoRecalibration", "autocalibrate"],
        "cross": ["FlowEnsemble", "cross_calibrate", "rolling_pit"],
        "discrete": ["Atoms", "Dequantizer", "OutputAtoms", "atoms"],
        "ladder": ["Ladder"],
        "latent": [
            "DependenceWarning",
            "NLLTerms",
            "latent_norms",
            "nll_decomposition",
            "recalibrate",
        ],
        "partitions": ["evaluate_partitions", "recalibrate_partitions"],
        "prerank": ["PrerankRecalibrated", "PrerankRecalibration", "recalibrate_prerank"],
        "prerank_distribution": ["PrerankDistribution"],
        "prerank_tilted": ["TiltedDistribution"],
        "record": ["EffectiveSizeWarning", "Recalibration"],
        "row_order": ["AutocorrelationWarning"],
        "rungs": ["Rung"],
        "shift": ["density_ratio"],
    },
)
