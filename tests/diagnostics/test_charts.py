"""Charts put numbers where they belong, and the page puts text where it does no harm."""

import pytest

from latentcal.diagnostics.charts import Chart, round_ticks
from latentcal.diagnostics.report import shorten
from latentcal.diagnostics.report_page import clean


def chart(**options):
    about = {"x": (0, 10), "y": (-1, 1), "x_label": "x", "y_label": "y"}
    return Chart("name", "title", "description", **{**about, **options})


def points(drawn):
    ((_, attributes),) = drawn.marks
    return [tuple(float(part) for part in pair.split(",")) for pair in attributes["points"].split()]


def test_corners_of_the_data_are_corners_of_the_frame():
    drawn = chart()
    drawn.line([0, 10], [-1, 1], "after")
    frame = drawn.frame
    assert points(drawn) == [(frame["left"], frame["foot"]), (frame["right"], frame["top"])]
    drawn = chart(x=(1, 100), log_x=True)
    drawn.line([10], [0], "after")
    assert points(drawn) == [(pytest.approx(frame["middle"]), pytest.approx(frame["centre"]))]


def test_what_lies_outside_ends_at_the_frame():
    drawn = chart()
    drawn.line([-5, 0, 10, 50], [-9, -1, 1, 9], "after")
    first, second, third, fourth = points(drawn)
    assert first == second
    assert third == fourth


def test_a_band_goes_along_one_curve_and_back_along_the_other():
    drawn = chart()
    drawn.band([0, 10], [-1, -1], [0, 1])
    low, along, back, start = points(drawn)
    assert low[0] == start[0] < along[0] == back[0]
    assert back[1] < start[1] < low[1] == along[1]


def test_bars_stand_on_zero_in_both_directions():
    drawn = chart()
    drawn.bar(0, 5, 0.5, "bar")
    drawn.bar(5, 10, -0.5, "bar")
    (_, up), (_, down) = drawn.marks
    assert up["y"] + up["height"] == pytest.approx(down["y"])
    assert up["height"] == pytest.approx(down["height"])
    assert up["x"] + up["width"] == pytest.approx(down["x"])


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (-3e-7, 4.1e-7, ["-2e-07", "0", "2e-07", "4e-07"]),
        (1e6, 1e6 + 3, ["1000000", "1000001", "1000002", "1000003"]),
        (0.87, 1, ["0.9", "0.95", "1"]),
    ],
)
def test_ticks_are_round_and_told_apart(low, high, labels):
    ticks = round_ticks(low, high)
    assert list(ticks.values()) == labels
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in ticks)


def test_text_holds_what_a_page_may_hold():
    assert clean('<b> & "c"\n d\x00\x1b\ud800') == '<b> & "c" d\ufffd\ufffd\ufffd'
    assert shorten("a" * 50, 10) == "aaaaaaaaa…"
