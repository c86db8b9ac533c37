"""Size and structure of the code: modules, lines, names, arguments, repetitions.

    python tools/census.py [FOLDER ...]              # by default src and, if it exists, studies
    python tools/census.py --commit COMMIT [...]     # the same for another commit

Prints a line for each package (modules, lines), and totals of what makes code hard to find.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
RUN = 6  # identical lines that count as a repetition
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def list_modules(root: Path, folders: list[str]) -> list[Path]:
    """Python files below the folders, sorted."""
    return sorted(path for folder in folders for path in (root / folder).rglob("*.py"))


def find_functions(tree: ast.Module) -> Iterator[FunctionNode]:
    """Functions and methods, including nested ones."""
    return (node for node in ast.walk(tree) if isinstance(node, FunctionNode))


def count_body_lines(function: FunctionNode) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]


def count_arguments(function: FunctionNode) -> int:
    """Number of arguments that a caller can pass."""
    own = function.args
    names = [argument.arg for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def find_repetitions(sources: dict[Path, str]) -> list[tuple[str, str]]:
    """Pairs of places with at least six identical lines, each pair of files and runs once."""
    windows: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    kept: dict[Path, list[tuple[int, str]]] = {}
    for path, source in sources.items():
        lines = [(i + 1, " ".join(line.split())) for i, line in enumerate(source.splitlines())]
        kept[path] = [
            (i, line) for i, line in lines if len(line) > 3 and not line.startswith(("#", "import", "from"))
        ]
        for start in range(len(kept[path]) - RUN + 1):
            windows[tuple(line for _, line in kept[path][start : start + RUN])].append((path, start))
    pairs = {
        (a, b, i - j)
        for places in windows.values()
        for n, (a, i) in enumerate(places)
        for b, j in places[n + 1 :]
        if a != b or abs(i - j) >= RUN
    }
    return sorted({(str(a), str(b)) for a, b, _ in pairs})


def count_public_names(package: Path) -> int:
    """Number of public names of a package: in its table for ``attach`` if it is lazy, or in ``__all__``."""
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        value = node.value
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "attach":
            table = value.args[1]
            assert isinstance(table, ast.Dict)
            return sum(isinstance(leaf, ast.Constant) for each in table.values for leaf in ast.walk(each))
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return sum(isinstance(leaf, ast.Constant) for leaf in ast.walk(value))
    return 0


def take_census(root: Path, folders: list[str]) -> dict[str, object]:
    """The counts by name."""
    sources = {
        path.relative_to(root): path.read_text(encoding="utf-8") for path in list_modules(root, folders)
    }
    trees = {path: ast.parse(source) for path, source in sources.items()}
    functions = [function for tree in trees.values() for function in find_functions(tree)]
    names = Counter(path.name for path in sources if not path.name.startswith("__"))
    lengths = {path: source.count("\n") for path, source in sources.items()}
    return {
        "modules": len(sources),
        "lines": sum(lengths.values()),
        "modules above 400 lines": [f"{path} ({n})" for path, n in lengths.items() if n > 400],
        "median lines of a function": median(map(count_body_lines, functions)),
        "functions with 10 or more arguments": sum(count_arguments(f) >= 10 for f in functions),
        "duplicate file names": sorted(name for name, n in names.items() if n > 1),
        "pairs of files that repeat six lines": len(find_repetitions(sources)),
        "names at the top level": count_public_names(root / "src" / "latentcal"),
    }


def list_packages(root: Path, folders: list[str]) -> list[tuple[str, int, int]]:
    """Every package of the first and second level with its numbers of modules and lines."""
    sizes: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in list_modules(root, folders):
        parts = path.relative_to(root).parts
        place = "/".join(parts[:3]) if parts[0] == "src" else "/".join(parts[:2])
        sizes[place][0] += 1
        sizes[place][1] += path.read_text(encoding="utf-8").count("\n")
    return [(place, *size) for place, size in sorted(sizes.items())]  # type: ignore[misc]


def main() -> None:
    """Print the census."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--commit", help="count the files of this commit instead of the working tree")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = ROOT
        if options.commit:
            archive = subprocess.run(
                ["git", "archive", options.commit], cwd=ROOT, capture_output=True, check=True
            ).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(place, filter="data")
            root = Path(place)
        folders = options.folders or [name for name in ("src", "studies") if (root / name).is_dir()]
        for name, modules, lines in list_packages(root, folders):
            print(f"{name:<40} {modules:>4} modules {lines:>7,} lines")
        print()
        for name, value in take_census(root, folders).items():
            shown = f"{len(value)}: {', '.join(value)}" if isinstance(value, list) else value
            print(f"{name:<40} {shown}")


if __name__ == "__main__":
    sys.exit(main())
