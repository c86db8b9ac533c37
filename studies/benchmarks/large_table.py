"""Peak memory and time of every command on tables of 100,000 and 1,000,000 rows.

    python -m studies.benchmarks.large_table

writes results/large_table.json. The tables are artificial households (7 features, 3 targets). Each command
runs in a separate process; its peak memory is that reported by the operating system. A command that streams
rows needs as much memory for the larger table as for the smaller one. `info` reads no rows and shows the
memory of the libraries themselves. Commands that are done are skipped, so an interrupted benchmark resumes.
The default flow is linear and decodes quickly; memory depends on reading and writing, which is the same for
all flows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from latentcal.toy import HOUSEHOLD_TARGETS as TARGETS
from latentcal.toy import household_table

RESULTS = Path(__file__).parent / "results" / "large_table.json"
SIZES = (100_000, 1_000_000)
SLOW = {"predict", "regions", "probability"}  # hours for a flow whose inverse is a search
WHERE = "food > 3000 and housing + energy < 9000"
BLOCK = 50_000


def table(folder: Path, name: str, rows: int, first_seed: int = 0) -> Path:
    """A file of households, written in parts if it does not exist."""
    path = folder / f"{name}-{rows}.csv"
    if not path.exists():
        unfinished = path.with_suffix(".part")
        unfinished.unlink(missing_ok=True)
        for block in range(rows // BLOCK):
            part = pd.DataFrame(household_table(BLOCK, seed=first_seed + block))
            part.to_csv(unfinished, mode="a", header=block == 0, index=False)
        unfinished.rename(path)
    return path


def measured(words: list[str], folder: Path, environment: dict[str, str]) -> dict[str, object]:
    """Seconds and peak memory of a command."""
    script = (
        "import resource, subprocess, sys\n"
        "code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode\n"
        "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, "
        "sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]))"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=True,
    )
    code, kilobytes, seconds = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
    return {
        "peak MB": round(int(kilobytes) / 1000),
        "CPU s": round(float(seconds), 1),
        "s": round(time.perf_counter() - start, 1),
        "says": done.stderr.strip().splitlines(),
    }


def commands(folder: Path, flow: str, rows: int) -> dict[str, list[str]]:
    data, new = table(folder, "households", rows), table(folder, "new", rows, first_seed=1000)
    model, out = f"model-{rows}-{flow}", ["--out", "out.csv"]
    train = ["--targets", ",".join(TARGETS), "--drop", "household", "--flow", flow, "--epochs", "3"]
    found = {
        "fit": ["fit", data.name, *train, "--overwrite", "--out", model],
        "info": ["info", model],
        "diagnose": ["diagnose", model, new.name],
        "recalibrate": ["recalibrate", model, new.name],
        "predict": ["predict", model, new.name, "--draws", "32", *out],
        "regions": ["regions", model, new.name, *out],
        "probability": ["probability", model, new.name, "--where", WHERE, "--samples", "256", *out],
    }
    return {name: words for name, words in found.items() if flow == "linear-gaussian" or name not in SLOW}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="of tables and models; temporary by default")
    parser.add_argument("--flow", default="linear-gaussian")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run(arguments.folder or Path(temporary), arguments.flow)


def run(folder: Path, flow: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results |= {"command": "python -m studies.benchmarks.large_table", "threads": 1, "where": WHERE}
    for rows in SIZES:
        size, todo = f"{rows:,} rows", commands(folder, flow, rows)
        results.setdefault("file MB", {})[size] = round(table(folder, "new", rows).stat().st_size / 1e6, 1)
        known = results.setdefault(flow, {}).setdefault(size, {})
        for name, words in todo.items():
            if name in known:
                continue
            known[name] = measured([sys.executable, "-m", "latentcal.cli", *words], folder, environment)
            print(size, name, {key: value for key, value in known[name].items() if key != "says"}, flush=True)
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
