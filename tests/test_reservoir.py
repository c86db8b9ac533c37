"""A random part of a stream: of the right size, without a bias, and with the rows it says."""

import math

import numpy as np
import pytest

import same
from latentcal.tables import Reservoir, load_csv, read_sample
from latentcal.toy import HOUSEHOLD_TARGETS as TARGETS
from latentcal.toy import household_table

pytest.importorskip("pyarrow")


def kept(size, chunks, seed):
    reservoir, places_of = Reservoir(size, seed), np.full(size, -1)
    for count in chunks:
        start = reservoir.seen
        items, places = reservoir.offer(count)
        assert len(set(places.tolist())) == len(places)
        places_of[places] = start + items
    return places_of[places_of >= 0]


def test_a_short_stream_is_kept_as_it_is():
    assert kept(10, [3, 0, 4], 0).tolist() == list(range(7))


@pytest.mark.parametrize("chunks", [[1] * 60, [60], [7] * 8 + [4], [25, 35]])
def test_every_item_has_the_same_chance(chunks):
    # 60 frequencies of 1,000 samples with p = 1/6: beyond 5.5 deviations with probability 60 * 4e-8 at most.
    size, n, samples = 10, 60, 1000
    counts = np.zeros(n)
    for seed in range(samples):
        rows = kept(size, chunks, seed)
        assert len(set(rows.tolist())) == size
        counts[rows] += 1
    limit = 5.5 * math.sqrt(samples * size / n * (1 - size / n))
    assert np.abs(counts - samples * size / n).max() < limit


def test_the_check_sees_a_sample_of_the_first_rows():
    counts = np.zeros(60)
    counts[:10] = 1000
    assert np.abs(counts - 1000 / 6).max() > 5.5 * math.sqrt(1000 / 6 * 5 / 6)


def write(path, table):
    import pandas as pd

    frame = pd.DataFrame(table)
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_sample_of_a_file_has_the_rows_that_it_names(tmp_path, ending):
    pytest.importorskip("pandas")
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    table = household_table(9000, seed=3)
    table["income"][5] = np.nan
    path = write(tmp_path / f"a{ending}", table)
    sample = read_sample(path, [*table], 700, seed=1)
    assert (sample.total, len(sample.rows)) == (9000, 700)
    assert (np.diff(sample.rows) > 0).all()
    assert sample.rows.max() > 8000
    for column in sample.columns:
        expected = table[column.name][sample.rows]
        assert same.copied(column.values, expected.astype(column.values.dtype))
    kinds = {column.name: column.kind for column in sample.columns}
    assert (kinds["region"], kinds["urban"], kinds["age"], kinds["income"]) == (
        "text",
        "boolean",
        "integer",
        "real",
    )


def test_a_large_table_is_loaded_in_part_and_a_small_one_whole(tmp_path):
    pytest.importorskip("pandas")
    path = write(tmp_path / "a.csv", household_table(500))
    whole = load_csv(path, TARGETS, drop=["household"])
    again = load_csv(path, TARGETS, drop=["household"], max_rows=500)
    assert same.copied(whole.x, again.x)
    assert same.copied(whole.y, again.y)
    assert whole.preprocessing == again.preprocessing
    part = load_csv(path, TARGETS, drop=["household"], max_rows=200, seed=2)
    assert (len(part), part.file_rows, whole.file_rows) == (200, 500, 500)
    assert same.copied(part.y, whole.y[part.rows])
    other = load_csv(path, TARGETS, drop=["household"], max_rows=200, seed=3)
    assert same.different(part.rows, other.rows)


def test_missing_values_are_an_error_where_asked_for(tmp_path):
    pytest.importorskip("pandas")
    table = household_table(300)
    table["income"][17] = np.nan
    path = write(tmp_path / "a.csv", table)
    assert len(load_csv(path, TARGETS)) == 299
    with pytest.raises(
        ValueError, match=r"1 of 300 rows have missing values, the first is row 17 .* 'income'"
    ):
        load_csv(path, TARGETS, missing="error")


def test_a_sample_without_places_is_refused():
    with pytest.raises(ValueError, match="max_rows must be at least 1, got 0"):
        Reservoir(0)
