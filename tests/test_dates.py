"""Dates in cells: read in the forms that tables have, and taken apart as a calendar does it."""

from datetime import datetime

import numpy as np
import pytest

from latentcal._internal.columns import infer_column, parse_column
from latentcal._internal.dates import (
    DATE,
    MONTH_FIRST,
    calendar,
    find_kind,
    is_ambiguous,
    median_date,
    read_date,
    varying_parts,
)

NOON = datetime(2024, 12, 31, 12)


@pytest.mark.parametrize(
    ("text", "clock", "zone"),
    [
        ("2024-12-31", datetime(2024, 12, 31), ""),
        ("2024/12/31", datetime(2024, 12, 31), ""),
        ("2024-12", datetime(2024, 12, 1), ""),
        ("2024-12-31T12:00:00", NOON, ""),
        ("2024-12-31 12:00", NOON, ""),
        ("2024-12-31T12:00:00Z", NOON, "+00:00"),
        ("2024-12-31T12:00:00.250+02:00", datetime(2024, 12, 31, 12, microsecond=250_000), "+02:00"),
        ("2024-12-31 12:00:00-0530", NOON, "-05:30"),
        ("2024-12-31 12:00 +02", NOON, "+02:00"),
        ("20241231T120000", NOON, ""),
        ("31.12.2024", datetime(2024, 12, 31), ""),
        ("31.12.2024 12:00", NOON, ""),
        ("31/12/2024 12:00 PM", NOON, ""),
        ("31/12/2024 12:30 am", datetime(2024, 12, 31, 0, 30), ""),
    ],
)
def test_a_date_is_read_as_the_clock_shows_it(text, clock, zone):
    assert read_date(text) == (clock, zone)


@pytest.mark.parametrize(
    "text",
    ["", "2024", "20241231", "2024-13-01", "2023-02-29", "31/12/24", "12:00", "2024-12-31T25:00", "1.5.24",
     "2024-12-31 13:00 PM", "2024-1-1x", "10-20-30", "v2024-12-31", "2024.12"],
)  # fmt: skip
def test_what_is_no_date_is_not_read(text):
    assert read_date(text) is None
    assert read_date(text, MONTH_FIRST) is None


def test_the_whole_column_tells_whether_the_day_or_the_month_comes_first():
    assert find_kind(["1/7/2024", "31/7/2024"]) == DATE
    assert find_kind(["1/7/2024", "7/31/2024"]) == MONTH_FIRST
    assert find_kind(["1/7/2024", "2/8/2024"]) == ""
    assert is_ambiguous(["1/7/2024", "2/8/2024"])
    assert find_kind(["7/7/2024", "2024-01-02"]) == DATE  # either way the same
    assert find_kind(["31/7/2024", "7/31/2024"]) == ""
    assert not is_ambiguous(["31/7/2024", "7/31/2024"])
    assert find_kind([]) == ""
    assert find_kind(["1.7.2024"]) == DATE


def moments(*texts):
    return np.array(texts, dtype="datetime64[us]")


def test_the_year_counts_fractions_and_the_others_go_round():
    values = moments("2023-01-01", "2023-07-02T12:00", "2024-07-02", "2024-12-31T23:59:59")
    np.testing.assert_allclose(calendar(values, "year")[:, 0], [2023, 2023.5, 2024.5, 2025], atol=1e-6)
    month = calendar(values, "month")
    np.testing.assert_allclose(month, [[0, 1], [0, -1], [0, -1], [0, 1]], atol=1e-6)
    hour = calendar(moments("2024-05-01T06:00", "1969-12-31T18:00"), "hour")
    np.testing.assert_allclose(hour, [[1, 0], [-1, 0]], atol=1e-12)
    # Two Mondays, before and after 1970, and a Tuesday.
    weekday = calendar(moments("2024-07-01", "1969-12-29", "2024-07-02"), "weekday")
    turn = 2 * np.pi / 7
    np.testing.assert_allclose(weekday, [[0, 1], [0, 1], [np.sin(turn), np.cos(turn)]], atol=1e-12)


@pytest.mark.parametrize(
    ("texts", "parts"),
    [
        (["2024-07-01", "2024-07-08"], ("year",)),
        (["2024-07-01", "2024-07-02"], ("year", "weekday")),
        (["2024-06-03", "2025-06-02"], ("year",)),
        (["2024-06-03", "2024-07-01T08:00"], ("year", "month", "hour")),
        (["2024-06-03T08:00", "2024-06-03T08:01"], ("hour",)),
    ],
)
def test_only_parts_that_vary_are_features(texts, parts):
    assert varying_parts(moments(*texts)) == parts


def test_the_median_is_one_of_the_dates():
    assert median_date(moments("2024-07-03", "2024-07-01", "2024-07-02")) == datetime(2024, 7, 2)
    assert median_date(moments("1960-01-01")) == datetime(1960, 1, 1)


def column(*cells):
    return infer_column("t", np.array(cells, dtype=object))


def test_a_column_of_dates_knows_its_gaps_and_zones():
    dates = column("2024-07-01T08:00+02:00", "NA", "2024-12-01 08:00Z")
    assert dates.kind == "date"
    assert dates.missing.tolist() == [False, True, False]
    assert dates.zones == ("+00:00", "+02:00")
    assert dates.values[0] == np.datetime64("2024-07-01T08:00")
    assert column("2024-07-01", "soon").kind == "text"
    assert column("12/31/2024").kind == "month_first_date"


def test_dates_of_numpy_and_pandas_are_dates():
    pandas = pytest.importorskip("pandas")
    times = pandas.Series(pandas.to_datetime(["2024-07-01 08:00", None, "2024-12-01 08:00"]))
    for cells in (times.to_numpy(), np.asarray(times.dt.tz_localize("Europe/Brussels"))):
        found = infer_column("t", cells)
        assert found.kind == "date"
        assert found.missing.tolist() == [False, True, False]
        assert found.values[2] == np.datetime64("2024-12-01T08:00")  # on the clock there
    assert found.zones == ("+01:00", "+02:00")


def test_a_cell_that_is_no_date_is_named_with_its_row():
    for kind, first in (("date", "year or day"), ("month_first_date", "month")):
        with pytest.raises(ValueError, match=rf"'t' has 'soon' in row 8 .* a date, {first} first"):
            parse_column("t", kind, np.array(["2024-07-01", "soon"], dtype=object), 7)
    with pytest.raises(ValueError, match="'12/31/2024' in row 0"):
        parse_column("t", "date", np.array(["12/31/2024"], dtype=object))
