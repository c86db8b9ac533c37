"""Draw the pictures of the gallery that no example or tutorial draws: reliability, paths, and the report.

    python tools/draw_gallery.py [folder]    # into docs/images by default; the report needs Chromium

The models are those of the pages concepts/latent_calibration, how_to/quantile_forecasts and how_to/diagnose.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from PIL import Image

import latentcal as lc

DOCS = Path(__file__).parent.parent / "docs"
WIDTHS = {"light": 900, "dark": 420}  # of the browser's window, in pixels
HEIGHT = 1150


def reliability(folder: Path) -> None:
    """Reliability and PIT histogram, before and after recalibration."""
    x, y = lc.toy.heteroscedastic_linear().sample(3000, generator=torch.Generator().manual_seed(0))
    flow = lc.flows.LinearGaussianFlow.fit(x[:1000], y[:1000])
    model = lc.recalibrate(flow, x[1000:2000], y[1000:2000])
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4), layout="constrained")
    for name, each in (("before", flow), ("after", model)):
        u = lc.latent_pit(each(x[2000:]), y[2000:])
        lc.plots.reliability_diagram(u, label=name, ax=left)
        lc.plots.pit_histogram(u, label=name, ax=right)
    figure.savefig(folder / "reliability.png", dpi=100)


def paths(folder: Path) -> None:
    """Paths of a forecast before and after its correlations were learned."""
    names = _code("how_to/quantile_forecasts.md", blocks=1)
    figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True, layout="constrained")
    for ax, title, each in zip(axes, ("before", "after"), (names["flow"], names["model"]), strict=True):
        draws = each(names["q"][602:603]).sample((1000,))[:, 0]
        lc.plots.paths(draws, names["y"][602], ax=ax)
        ax.set(title=title, xlabel="step")
    figure.savefig(folder / "paths.png", dpi=100)


def report(folder: Path) -> None:
    """The report in a wide light window and in a narrow dark one, side by side."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("Chromium not found: report.png is not redrawn.")
        return
    names = _code("how_to/diagnose.md", blocks=1)
    with tempfile.TemporaryDirectory() as place:
        page, shots = Path(place) / "report.html", []
        names["report"].to_html(page, title="Rent and heating")
        for scheme, width in WIDTHS.items():
            shots.append(Path(place) / f"{scheme}.png")
            # A frame as wide as a phone: Chromium's own windows are at least 500 pixels wide.
            frame = Path(place) / f"{scheme}.html"
            style = f"border:0;width:{width}px;height:{HEIGHT}px"
            frame.write_text(f'<body style="margin:0"><iframe src="report.html" style="{style}">')
            command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            command += [f"--window-size={max(width, 500)},{HEIGHT}", f"--screenshot={shots[-1]}"]
            command += ["--blink-settings=preferredColorScheme=" + ("0" if scheme == "dark" else "1")]
            subprocess.run([*command, frame.as_uri()], check=True, capture_output=True)
        images = [
            Image.open(shot).crop((0, 0, w, HEIGHT)) for shot, w in zip(shots, WIDTHS.values(), strict=True)
        ]
        whole = Image.new("RGB", (sum(WIDTHS.values()), HEIGHT), "white")
        for image, left in zip(images, (0, WIDTHS["light"]), strict=True):
            whole.paste(image, (left, 0))
        whole.quantize(64).save(folder / "report.png", optimize=True)


def _code(page: str, *, blocks: int) -> dict[str, object]:
    """Names defined by the first Python blocks of a page."""
    names: dict[str, object] = {}
    found = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    for code in found[:blocks]:
        exec(compile(code, page, "exec"), names)
    return names


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "images"
    target.mkdir(parents=True, exist_ok=True)
    for draw in (reliability, paths, report):
        draw(target)
