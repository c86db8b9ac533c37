from types import SimpleNamespace

import numpy as np
import pytest
import torch

from latentcal.adapters import from_quantiles, read_gluonts, read_nixtla, read_tabpfn

pandas = pytest.importorskip("pandas")


def long_frame(cutoffs=1):
    """Two series, three steps; the quantile of level p at step t of series s is 100 s + 10 t + p."""
    rows = []
    for cutoff in range(cutoffs):
        for series in ("b", "a"):
            for step in (3, 1, 2):
                base = 100 * "ab".index(series) + 10 * step + 1000 * cutoff
                row = {"unique_id": series, "ds": step, "cutoff": cutoff, "y": base, "NHITS": base}
                row |= {"NHITS-lo-90": base + 0.05, "NHITS-hi-90": base + 0.95, "NHITS-median": base + 0.5}
                rows.append(row | {"NHITS-lo-50.0": base + 0.25, "NHITS-hi-50.0": base + 0.75, "NHITSx": 0})
    return pandas.DataFrame(rows)


def test_a_table_of_nixtla():
    levels, x, y = read_nixtla(long_frame(), "NHITS")
    assert levels == [0.05, 0.25, 0.5, 0.75, 0.95]
    base = torch.tensor([[10.0, 20.0, 30.0], [110.0, 120.0, 130.0]], dtype=torch.float64)
    torch.testing.assert_close(x, base[..., None] + torch.tensor(levels, dtype=torch.float64))
    torch.testing.assert_close(y, base)
    assert from_quantiles(levels, outputs=3)(x).log_prob(y).shape == (2,)
    assert read_nixtla(long_frame(cutoffs=4), "NHITS").x.shape == (8, 3, 5)
    assert read_nixtla(long_frame().drop(columns="y").set_index("unique_id"), "NHITS").y is None


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="0 quantiles of 'TFT'"):
        read_nixtla(long_frame(), "TFT")
    with pytest.raises(ValueError, match="same horizon"):
        read_nixtla(long_frame().iloc[1:], "NHITS")


def test_forecasts_of_gluonts_and_chronos():
    array = np.arange(24.0).reshape(2, 3, 4)  # (n, k, d)
    forecasts = [SimpleNamespace(forecast_keys=["0.9", "mean", "0.1"], forecast_array=each) for each in array]
    levels, x, y = read_gluonts(forecasts)
    assert levels == [0.1, 0.9]
    assert y is None
    np.testing.assert_allclose(x, array[:, [2, 0]].swapaxes(1, 2))
    np.testing.assert_allclose(read_gluonts(array, [0.1, 0.5, 0.9]).x, array.swapaxes(1, 2))
    chronos = torch.as_tensor(array.swapaxes(1, 2).copy())  # (n, d, k)
    np.testing.assert_allclose(read_gluonts(chronos, [0.9, 0.1, 0.5]).x, chronos[..., [1, 2, 0]])
    with pytest.raises(ValueError, match="k = 2 levels"):
        read_gluonts(array, [0.1, 0.9])
    with pytest.raises(TypeError, match="pass the levels"):
        read_gluonts(array)


def test_outputs_of_tabpfn():
    one = [np.full(5, float(level)) for level in range(9)]
    two = {"mean": np.zeros(5), "quantiles": [10 + part for part in one]}
    levels, x, _ = read_tabpfn([one, two])
    assert levels[0] == 0.1
    assert levels[-1] == 0.9
    assert x.shape == (5, 2, 9)
    np.testing.assert_allclose(x[0], np.stack([np.arange(9.0), 10 + np.arange(9.0)]))
    assert read_tabpfn(one).x.shape == (5, 1, 9)
    assert read_tabpfn(two).x.shape == (5, 1, 9)
    with pytest.raises(ValueError, match="3 arrays"):
        read_tabpfn([one], levels=[0.1, 0.5, 0.9])
