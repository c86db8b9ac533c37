import ast
import importlib
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
    return {
        alias.name: "." * (node.level - 1) + (node.module or "") for node in imports for alias in node.names
    }


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
        found = importlib.import_module(f".{module or name}", name_of(path))
        assert getattr(package, name) is (getattr(found, name) if module else found)
        assert name in dir(package)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with a module ``parts``, which offers ``wheel``, and a submodule ``tools``."""
    folder = tmp_path / "lazy_example"
    folder.mkdir()
    (folder / "parts.py").write_text("wheel = object()")
    (folder / "tools.py").write_text("")
    (folder / "__init__.py").write_text(
        "from latentcal._internal.lazy import attach\n"
        "__getattr__, __dir__, __all__ = attach(__name__, {'parts': ['wheel']}, ['tools'])"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_example")
    for name in [name for name in sys.modules if name.startswith("lazy_example")]:
        del sys.modules[name]


def test_a_package_loads_a_module_when_a_name_of_it_is_asked_for(package):
    assert package.__all__ == ["tools", "wheel"]
    assert {"tools", "wheel"} <= set(dir(package))
    assert "lazy_example.parts" not in sys.modules
    wheel = package.wheel
    assert wheel is sys.modules["lazy_example.parts"].wheel
    assert vars(package)["wheel"] is wheel  # so the next look-up is an ordinary one
    assert "lazy_example.tools" not in sys.modules
    assert package.tools is sys.modules["lazy_example.tools"]


def test_an_unknown_name_is_an_attribute_error():
    find, _, _ = attach("latentcal.metrics", {"scores": ["energy_score"]})
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        find("nothing")


def test_a_name_that_is_also_a_module_is_refused():
    with pytest.raises(ValueError, match="rename"):
        attach("latentcal.recalibration", {"align": ["align"]})
