"""The page about images, docs/results/images.md, from the records of the benchmarks about them.

    python -m studies.images.image_pages

It reads what studies.images and the benchmarks large_images and tarflow_sampling wrote; what is not there
yet is left out. Every number in the text is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..benchmarks.resumable import RESULTS, read
from ..tabular.estimates import Estimate, estimate, paired_difference
from .__main__ import STUDIES
from .image_scores import ALL, BASE

Record = dict[str, Any]

PUBLISHED = {
    "l_ece": {BASE: Estimate(0.474, 0.000625, 20), "LR-KDE": Estimate(0.00895, 0.00160, 20)},
    "bpd": {BASE: Estimate(5.477, 3.523e-05, 20), "LR-KDE": Estimate(5.465, 1.772e-05, 20)},
}
"""AFHQ at 256 x 256, calibrated on training images (Dheur and Ben Taieb, 2025)."""

PUBLISHED_SECONDS = {"HDR-R": 183_182.0, "LR": 1_259.0}
"""Calibration on CIFAR-10, from the same paper."""

PAGE = Path(__file__).parents[2] / "docs" / "results" / "images.md"
TITLES = {"mnist": "MNIST, 28 x 28 (d = 784)", "afhq": "AFHQ, 32 x 32 in colour (d = 3,072)"}
SEEN = {  # what an eye makes of the pictures
    "mnist": "Nearly all digits can be read.",
    "afhq": "Colours, textures of fur, here and there eyes and a snout; no whole faces.",
}
INTRODUCTION = """\
# Images, before and after

TarFlows, trained on a CPU and recalibrated: the image experiment of Dheur and Ben Taieb (NeurIPS 2025), on
smaller images. This page is written by `python -m studies.images.image_pages` from the records in
`studies/benchmarks/results`, and those by

```sh
python -m studies.images --data mnist --threads 1
python -m studies.images --data afhq --threads 1
python -m studies.benchmarks.large_images
python -m studies.benchmarks.tarflow_sampling
```

How to run the published flow at 256 x 256 is told in
[How to train and recalibrate a flow on images](../how_to/images.md).

**What is compared.** BASE is the flow as trained. LR is `recalibrate` with its default law, LR-KDE the
published one (a gamma KDE), "LR by class" has a law for each class. Calibration on *train* images is the
paper's; *held-out* images were set aside from the training part beforehand, and nothing was chosen by them.
Both are as many. Each of the evaluations draws the noise of all images, calibration and test, anew; ± is the
standard error over them: how far the noise moves a figure, and neither what other images nor what another
training would do. Changes of BPD are paired. L-ECE lies between 0 and about 0.5; n images of a calibrated
flow have about 0.31/√n.

**Read with care.** An earlier, shorter training on MNIST was first evaluated on the first 4,000 test images
(held-out L-ECE 0.020); test images are drawn at random since then. That flow, after 100,000 images, had an
L-ECE of 0.194, and one on AFHQ after 30,000 images 0.111: how far off the norms are depends on how long
a flow was trained, and recalibration brought all of them to about 0.01.
"""


def results(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def records_of(data: str, steps: int) -> list[Record]:
    """Scores of the flow after so many steps."""
    return [
        row | {"images": int(row["images"]), "l_ece": float(row["l_ece"]), "bpd": float(row["bpd"])}
        for row in read(RESULTS / "images.csv")
        if (row["data"], row["steps"]) == (data, str(steps))
    ]


def study(data: str) -> str:
    """Section of a data set."""
    training = results(f"images_training_{data}")
    records = [] if training is None else records_of(data, training["steps"])
    if training is None or not records:
        return ""
    tested = next(record["images"] for record in records if record["class"] == "all")
    evaluations = len({record["evaluation"] for record in records})
    step, bpd = training["validation_bpd"][-1]
    before = mean_of(records, "l_ece", "BASE")
    about = STUDIES[data]
    cpu, wall = training["cpu_seconds"] / 60, training["wall_seconds"] / 60
    lines = [
        f"## {TITLES[data]}",
        "",
        f"A flow of {training['parameters'] / 1e6:.2f} million weights, trained on images with noise of",
        f"standard deviation {about.noise.std:g}: {training['steps']:,} of the {training['planned']:,} steps",
        f"of its schedule, {training['images']:,} images, {cpu:.0f} minutes of processor time, {wall:.0f}",
        f"minutes by the clock with {_threads(training)}. BPD of 1,000 held-out images {bpd:.3f}",
        f"(after step {step:,}). {evaluations} evaluations, {about.calibration:,} images to calibrate on,",
        f"{tested:,} test images. Those of a calibrated flow would have an L-ECE of about",
        f"{0.31 / tested**0.5:.4f}; these have {before:.3f} before recalibration.",
        "",
        scores_table(records),
        "",
        "By class, calibrated on held-out images:",
        "",
        classes_table(records, "held-out", ["BASE", "LR", "LR by class"]),
        "",
    ]
    if data == "afhq":
        lines += ["Beside the published figures (the published law, calibrated on training images):", ""]
        lines += [beside_published(records, "train"), ""]
    lines += [
        "Samples: before; after, from the same latents; after, with the noise of training taken away",
        f"(`denoise`). {SEEN[data]}",
        "",
        f"![Samples of {data} before, after, and denoised](../images/images/{data}.png)",
        "",
    ]
    return "\n".join(lines)


def _threads(training: dict[str, Any]) -> str:
    count = training.get("threads", 1)
    return "one thread" if count == 1 else f"{count} threads"


def calibration_time() -> str:
    found = results("images_time")
    if found is None:
        return ""
    lr, hdr = (found[f"{method}, cpu seconds for all images"] for method in ("LR", "HDR-R"))
    measured = found["measured"]["HDR-R"]
    there = PUBLISHED_SECONDS
    return f"""\
## Time of calibration

On {found["images"]:,} MNIST images, one thread, processor time. LR was measured on all of them. HDR-R, which
draws 100 samples for every image, was measured on {measured["images"]} of them
({measured["cpu seconds"]:.1f} s) and **extrapolated** in proportion.

| | LR | HDR-R | ratio |
|---|---|---|---|
| here, MNIST | {lr:,.1f} s | {hdr:,.0f} s (extrapolated) | {hdr / lr:,.0f} |
| published, CIFAR-10 | {there["LR"]:,.0f} s | {there["HDR-R"]:,.0f} s | {there["HDR-R"] / there["LR"]:,.0f} |

Of the time of LR, {found["seconds of the fit itself"]:.2f} s are the fit of the law; the rest is one pass of
the images through the flow.
"""


def large() -> str:
    found = results("large_images")
    if found is None:
        return ""
    whole, quarter = found["all"], found["quarter"]
    gigabytes = 2 * whole["images"] * whole["d"] * 4 / 1e9
    return f"""\
## 256 x 256 in colour (d = 196,608)

(Measured when the kernels of the default law had one width.)

An untrained, tiny TarFlow on synthetic images, {whole["images"]:,} to calibrate on and as many to test, one
thread: it shows that the arithmetic holds at this size, not what a good flow would gain.

| | BASE | LR |
|---|---|---|
| L-ECE | {whole["L-ECE, base"]:.4f} | {whole["L-ECE, recalibrated"]:.4f} |
| BPD | {whole["BPD, base"]:.5f} | {whole["BPD, recalibrated"]:.5f} |

Everything finite: {"yes" if whole["all finite"] else "no"}. Peak of resident memory
{whole["peak, MB"]:.0f} MB, of which {whole["peak before, MB"]:.0f} MB are torch and the flow before the first
image; with a quarter of the images it is {quarter["peak, MB"]:.0f} MB. All images at once would be
{gigabytes:.1f} GB. (The benchmark sets `MALLOC_MMAP_THRESHOLD_=1048576`, for glibc's heap fragments otherwise
and once reached 2.6 GB.) Recalibration took {whole["recalibration, cpu s"]:.0f} s of processor time, six
samples {whole["6 samples, cpu s"]:.1f} s; decode(encode(y)) is off by at most
{whole["largest error of decode(encode(y))"]:.1g}.
"""


def sampling() -> str:
    found = results("tarflow_sampling")
    if found is None:
        return ""
    cases = {name: row for name, row in found.items() if isinstance(row, dict)}
    lines = [
        "## Sampling with cached keys and values",
        "",
        f"Against recomputing all earlier patches for every next one; {found['flow']}, one thread,",
        f"processor time, medians of {found['turns']}.",
        "",
        "| | patches | cached | recomputed | ratio |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {row['patches']} | {row['cached, s']:.2f} s | {row['recomputed, s']:.2f} s "
        f"| {row['ratio']:.1f} |"
        for name, row in cases.items()
    ]
    low = [name for name, row in cases.items() if row["ratio"] < 5]
    lines += ["", "The ratio grows with the number of patches and of samples drawn at a time."]
    if low:
        lines += [
            f"Below 5: {'; '.join(low)}.",
            "There, calling the layers costs more than what they compute.",
        ]
    lines.append("")
    return "\n".join(lines)


def scores_table(records: Sequence[Record]) -> str:
    """L-ECE, BPD and its paired change of every method and calibration set, over all test images."""
    lines = ["| calibrated on | method | L-ECE | BPD | change of BPD |", "|---|---|---|---|---|"]
    for calibration, method in _rows(records):
        own = _select(records, calibration, method, ALL)
        cells = [_cell(own, "l_ece", 4), _cell(own, "bpd", 5), _change(records, own)]
        lines.append(f"| {calibration or '-'} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def classes_table(records: Sequence[Record], calibration: str, methods: Sequence[str]) -> str:
    """L-ECE and BPD of each class."""
    columns = [(measure, method) for measure in ("l_ece", "bpd") for method in methods]
    titles = [f"{'L-ECE' if measure == 'l_ece' else 'BPD'}, {method}" for measure, method in columns]
    lines = [f"| class | images | {' | '.join(titles)} |", "|---" * (2 + len(columns)) + "|"]
    for name in dict.fromkeys(record["class"] for record in records):
        cells = []
        for measure, method in columns:
            own = _select(records, "" if method == BASE else calibration, method, name)
            cells.append(_cell(own, measure, 3 if measure == "l_ece" else 4))
        images = next(record["images"] for record in records if record["class"] == name)
        lines.append(f"| {name} | {images} | {' | '.join(cells)} |")
    return "\n".join(lines)


def beside_published(records: Sequence[Record], calibration: str) -> str:
    """Our figures with the published law, calibrated as in the paper, beside the published ones."""
    lines = ["| | L-ECE BASE | L-ECE LR | BPD BASE | BPD LR |", "|---|---|---|---|---|"]
    published, ours = [], []
    for measure, digits in (("l_ece", 4), ("bpd", 5)):
        for method in (BASE, "LR-KDE"):
            published.append(_shown(PUBLISHED[measure][method], digits))
            own = _select(records, "" if method == BASE else calibration, method, ALL)
            ours.append(_cell(own, measure, digits))
    lines.append(f"| published: 256 x 256, d = 196,608 | {' | '.join(published)} |")
    lines.append(f"| here: 32 x 32, d = 3,072 | {' | '.join(ours)} |")
    return "\n".join(lines)


def mean_of(
    records: Iterable[Record], measure: str, method: str, calibration: str = "", name: str = ALL
) -> float:
    """Mean of a measure over the evaluations."""
    found = estimate(record[measure] for record in _select(records, calibration, method, name))
    if found is None:
        raise ValueError(f"There is no record of {method}, calibrated on {calibration!r}, for {name}.")
    return found.mean


def _select(records: Iterable[Record], calibration: str, method: str, name: str) -> list[Record]:
    wanted = (calibration, method, name)
    return [
        record for record in records if (record["calibration"], record["method"], record["class"]) == wanted
    ]


def _rows(records: Iterable[Record]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((record["calibration"], record["method"]) for record in records))


def _cell(records: Sequence[Record], measure: str, digits: int) -> str:
    return _shown(estimate(record[measure] for record in records), digits)


def _change(records: Sequence[Record], own: Sequence[Record]) -> str:
    """Mean difference of BPD to the base in the same evaluations: the same noise, so the error is small."""
    if own[0]["method"] == BASE:
        return ""
    before = {record["evaluation"]: record["bpd"] for record in _select(records, "", BASE, ALL)}
    after = {record["evaluation"]: record["bpd"] for record in own}
    return _shown(paired_difference(after, before), 5, sign="+")


def _shown(found: Estimate | None, digits: int, sign: str = "") -> str:
    if found is None:
        return ""
    error = "" if found.standard_error is None else f" ± {found.standard_error:.1g}"
    return f"{found.mean:{sign}.{digits}f}{error}"


def main() -> None:
    sections = [INTRODUCTION, *map(study, TITLES), large(), calibration_time(), sampling()]
    PAGE.write_text("\n".join(section for section in sections if section))


if __name__ == "__main__":
    main()
