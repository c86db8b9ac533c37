"""Navigation of the site, in the order of a reader's questions; the changelog becomes its last page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Pages of each section, or of its parts, in order. "folder/*": the pages of a folder not named elsewhere.
SECTIONS: dict[str, str | dict[str, str]] = {
    "Start": "index start/install start/five_minutes start/*",
    "You have …": {
        "a table": (
            "tutorials/first_table tutorials/four_tables tutorials/regression how_to/own_table "
            "how_to/which_model"
        ),
        "a flow": (
            "how_to/adapters_zuko how_to/adapters_nflows how_to/adapters_normflows how_to/adapters_pyro "
            "how_to/adapters_torch how_to/adapters_velocity how_to/adapters_functions"
        ),
        "quantile forecasts": "how_to/quantile_forecasts tutorials/forecasts_of_several_days",
        "an ensemble": "how_to/ensembles tutorials/ensemble_of_a_weather_model",
        "a univariate model": "how_to/univariate_models",
        "an sbi posterior": "tutorials/correct_an_sbi_posterior how_to/adapters_sbi",
        "images": "tutorials/images how_to/images",
        "doubts": "how_to/diagnose how_to/when_the_report_says how_to/how_many_points",
    },
    "Concepts": (
        "concepts/latent_calibration concepts/base_swap concepts/radius_laws concepts/guarantee "
        "concepts/conformal_regions concepts/hdr_recalibration concepts/nll_decomposition "
        "concepts/high_dimensions concepts/beyond_one_radius concepts/when_not_to_use_it "
        "concepts/reproducibility concepts/security concepts/* concepts/glossary"
    ),
    "Guides": (
        "how_to/autocalibrate how_to/output_kinds how_to/time_order tutorials/decisions tutorials/* "
        "how_to/command_line how_to/command_line_predict how_to/command_line_files how_to/*"
    ),
    "Results": (
        "results/tabular_study results/tabular_study_tables results/tuned_flows results/advice "
        "results/advice_steps results/* trust"
    ),
    "Reference": (
        "reference/recalibration reference/calibration reference/laws reference/flow reference/regions "
        "reference/estimator reference/flows reference/adapters reference/*"
    ),
    "Extending": "extending/law extending/norm extending/flow extending/adapter extending/*",
    "Changelog": "changelog",
}


def pages(docs: Path, section: str) -> list[str]:
    """Paths of the pages of a section or of one of its parts."""
    parts = [
        part
        for entry in SECTIONS.values()
        for part in (entry.values() if isinstance(entry, dict) else [entry])
    ]
    named = {name for part in parts for name in part.split()}
    found = []
    for name in section.split():
        if name.endswith("/*"):
            others = (f"{name[:-1]}{path.stem}" for path in sorted((docs / name[:-2]).glob("*.md")))
            found += [other for other in others if other not in named]
        else:
            found.append(name)
    return [f"{name}.md" for name in found]


def navigation(docs: Path) -> list[dict[str, Any]]:
    """The sections with their pages, in the form of mkdocs; a section of one page is that page."""

    def entry(title: str, content: str | dict[str, str]) -> dict[str, Any]:
        if isinstance(content, dict):
            return {title: [entry(*part) for part in content.items()]}
        found = pages(docs, content)
        return {title: found[0] if len(found) == 1 else found}

    return [entry(*section) for section in SECTIONS.items()]


def on_config(config: Any) -> Any:
    """Set the navigation."""
    config["nav"] = navigation(Path(config["docs_dir"]))
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the changelog, which lies outside the folder of the documents."""
    from mkdocs.structure.files import File

    source = Path(config["docs_dir"]).parent / "CHANGELOG.md"
    files.append(File.generated(config, "changelog.md", abs_src_path=str(source)))
    return files
