"""How rungs are compared, and which ones are possible."""

import pytest
import torch

import latentcal as lc
from latentcal.base import standard_normal
from latentcal.fingerprint import Fingerprint
from latentcal.recalibration.climb import plan_validation
from latentcal.recalibration.draws import DrawComparison
from latentcal.recalibration.ladder import Comparison
from latentcal.recalibration.rows import LatentRows
from latentcal.recalibration.rungs import LADDER, find_rungs
from toys import scaled_gaussian


def test_each_rung_is_as_far_behind_as_the_gain_of_the_best_is_ahead():
    gains = torch.tensor([0.0, 0.3, 0.5, 0.4], dtype=torch.float64)
    noise = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    comparison = Comparison(list("abcd"), noise + gains[:, None], torch.ones(60).double(), 5, False, None)
    ladder = comparison.choose([""] * 4)
    assert ladder.gains == pytest.approx(gains.tolist())
    assert ladder.behind == pytest.approx((0.5 - gains).tolist())
    assert (ladder.best, ladder.chosen) == (2, 2)
    refused = comparison.choose(["", "", "no", ""])
    assert (refused.best, refused.chosen) == (3, 3)
    assert refused.behind == pytest.approx((0.4 - gains).tolist())


def compare(gains, errors=0.0, n=400, in_time=False):
    """A comparison of rungs whose mean gains are given, with noise of that standard error a rung."""
    noise = torch.randn(len(gains), n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = (noise - noise.mean(1, keepdim=True)) * errors * n**0.5
    noise[0] = 0
    log_likelihood = torch.as_tensor(gains, dtype=torch.float64)[:, None] + noise
    names = [str(i) for i in range(len(gains))]
    return Comparison(names, log_likelihood, torch.ones(n).double(), 5, in_time, None)


@pytest.mark.parametrize(
    ("gains", "errors", "chosen"),
    [
        ([0.0, 0.005, 0.0], 0.0, 0),  # too little to be worth anything
        ([0.0, 0.02, 0.0], 0.0, 1),
        ([0.0, 0.14, 0.0], 0.1, 1),  # an uncertain gain of the plain law is taken
        ([0.0, 0.0, 0.14], 0.1, 0),  # that of another rung is not
        ([0.0, 0.0, 0.14], 0.01, 2),
        ([0.0, 0.3, 0.305], 0.0, 1),
        ([0.0, -0.1, -0.2], 0.0, 0),
    ],
)
def test_the_unchanged_model_gives_way_to_any_gain_of_the_plain_law_and_to_clear_gains_of_others(
    gains, errors, chosen
):
    assert compare(gains, errors).choose([""] * 3).chosen == chosen


def test_few_rows_and_rows_in_time_order_ask_for_more_standard_errors():
    assert compare([0.0, 0.1], n=30).choose(["", ""]).standard_errors == pytest.approx(2)
    assert compare([0.0, 0.1], n=60).choose(["", ""]).standard_errors == pytest.approx(1.5)
    assert compare([0.0, 0.1], n=600).choose(["", ""]).standard_errors == pytest.approx(1)
    assert compare([0.0, 0.1], n=600, in_time=True).choose(["", ""]).standard_errors == pytest.approx(2)


def test_in_time_order_the_plain_law_stays_unless_it_is_clearly_behind():
    for gain, chosen in ((-0.05, 1), (-1.0, 0)):
        assert compare([0.0, gain], errors=0.05, in_time=True).choose(["", ""]).chosen == chosen
    assert compare([0.0, -0.05], errors=0.05).choose(["", ""]).chosen == 0  # otherwise it does not


def test_in_time_order_a_rung_must_be_ahead_in_the_last_block_too():
    comparison = compare([0.0, 0.1, 0.5, 0.5], in_time=True)
    comparison.log_likelihood[2, -80:] = -1.0  # the last block
    refusals = comparison.refuse_by_last_block(torch.arange(400) >= 320)
    assert "last block" in refusals[2]
    assert refusals[:2] == ["", ""]
    assert refusals[3] == ""
    assert comparison.choose(refusals).chosen == 3


def test_rungs_that_cannot_win_are_dropped_and_the_table_says_so():
    comparison = compare([0.0, 0.3, 0.31, -1.0, 1.0], errors=1e-4)
    assert comparison.drop_hopeless(range(5)) == [0, 1, 4]  # but not the first two
    comparison.log_likelihood[2:4, 200:] = float("nan")
    ladder = comparison.choose([""] * 5)
    assert ladder.chosen == 4
    assert ladder.judged == [400, 400, 200, 200, 400]
    assert "dropped at 200 rows" in str(ladder)
    unsure = compare([0.0, 0.3, 0.31, 0.2, 0.35], errors=0.2)
    assert unsure.drop_hopeless(range(5)) == [0, 1, 2, 3, 4]


def test_where_the_model_is_off_by_more_than_a_gain_can_count_the_best_is_still_found():
    """Gains are cut off at 3 nats, so all of these tie; pair by pair they do not."""
    far = compare([0.0, 4.0, 6.0, 5.0], errors=0.01)
    ladder = far.choose([""] * 4)
    assert (ladder.best, ladder.chosen) == (2, 2)
    assert ladder.gains[1:] == pytest.approx([3.0, 3.0, 3.0])
    assert ladder.behind == pytest.approx([3.0, 2.0, 0.0, 1.0], abs=0.01)
    assert far.drop_hopeless(range(4)) == [0, 1, 2]


def test_no_rung_is_dropped_before_80_rows_have_judged():
    comparison = compare([0.0, 0.3, -2.0], errors=1e-4)
    comparison.log_likelihood[:, 79:] = float("nan")
    assert comparison.drop_hopeless(range(3)) == [0, 1, 2]
    comparison.log_likelihood[:, 79] = torch.tensor([0.0, 0.3, -2.0], dtype=torch.float64)
    assert comparison.drop_hopeless(range(3)) == [0, 1]


def test_a_rung_dropped_because_of_one_that_is_refused_comes_back(monkeypatch):
    y = 10 + torch.randn(600, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y[:, 1] = torch.exp(y[:, 1] - 10)  # "marginals" wins by far, so the affine map is dropped
    flow = scaled_gaussian(2, 1.0)
    ladder = lc.autocalibrate(flow, None, y).recalibration.ladder
    assert "marginals" in ladder.names[ladder.chosen]
    aligned = ladder.names.index("aligned, radial")
    assert ladder.judged[aligned] < 600
    monkeypatch.setattr(
        DrawComparison, "refusal", lambda self, fitted, plain: "no" if len(fitted[0].map.maps) > 1 else ""
    )
    again = lc.autocalibrate(flow, None, y).recalibration.ladder
    assert again.chosen == aligned
    assert again.judged[aligned] == 600


def make_rows(z, x=None):
    return LatentRows(z, x, torch.ones(len(z), dtype=torch.float64), Fingerprint())


def test_in_time_order_every_block_is_judged_by_earlier_rows_with_a_gap(generator):
    noise = torch.randn(703, 2, generator=generator, dtype=torch.float64)
    slow = (
        torch.stack([noise[i : i + 700] for i in range(4)]).sum(0) / 2
    )  # a moving average: depends on 3 before
    for z, gap in ((noise[:700], 0), (slow, 1)):
        validation = plan_validation(make_rows(z), standard_normal(2), 5, in_time=True)
        assert len(validation.parts) == 5
        for seen, held_out in validation.parts:
            first, last = int(held_out.nonzero()[0]), int(seen.nonzero()[-1])
            assert (first - last == 1) if gap == 0 else (2 <= first - last <= 20)
        assert int(validation.held_out.sum()) == 500
        assert (validation.fold[validation.held_out] >= 0).all()
        assert (validation.fold[~validation.held_out] == -1).all()


def test_rungs_are_asked_for_by_name(generator):
    rows = make_rows(torch.randn(300, 2, generator=generator, dtype=torch.float64))
    names = [
        [r.name for r in find_rungs(wanted, rows, standard_normal(2), None)] for wanted in ("default", "all")
    ]
    assert set(names[1]) - set(names[0]) == {"reshaped, radial"}
    some = find_rungs(["aligned, radial"], rows, standard_normal(2), None)
    assert [rung.name for rung in some] == ["unchanged", "radial", "aligned, radial"]
    with pytest.raises(ValueError, match="did you mean 'aligned, radial'"):
        find_rungs(["aligned radial"], rows, standard_normal(2), None)
    with pytest.raises(ValueError, match="'default', 'all' or a list"):
        find_rungs("everything", rows, standard_normal(2), None)


def test_coordinates_are_made_normal_only_where_they_are_not_too_many():
    rung = next(rung for rung in LADDER if "marginals" in rung.maps and rung.law == "stacked")
    for dim, possible in ((2, True), (5000, False)):
        rows = LatentRows(torch.zeros(1000, dim), None, torch.ones(1000), Fingerprint())
        assert rung.is_possible(rows, standard_normal(dim), None) == possible
