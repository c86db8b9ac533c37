import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import latentcal
from latentcal._internal.lazy import attach

SOURCE = Path(latentcal.__file__).parent
LAZY = [path for path in sorted(SOURCE.rglob("__init__.py")) if "attach(" in path.read_text()]


def name_of(path):
    return ".".join(["latentcal", *path.parent.relative_to(SOURCE).parts])


def names_for_type_checkers(path):
    """Names imported under TYPE_CHECKING, each with the module that it comes from."""
    tree = ast.parse(path.read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    for node in imports:
        for alias in node.names:
            assert alias.asname == alias.name, f"{path}: write {alias.name} as {alias.name}"
    return {alias.name: node.module for node in imports for alias in node.names}


@pytest.mark.parametrize("path", LAZY, ids=map(name_of, LAZY))
def test_type_checkers_see_the_names_that_a_package_offers(path):
    package = importlib.import_module(name_of(path))
    eager = {
        alias.asname or alias.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(names_for_type_checkers(path)) == set(package.__all__) - eager


@pytest.mark.parametrize("path", LAZY, ids=map(name_of, LAZY))
def test_every_name_comes_from_the_module_that_the_type_checker_sees(path):
    package = importlib.import_module(name_of(path))
    for name, module in names_for_type_checkers(path).items():
        place = f"{name_of(path)}.{module}" if module else f"{name_of(path)}.{name}"
        found = importlib.import_module(place)
        assert getattr(package, name) is (getattr(found, name) if module else found)
        assert name in dir(package)


def test_a_package_loads_no_module_before_a_name_is_asked_for():
    code = (
        "import sys, latentcal.metrics as m\n"
        "before = 'latentcal.metrics.slabs' in sys.modules\n"
        "m.Slab\n"
        "print(before, 'latentcal.metrics.slabs' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "True"


def test_an_unknown_name_is_an_attribute_error():
    find, _, _ = attach("latentcal.metrics", {"scores": ["energy_score"]})
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        find("nothing")


def test_a_name_that_is_also_a_module_is_refused():
    with pytest.raises(ValueError, match="rename"):
        attach("latentcal.recalibration", {"align": ["align"]})
