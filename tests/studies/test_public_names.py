"""The studies use the library as anybody could: public names of public namespaces, and nothing else."""

import ast
import importlib
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

import pytest

import latentcal

STUDIES = Path(__file__).parents[2] / "studies"
NAMESPACES = [name for name in latentcal.__all__ if isinstance(getattr(latentcal, name), ModuleType)]
PUBLIC = ("latentcal", *(f"latentcal.{name}" for name in NAMESPACES))


def is_public(module: str, name: str) -> bool:
    """Whether a public namespace has this among its public names."""
    if module not in PUBLIC:
        return False
    return name in importlib.import_module(module).__all__


def private_uses(source: str, package: str = "") -> list[str]:
    """What a file, of a package within latentcal or of none, takes from latentcal beside public names."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.name.split(".")[0] == "latentcal"]
            found += [module for module in modules if module not in PUBLIC]
        elif isinstance(node, ast.ImportFrom):
            module = str(node.module)
            if node.level and package:
                module = resolve_name("." * node.level + (node.module or ""), package)
            if module.split(".")[0] != "latentcal" or (package and module.startswith(package)):
                continue
            names = [(module, alias.name) for alias in node.names]
            found += [f"{module}.{name}" for module, name in names if not is_public(module, name)]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lc":
            found += [f"lc.{node.attr}"] if not is_public("latentcal", node.attr) else []
    return found


@pytest.mark.parametrize("part", ["tabular", "images", "benchmarks"])
def test_a_study_imports_only_public_names_of_the_library(part):
    files = sorted((STUDIES / part).rglob("*.py"))
    assert files
    uses = {path.relative_to(STUDIES).as_posix(): private_uses(path.read_text("utf-8")) for path in files}
    assert {path: names for path, names in uses.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from latentcal.flows.tuning import _seeded",
        "from latentcal._internal.numerics import log1mexp",
        "from latentcal import _version",
        "from latentcal.flows import grid_search",
        "import latentcal.radius.law",
        "import latentcal as lc\nlc._version",
    ],
)
def test_the_check_sees_a_private_name(line):
    assert len(private_uses(line)) == 1
    assert private_uses("import latentcal as lc\nfrom latentcal.flows import TarFlow\nlc.splits.split") == []


def test_the_command_line_uses_public_names_and_helpers_that_know_nothing_of_models():
    """Of ``_internal`` it shares files, tables, names, messages and sizes, and the folder of its card."""
    helpers = ("atomic_files", "chunks", "columns", "gaps", "hints", "model_folder", "names", "optional")
    helpers += ("progress_bar", "table_files", "wording")
    allowed = ("latentcal._version.", *(f"latentcal._internal.{name}." for name in helpers))
    files = sorted((STUDIES.parent / "src" / "latentcal" / "cli").glob("*.py"))
    assert files
    uses = {path.name: private_uses(path.read_text("utf-8"), "latentcal.cli") for path in files}
    strange = {file: [name for name in names if not name.startswith(allowed)] for file, names in uses.items()}
    assert {file: names for file, names in strange.items() if names} == {}


def test_the_check_sees_a_private_name_of_the_package_itself():
    wrong = "from .._internal.numerics import log1mexp\nfrom ..flows.tuning import GRIDS"
    assert len(private_uses(wrong, "latentcal.cli")) == 2
    assert private_uses("from .options import seed\nfrom ..flows import GRIDS", "latentcal.cli") == []


def test_the_library_knows_nothing_of_the_studies():
    library = STUDIES.parent / "src" / "latentcal"
    assert [path for path in library.rglob("*.py") if "import studies" in path.read_text("utf-8")] == []
    assert [path for path in library.rglob("*.py") if "from studies" in path.read_text("utf-8")] == []
