"""The story of docs/how_to/command_line.md, printed as a terminal shows it.

    LATENTCAL_DATA=... python -m studies.benchmarks.command_line

makes three tables of the set ``households`` in random order, in a temporary folder, and runs the commands.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
import subprocess
import tempfile
from pathlib import Path

PARTS = {"households.csv": 5000, "later.csv": 1200, "test.csv": 1007}
COMMANDS = """\
latentcal fit households.csv --targets inc,food,house,utili --drop newid,inc.a --out model/
latentcal diagnose model/ test.csv --html report.html
latentcal recalibrate model/ later.csv --recalibration auto
latentcal predict model/ new.csv --keep newid --quantiles 0.05,0.95
latentcal regions model/ test.csv --coverage 0.9 --keep newid --out regions.csv
head -3 regions.csv
latentcal probability model/ new.csv --where "food > 5000 and house + utili < 12000" --keep newid
latentcal info model/
"""


def write_tables(folder: Path) -> None:
    with gzip.open(Path(os.environ["LATENTCAL_DATA"]) / "camehl" / "households.csv.gz", "rt") as file:
        head, *rows = csv.reader(file)
    random.Random(0).shuffle(rows)
    parts = {**PARTS, "new.csv": 4}
    start = 0
    for name, count in parts.items():
        if name == "new.csv":
            start = sum(PARTS.values()) - PARTS["test.csv"]
        with (folder / name).open("w", newline="") as out:
            lines = csv.writer(out, lineterminator="\n")
            lines.writerow(head)
            lines.writerows(rows[start : start + count])
        start += count


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_tables(Path(folder))
        for command in COMMANDS.splitlines():
            print(f"$ {command}", flush=True)
            subprocess.run(f"{command} 2>&1", shell=True, check=True, cwd=folder)
            print(flush=True)


if __name__ == "__main__":
    main()
