"""Write the pages about the tabular study from its records.

    python -m studies.tabular run misspecified convex-potential maf flow-matching --store FILE
    python -m studies.tabular run convex-potential --weights last --store FILE
    python -m studies.tabular.write_pages --store FILE

The records are copied to studies/benchmarks/results/tabular_study.jsonl.gz, those of the tuned suites
(``--tuned FILE``) to tuned_study.jsonl.gz. Without these options, the pages docs/results/tabular_study.md,
tabular_study_tables.md and tuned_flows.md and their figures are made from the copies. Figures that need
trained flows are only redrawn if the flows are in the cache.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from PIL import Image

from .bars import save
from .pages import IMAGES, SHOWN, SUITES, main_page, page_of_tables
from .panels import rank_plot
from .store import Record, Store
from .study_cells import Cells
from .study_report import draw_figures
from .tuned_pages import tuned_page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "studies" / "benchmarks" / "results"
COPY, TUNED_COPY = RESULTS / "tabular_study.jsonl.gz", RESULTS / "tuned_study.jsonl.gz"
PAGES = ROOT / "docs" / "results"
COLOURS = 256  # of a picture; fewer bytes, and no visible change


def draw(studies: Sequence[Cells]) -> None:
    """Draw the figures that the page shows: the ranks in all suites, and those of each suite."""
    target = ROOT / "docs" / IMAGES
    with tempfile.TemporaryDirectory() as folder:
        _copy(save(rank_plot(studies), Path(folder), "ranks"), target)
        for cells in studies:
            paths = draw_figures(cells, Path(folder), only=SHOWN[cells.suite], report=print)
            _copy(paths, target / cells.suite)


def _copy(paths: Iterable[Path], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.suffix == ".png":
            Image.open(path).convert("RGB").quantize(COLOURS).save(target / path.name, optimize=True)


def _all_records(path: Path) -> list[Record]:
    """Records of a file, with the failures."""
    store = Store(path)
    return [*store.failures(), *store.records()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="records to copy; by default, the last copy is used")
    parser.add_argument("--tuned", type=Path, help="the same for the records of the tuned suites")
    parser.add_argument("--no-figures", action="store_true")
    arguments = parser.parse_args()
    matplotlib.use("Agg")
    for given, copy in ((arguments.store, COPY), (arguments.tuned, TUNED_COPY)):
        if given is not None:
            Store(given).export(copy)
    found, tuned = _all_records(COPY), _all_records(TUNED_COPY)
    (PAGES / "tabular_study.md").write_text(main_page(found, tuned))
    (PAGES / "tabular_study_tables.md").write_text(page_of_tables(found))
    (PAGES / "tuned_flows.md").write_text(tuned_page(tuned, found))
    if not arguments.no_figures:
        draw([cells for cells in (Cells.of(found, name) for name in SUITES) if cells.records])


if __name__ == "__main__":
    main()
