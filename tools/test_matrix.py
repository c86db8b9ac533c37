"""Run the test suite under other conditions: processors, threads, orders, places, users, versions.

    python tools/test_matrix.py [--only NAME ...] [--list]

The last commit is cloned to build/matrix and tested once for each setting, every time with another order of
the modules and of the tests within them. A row for each setting is written to
studies/benchmarks/results/test_matrix.csv as soon as it is known; settings that passed at this commit are
not run again.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "matrix"
RESULTS = ROOT / "studies" / "benchmarks" / "results" / "test_matrix.csv"
COLUMNS = ("setting", "result", "passed", "failed", "skipped", "seconds", "order", "commit")
LOCALE = FOLDER / "locale"
READ_ONLY_HOME = FOLDER / "home"
_WITH_TORCH = ("torch", "sbi")  # the lowest sbi wants a torch below 2.6
UNPRIVILEGED = ("unshare", "--user", "--map-user=1000", "--map-group=1000")


@dataclass(frozen=True)
class Setting:
    """Differences of one run of the suite from ``make test``.

    Attributes:
        variables: of the environment.
        workers: processes of pytest-xdist; 0 for none.
        versions: of the dependencies: "pinned" by constraints.txt, "lowest" of pyproject.toml, or "newest".
        place: name of the checkout's folder.
        prefix: command in front of pytest.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    workers: int = 2
    versions: str = "pinned"
    place: str = "plain"
    prefix: tuple[str, ...] = ()


SETTINGS = {
    "as make test": Setting(),
    "processor default": Setting({"ATEN_CPU_CAPABILITY": "default"}),
    "processor avx2": Setting({"ATEN_CPU_CAPABILITY": "avx2"}),
    "processor avx512": Setting({"ATEN_CPU_CAPABILITY": "avx512"}),
    "lowest versions, locale C": Setting({"LC_ALL": "C"}, versions="lowest", place="lowest"),
    "newest versions": Setting(versions="newest", place="newest"),
    "four threads, four processes": Setting({"OMP_NUM_THREADS": "4"}, workers=4),
    "one process and thread, MKL, decimal commas, east": Setting(
        {"OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE", "TZ": "EAST-13"}
        | {"LC_ALL": "de_DE.UTF-8", "LOCPATH": str(LOCALE)},
        workers=0,
    ),
    "unprivileged, read-only home": Setting({"HOME": str(READ_ONLY_HOME)}, prefix=UNPRIVILEGED),
    "space and umlaut in the path": Setting(place="Prüf stand"),
    "simulated rounding": Setting({"LATENTCAL_ROUNDING": "1"}),
}


def run(command: list[str], log: Path, **options: object) -> int:
    """Exit code of a command; its output is written to a file."""
    with log.open("ab") as file:
        return subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False, **options
        ).returncode


def checkout(place: str, commit: str) -> Path:
    """Path of a clone of the project at a commit; installed packages are kept."""
    folder = FOLDER / place
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "fetch", "--quiet", "origin"], cwd=folder, check=True)
    subprocess.run(["git", "checkout", "--quiet", "--force", commit], cwd=folder, check=True)
    return folder


def lowest() -> list[str]:
    """Requirements of the project at the lowest allowed versions that are compatible with our torch."""
    import tomllib  # from Python 3.11 on

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    bounds = (
        re.match(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", text) for text in [*project["dependencies"], *extras]
    )
    return sorted({f"{found[1]}=={found[2]}" for found in bounds if found and found[1] not in _WITH_TORCH})


def install(folder: Path, versions: str, log: Path) -> None:
    """Set up .venv in a checkout."""
    marker = folder / ".venv" / f".{versions}"
    asked_for = "".join((folder / name).read_text() for name in ("pyproject.toml", "constraints.txt"))
    if marker.exists() and marker.read_text() == asked_for:
        return
    if versions == "pinned":
        code = run(["make", ".venv/.installed", f"PYTHON={sys.executable}"], log, cwd=folder)
    else:
        constraints = folder / "build" / "versions.txt"
        constraints.parent.mkdir(exist_ok=True)
        torch = re.search(r"^torch==\S+", (folder / "constraints.txt").read_text(), re.MULTILINE)
        assert torch
        constraints.write_text("\n".join([torch[0], *(lowest() if versions == "lowest" else ())]) + "\n")
        python = str(folder / ".venv" / "bin" / "python")
        code = run([sys.executable, "-m", "venv", str(folder / ".venv")], log)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        code = code or run([*pip, "-c", str(constraints), "-e", ".[dev]"], log, cwd=folder)
        run([python, "-m", "pip", "freeze"], log)
    if code:
        sys.exit(f"Cannot install the {versions} versions: see {log}.")
    marker.write_text(asked_for)


def prepare() -> None:
    """Prepare a read-only folder and a locale for the settings that need them."""
    (FOLDER / "logs").mkdir(parents=True, exist_ok=True)
    READ_ONLY_HOME.mkdir(exist_ok=True)
    READ_ONLY_HOME.chmod(0o555)
    if not LOCALE.exists() and shutil.which("localedef"):
        LOCALE.mkdir()
        run(
            ["localedef", "-i", "de_DE", "-f", "UTF-8", str(LOCALE / "de_DE.UTF-8")],
            FOLDER / "logs" / "locale.log",
        )


def obstacle(setting: Setting) -> str:
    """The reason why a setting cannot be run on this machine; empty if it can."""
    if setting.variables.get("ATEN_CPU_CAPABILITY") == "avx512":
        flags = Path("/proc/cpuinfo")
        if not flags.exists() or "avx512vl" not in flags.read_text():
            return "no such processor"
    if setting.variables.get("LOCPATH") and not any(LOCALE.iterdir() if LOCALE.exists() else ()):
        return "no such locale"
    if (
        setting.prefix
        and subprocess.run([*setting.prefix, "true"], capture_output=True, check=False).returncode
    ):
        return "no user namespaces"
    return ""


def measure(name: str, commit: str, order: int) -> dict[str, object]:
    """The row of a setting."""
    setting = SETTINGS[name]
    row: dict[str, object] = {"setting": name, "order": order, "commit": commit}
    if reason := obstacle(setting):
        return row | {"result": f"not tried: {reason}"}
    log = FOLDER / "logs" / f"{name}.log"
    log.write_text("")
    folder = checkout(setting.place, commit)
    install(folder, setting.versions, log)
    processes = ["-n", str(setting.workers), "--dist", "worksteal"] if setting.workers else []
    command = [*setting.prefix, ".venv/bin/pytest", "-q", "-rf", "-p", "no:cacheprovider", *processes]
    variables = os.environ | {"LATENTCAL_SHUFFLE": str(order)} | dict(setting.variables)
    variables.pop("PYTHONDONTWRITEBYTECODE", None)  # as the Makefile does
    start = time.monotonic()
    code = run(command, log, cwd=folder, env=variables)
    text = log.read_text(errors="replace")
    counts = {word: sum(map(int, re.findall(rf"(\d+) {word}", text[-500:]))) for word in COLUMNS[2:5]}
    counts["failed"] += sum(map(int, re.findall(r"(\d+) error", text[-500:])))
    for line in re.findall(r"^(?:FAILED|ERROR) .*$", text, re.MULTILINE):
        print(f"    {line[:150]}", flush=True)
    result = "passed" if code == 0 and counts["passed"] else "FAILED"
    return row | counts | {"result": result, "seconds": round(time.monotonic() - start)}


def known() -> dict[str, dict[str, str]]:
    """Rows of earlier runs by setting."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return {row["setting"]: row for row in csv.DictReader(file)}


def write(rows: Mapping[str, Mapping[str, object]]) -> None:
    """All rows, in the order of the settings."""
    unfinished = RESULTS.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[name] for name in SETTINGS if name in rows)
    unfinished.replace(RESULTS)


def line(row: Mapping[str, object]) -> str:
    """A row in words."""
    counts = ", ".join(f"{row[word]} {word}" for word in COLUMNS[2:6] if row.get(word) not in (None, ""))
    return f"{row['setting']!s:<52}{row['result']!s:<12}{counts} (order {row['order']}, {row['commit']})"


def main() -> None:
    """Run the remaining settings; exit with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="NAME")
    parser.add_argument("--list", action="store_true", help="list the settings and exit")
    arguments = parser.parse_args()
    if arguments.list:
        print(*SETTINGS, sep="\n")
        return
    prepare()
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    commit = head.stdout.strip()[:12]
    rows: dict[str, Mapping[str, object]] = dict(known())
    for order, name in enumerate(SETTINGS, start=1):
        done = name in rows and (rows[name]["commit"], rows[name]["result"]) == (commit, "passed")
        if name in arguments.only and not done:
            row = measure(name, commit, order)
            rows = {**known(), name: row}  # another process may have added some
            write(rows)
        if name in rows:
            print(line(rows[name]), flush=True)
    if any(rows[name]["result"] == "FAILED" for name in arguments.only):
        sys.exit(1)


if __name__ == "__main__":
    main()
