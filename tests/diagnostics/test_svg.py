"""Charts put numbers where they belong, and text where it does no harm."""

import re

import pytest

from latentcal.diagnostics.svg import Chart, round_ticks, shortened, text


def chart(**options):
    about = {"x": (0, 10), "y": (-1, 1), "x_label": "x", "y_label": "y"}
    return Chart("name", "title", "description", **{**about, **options})


def points(svg, kind):
    (found,) = re.findall(rf'class="{kind}" points="([^"]*)"', str(svg))
    return [tuple(float(part) for part in pair.split(",")) for pair in found.split()]


def test_corners_of_the_data_are_corners_of_the_axes():
    svg = chart()
    svg.line([0, 10], [-1, 1], "after")
    (left, foot), (right, top) = points(svg, "after")
    assert f"M{left:.0f} {top:.0f}V{foot:.0f}H{right:.0f}" in str(svg)
    svg = chart(x=(1, 100), log_x=True)
    svg.line([10], [0], "after")
    assert points(svg, "after") == [(pytest.approx((left + right) / 2), pytest.approx((top + foot) / 2))]


def test_what_lies_outside_ends_at_the_frame():
    svg = chart()
    svg.line([-5, 0, 10, 50], [-9, -1, 1, 9], "after")
    first, second, third, fourth = points(svg, "after")
    assert first == second
    assert third == fourth


def test_steps_are_flat_in_their_bins():
    svg = chart()
    svg.stairs([0, 4, 10], [0.5, -0.5], "nominal")
    xs, ys = zip(*points(svg, "nominal"), strict=True)
    assert xs[1] == xs[2]
    assert ys[0] == ys[1] < ys[2] == ys[3]
    svg.stepped_band([0, 4, 10], [-1, -0.5], [0, 1])
    assert len(points(svg, "band")) == 8


def test_bars_stand_on_zero_in_both_directions():
    svg = chart()
    svg.bars([0, 5, 10], [0.5, -0.5])
    (up, height), (down, depth) = (
        (float(y), float(h))
        for y, h in re.findall(r'<rect class="bar".* y="([\d.]+)".* height="([\d.]+)"', str(svg))
    )
    assert up + height == pytest.approx(down)
    assert height == pytest.approx(depth)


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


def test_text_is_escaped_and_holds_what_a_page_may_hold():
    assert text('<b> & "c"\n d\x00\x1b\ud800') == "&lt;b&gt; &amp; &quot;c&quot; d\ufffd\ufffd\ufffd"
    assert text("'").isascii()
    assert "'" not in text("'")
    assert shortened("a" * 50, 10) == "aaaaaaaaa…"
    assert "<script>" not in str(chart(x_label="<script>", y_label="<script>"))
