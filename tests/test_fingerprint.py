import warnings

import numpy as np
import pytest
import torch

from latentcal.fingerprint import CalibrationReuseWarning, Fingerprint, _row_hashes, warn_of_reuse


def _data(n, seed=0, p=3, d=2):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, p, generator=generator), torch.randn(n, d, generator=generator)


def test_the_order_of_rows_and_the_batches_do_not_matter():
    x, y = _data(1000)
    whole = Fingerprint.of(x, y)
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(1))
    merged = Fingerprint()
    for rows in order.split(70):
        merged = merged.merge(Fingerprint.of(x[rows], y[rows]))
    assert merged == whole
    assert len(whole.hashes) == 256


def test_few_rows_are_kept_all():
    x, y = _data(10)
    assert len(Fingerprint.of(x, y).hashes) == 10
    assert Fingerprint.of(x, y).share_of(x[3:4], y[3:4]) == pytest.approx(0.1)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 1.0])
def test_the_share_of_rows_met_again_is_estimated(share):
    (x, y), (new_x, new_y) = _data(5000), _data(20_000, seed=1)
    again = int(5000 * share)
    mixed_x, mixed_y = torch.cat([new_x, x[:again]]), torch.cat([new_y, y[:again]])
    # 256 rows drawn without replacement: five standard errors.
    allowed = 5 * (share * (1 - share) / 256) ** 0.5
    assert Fingerprint.of(x, y).share_of(mixed_x, mixed_y) == pytest.approx(share, abs=allowed + 1e-12)


def test_a_row_is_both_x_and_y():
    x, y = _data(100)
    sketch = Fingerprint.of(x, y)
    assert sketch.share_of(x, y + 1) == 0
    assert sketch.share_of(x + 1, y) == 0
    assert sketch.share_of(x, y[:, [1, 0]]) == 0  # columns are not exchangeable
    assert sketch.share_of(None, y) == 0
    assert Fingerprint.of(None, y).share_of(None, y) == 1
    assert Fingerprint.of(y, y + 1).share_of(y + 1, y) == 0  # neither are x and y


def test_dtypes_containers_and_negative_zero_do_not_matter():
    x, y = _data(50)
    sketch = Fingerprint.of(x, y)
    assert sketch == Fingerprint.of(x.double(), y.double())
    assert sketch == Fingerprint.of(x.numpy(), y.numpy())
    zero = torch.zeros(1, 2)
    assert Fingerprint.of(None, zero) == Fingerprint.of(None, -zero)


def test_hashes_have_no_pattern_even_for_round_numbers():
    grid = np.stack(np.meshgrid(np.arange(300.0), np.arange(300.0)), -1).reshape(-1, 2)
    hashes = _row_hashes(None, grid)
    assert len(np.unique(hashes)) == len(grid)
    for shift in range(64):  # each bit is a fair coin: six standard errors
        ones = float(((hashes >> np.uint64(shift)) & np.uint64(1)).mean())
        assert abs(ones - 0.5) < 6 * 0.5 / len(grid) ** 0.5


def test_wide_rows_are_hashed_in_pieces(monkeypatch):
    x, y = _data(100, p=5, d=7)
    whole = Fingerprint.of(x, y)
    monkeypatch.setattr("latentcal.fingerprint.rows_at_a_time", lambda numbers: max(1, 20 // numbers))
    assert Fingerprint.of(x, y) == whole


def test_the_warning_comes_above_five_percent():
    with pytest.warns(CalibrationReuseWarning, match=r"About 40% of the rows .*So what\. Use rows"):
        warn_of_reuse(0.4, "So what.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_reuse(0.05, "So what.")


def test_the_share_of_rows_within_other_rows_is_estimated_from_two_sketches(generator):
    x = torch.randn(4000, 3, generator=generator)
    y = torch.randn(4000, 1, generator=generator)
    trained = Fingerprint.of(x[:3000], y[:3000])
    assert Fingerprint.of(x[:300], y[:300]).share_within(trained) == 1
    assert Fingerprint.of(x[3000:], y[3000:]).share_within(trained) == 0
    half = Fingerprint.of(x[2500:3500], y[2500:3500]).share_within(trained)
    assert abs(half - 0.5) < 0.3  # about 85 hashes are compared: five standard errors
    assert Fingerprint.of(x[:300], y[:300]).share_within(Fingerprint()) == 0


@pytest.mark.parametrize("distinct", [3, 200, 300, 20_000])
def test_the_kept_hashes_are_the_smallest_of_all_however_many_copies_there_are(distinct):
    x, y = _data(distinct)
    rows = torch.randint(distinct, (20_000,), generator=torch.Generator().manual_seed(1))
    hashes = _row_hashes(x[rows], y[rows])
    kept = Fingerprint.of(x[rows], y[rows])
    assert kept.hashes == tuple(np.unique(hashes)[:256].tolist())
    part = x[rows[:500]], y[rows[:500]]
    assert kept.matches(*part) == {*kept.hashes} & {*_row_hashes(*part).tolist()}
