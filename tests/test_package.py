"""What holds for the package as a whole: light to import, layered, every public name documented."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import latentcal as lc

PACKAGE = Path(lc.__file__).parent
OPTIONAL = [
    "zuko",
    "torchdiffeq",
    "sklearn",
    "pandas",
    "matplotlib",
    "click",
    "pyarrow",
    "pooch",
    "dask",
    "optuna",
    "nflows",
    "normflows",
    "pyro",
    "sbi",
]

# Lower layers first; a module imports from its own layer or below, whether at once, inside a function or for
# type checkers alone. What ALLOWED names imports nothing else.
LAYERS = [
    {"_version", "_internal"},
    {"metrics", "plots", "toy"},
    {"norms", "radius"},
    {"base"},
    {"transport"},
    {"fingerprint", "flow"},
    {"preranks", "pit", "checks", "flows", "adapters"},
    {"events", "recalibration", "conformal", "outputs"},
    {"model_classes", "model_schema", "files", "preprocessing", "tables", "splits"},
    {"diagnostics", "estimator", "testing"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ALLOWED = {
    "_internal": {"_version"},
    "metrics": {"_internal"},
    "plots": {"_internal", "metrics"},
    "toy": {"_internal"},
    "fingerprint": {"_internal"},
    "preprocessing": {"_internal"},
    "tables": {"_internal", "preprocessing"},
    "splits": {"_internal", "preprocessing", "tables"},
}
# Private names of others that are used: of named tuples, of torch and of libraries that offer no public way.
FOREIGN = {
    ("", "_replace"),
    ("flow.py", "_parameters"),
    ("flow.py", "_buffers"),
    ("files.py", "_parameters"),
    ("files.py", "_buffers"),
    ("radius/gamma_kde.py", "_standard_gamma"),
    ("flows/autoregressive.py", "_validate_args"),
    ("flows/trees.py", "_baseline_prediction"),
    ("flows/trees.py", "_predictors"),
    ("adapters/torch_distributions.py", "_InverseTransform"),
    ("adapters/nflows_flows.py", "_compute_params"),
    ("adapters/nflows_flows.py", "_distribution"),
    ("adapters/nflows_flows.py", "_embedding_net"),
    ("adapters/nflows_flows.py", "_shape"),
    ("adapters/sbi_models.py", "_theta_scale"),
    ("adapters/sbi_models.py", "_theta_shift"),
}


def imported_modules(path: Path) -> set[str]:
    """First-level modules of latentcal that a file imports."""
    package = ["latentcal", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            full = [*start, *(node.module.split(".") if node.module else [])]
            names = [full] if len(full) > 1 else [[*full, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        else:
            continue
        found |= {name[1] for name in names if name[0] == "latentcal" and len(name) > 1}
    return found


def violations(files: dict[str, set[str]]) -> list[str]:
    wrong = []
    for module, imports in files.items():
        for other in imports - {module}:
            if other not in ALLOWED.get(module, LEVEL) or LEVEL[other] > LEVEL[module]:
                wrong.append(f"{module} imports {other}")
    return wrong


def test_imports_go_one_way_through_the_layers():
    files: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top != "__init__":
            files.setdefault(top, set()).update(imported_modules(path))
    assert set(files) <= set(LEVEL), "a new module needs its layer"
    assert violations(files) == []


def test_the_layer_check_sees_a_wrong_import():
    assert violations({"_internal": {"flow"}}) == ["_internal imports flow"]
    assert violations({"metrics": {"_internal", "norms"}}) == ["metrics imports norms"]


def private_names(source: str) -> list[str]:
    """Private names that a file uses and does not define; what an object or class inherits is its own."""
    tree = ast.parse(source)
    defined, used = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            defined.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_buffer"):
            defined.add(ast.unparse(node.args[0]).strip("'"))
        elif isinstance(node, ast.ImportFrom):
            used += [alias.name for alias in node.names if alias.name not in ("_internal", "_version")]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls", "super()"):
            used.append(node.attr)
    return [name for name in used if name.startswith("_") and not name.endswith("__") and name not in defined]


def test_no_module_uses_the_private_names_of_another():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        found |= {(file, name) for name in private_names(path.read_text(encoding="utf-8"))}
    anywhere = {name for file, name in FOREIGN if not file}
    found = {("" if name in anywhere else file, name) for file, name in found}
    assert found - FOREIGN == set()
    assert FOREIGN - found == set(), "no longer used"


@pytest.mark.parametrize(
    "lines", ["from .law import _tied", "law._table", "module._f()", "self.law._table", "from . import _law"]
)
def test_the_check_sees_a_private_name_of_another_module(lines):
    assert len(private_names(lines)) == 1
    own = "self._inherited\nself._table = 1\nlaw._table\n_f()\nfrom .._internal import chunks"
    assert private_names(own) == []


def test_importing_loads_nothing_heavy():
    script = """
import sys, latentcal
heavy = {"torch", "numpy", "scipy"} & set(sys.modules)
assert not heavy, heavy
latentcal.metrics, latentcal.recalibration, latentcal.estimator
heavy = {"torch", "numpy", "scipy"} & set(sys.modules)
assert not heavy, heavy
latentcal.radius.Chi
assert "torch" in sys.modules and "latentcal.conformal.region" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_first_recalibration_needs_no_scipy():
    """Its import would take as long as the recalibration."""
    script = """
import sys, torch, latentcal as lc
flow = lc.flows.LinearGaussianFlow(torch.zeros(3, 2), torch.zeros(3), torch.eye(3))
x, y = torch.randn(300, 2), 1.3 * torch.randn(300, 3)
model = lc.recalibrate(flow, x, y)
model(x).log_prob(y)
assert "scipy" not in sys.modules
flow(x).sample((2,))
assert "scipy" in sys.modules  # the check can fail
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_importing_loads_nothing_optional_and_changes_no_global():
    script = f"""
import sys, warnings, torch
def settings():
    return (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.initial_seed(),
            torch.distributions.Distribution._validate_args, torch.get_rng_state().sum().item(),
            torch.are_deterministic_algorithms_enabled(), len(warnings.filters))
before = settings()
import latentcal
for name in latentcal.__all__:
    if name not in ("FlowRegressor", "estimator"):
        getattr(latentcal, name)
assert settings() == before, (before, settings())
loaded = [name for name in {OPTIONAL!r} if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", [name for name in lc.__all__ if not name.startswith("__")])
def test_every_public_name_exists_and_is_documented(name):
    assert getattr(lc, name).__doc__


def exact_comparisons(source: str) -> list[int]:
    """Lines that compare numbers to the last bit without saying why that holds on every machine."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        options = {
            each.arg: each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)
        }
        by_name = node.func.attr in ("equal", "array_equal", "assert_array_equal", "assert_equal")
        no_tolerance = options.get("rtol") == 0 and options.get("atol") == 0
        if by_name or no_tolerance or options.get("check_exact") is True:
            found.append(node.lineno)
    return found


def test_exact_comparisons_of_numbers_say_why_they_are_right_on_every_machine():
    own = Path(__file__).parent
    files = {path.relative_to(own).as_posix(): path for path in own.rglob("*.py") if path.name != "same.py"}
    found = {name: exact_comparisons(path.read_text(encoding="utf-8")) for name, path in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}, "use the functions of same.py"


@pytest.mark.parametrize(
    "line",
    [
        "assert torch.equal(a, b)",
        "assert a.equal(b)",
        "np.testing.assert_array_equal(a, b)",
        "torch.testing.assert_close(a, b, rtol=0, atol=0)",
        "pd.testing.assert_frame_equal(a, b, check_exact=True)",
    ],
)
def test_the_check_sees_an_exact_comparison(line):
    assert exact_comparisons(line) == [1]
    assert exact_comparisons("torch.testing.assert_close(a, b)\nassert same.copied(a, b)") == []
