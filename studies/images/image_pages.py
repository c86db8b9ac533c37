"""The page about images, docs/results/images.md, from the records of the benchmarks about them.

    python -m studies.images.image_pages

The page uses the records of studies.images and of the benchmarks large_images and tarflow_sampling. Sections
without records are omitted. Nearly all numbers in the text are computed from the records.
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
SEEN = {  # by visual inspection
    "mnist": "Nearly all digits are legible.",
    "afhq": "They show colours, fur textures and some eyes and snouts, but no whole faces.",
}
INTRODUCTION = """\
# Images, before and after

This page repeats the image experiment of Dheur and Ben Taieb (NeurIPS 2025) on smaller images: TarFlows are
trained on a CPU and recalibrated. `python -m studies.images.image_pages` writes this page from the records
in `studies/benchmarks/results`. These commands made the records:

```sh
python -m studies.images --data mnist --threads 1
python -m studies.images --data afhq --threads 1
python -m studies.benchmarks.large_images
python -m studies.benchmarks.tarflow_sampling
```

[Train and recalibrate a flow on images](../how_to/images.md) shows how to run the published flow at
256 x 256.

## What is compared

- **Methods.** BASE is the flow as trained. LR is `recalibrate` with its default law, LR-KDE uses the
  published law (a gamma KDE), and *LR by class* has one law per class.
- **Calibration images.** The paper calibrates on *train* images. The *held-out* images were set aside before
  training and not used for any choice. Both sets have the same size.
- **Standard errors.** Each evaluation draws new noise for all calibration and test images; ± is the standard
  error over evaluations. It includes the variation of the noise, but not that of the images or of the
  training. The change of BPD (bits per dimension) is computed within each evaluation, with the same noise
  before and after, so its standard error is much smaller.
- **L-ECE** lies between 0 and about 0.5. For n images and a calibrated flow, it is about 0.31/√n.
- **Length of training.** The calibration error depends on how long a flow was trained. An earlier flow on
  MNIST had an L-ECE of 0.194 after 100,000 images (counting repetitions), and an earlier flow on AFHQ had
  0.111 after 30,000 images. Recalibration reduced the L-ECE of all flows to between 0.01 and 0.02.
"""
VERSIONS = """\
## Which version

- **Records.** The records of MNIST and AFHQ and the calibration times were made at commit 98eb83d. The
  records of 256 x 256 images were made at commit 2e93374, those of sampling at commit 9cb3e65.
- **Test images.** The earlier flow on MNIST was first evaluated on the first 4,000 test images (L-ECE 0.020
  after recalibration on held-out images). Test images are now drawn at random.
"""


def results(name: str) -> dict[str, Any] | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def records_of(data: str, steps: int) -> list[Record]:
    """Scores of the flow after a number of steps."""
    return [
        row | {"images": int(row["images"]), "l_ece": float(row["l_ece"]), "bpd": float(row["bpd"])}
        for row in read(RESULTS / "images.csv")
        if (row["data"], row["steps"]) == (data, str(steps))
    ]


def study(data: str) -> str:
    """Section about a data set, in Markdown."""
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
    done, planned = f"{training['steps']:,}", f"{training['planned']:,}"
    steps = f"all {planned}" if done == planned else f"{done} of the {planned}"
    lines = [
        f"## {TITLES[data]}",
        "",
        f"The flow has {training['parameters'] / 1e6:.2f} million weights and was trained on images with",
        f"noise of standard deviation {about.noise.std:g}, for {steps} steps of its schedule. It saw",
        f"{training['images']:,} images, counting repetitions.",
        f"This took {cpu:.0f} minutes of processor time ({wall:.0f} minutes of wall-clock time",
        f"with {_threads(training)}). After",
        f"step {step:,}, the BPD of 1,000 held-out images was {bpd:.3f}. There are {evaluations} evaluations",
        f"with {about.calibration:,} calibration images and {tested:,} test images. The L-ECE is",
        f"{before:.3f} before recalibration; a calibrated flow would have about {0.31 / tested**0.5:.4f}.",
        "",
        scores_table(records),
        "",
        "By class, calibrated on held-out images:",
        "",
        classes_table(records, "held-out", ["BASE", "LR", "LR by class"]),
        "",
    ]
    if data == "afhq":
        lines += ["Compared with the published figures (published law, calibrated on training images):", ""]
        lines += [beside_published(records, "train"), ""]
    lines += [
        "The figure shows samples before recalibration (left), samples after it (middle), and the latter",
        "with the training noise removed by `denoise` (right). Samples at the same position on the left and",
        "in the middle have latents of the same direction; only the norm differs.",
        SEEN[data],
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
## Calibration time

The table shows the processor time of one thread for {found["images"]:,} MNIST images. LR was measured on all
of them. HDR-R draws 100 samples per image; it was measured on {measured["images"]} images
({measured["cpu seconds"]:.1f} s) and **extrapolated** in proportion.

| | LR | HDR-R | ratio |
|---|---|---|---|
| here, MNIST | {lr:,.1f} s | {hdr:,.0f} s (extrapolated) | {hdr / lr:,.0f} |
| published, CIFAR-10 | {there["LR"]:,.0f} s | {there["HDR-R"]:,.0f} s | {there["HDR-R"] / there["LR"]:,.0f} |

Fitting the law takes {found["seconds of the fit itself"]:.2f} s of the time of LR; the rest is one pass of
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

The flow is a tiny, untrained TarFlow, and the images are synthetic: {whole["images"]:,} for calibration and
as many for testing, with one thread. The table shows that the computation works at this size. It does not
show the gain for a trained flow.

| | BASE | LR |
|---|---|---|
| L-ECE | {whole["L-ECE, base"]:.4f} | {whole["L-ECE, recalibrated"]:.4f} |
| BPD | {whole["BPD, base"]:.5f} | {whole["BPD, recalibrated"]:.5f} |

- All values are finite: {"yes" if whole["all finite"] else "no"}.
- The peak of resident memory is {whole["peak, MB"]:.0f} MB, of which torch and the flow use
  {whole["peak before, MB"]:.0f} MB before the first image. With a quarter of the images, it is
  {quarter["peak, MB"]:.0f} MB. All images at once would need {gigabytes:.1f} GB.
- The benchmark sets `MALLOC_MMAP_THRESHOLD_=1048576`. Without it, the heap of glibc fragments, and memory
  once reached 2.6 GB.
- Recalibration took {whole["recalibration, cpu s"]:.0f} s of processor time, and six samples took
  {whole["6 samples, cpu s"]:.1f} s.
- The largest error of decode(encode(y)) is {whole["largest error of decode(encode(y))"]:.1g}.
"""


def sampling() -> str:
    found = results("tarflow_sampling")
    if found is None:
        return ""
    cases = {name: row for name, row in found.items() if isinstance(row, dict)}
    lines = [
        "## Sampling with cached keys and values",
        "",
        "TarFlow caches keys and values while it samples. The table compares this with recomputing all",
        f"earlier patches for each new one ({found['flow']}, one thread, processor time, medians of",
        f"{found['turns']}).",
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
    lines += ["", "The ratio grows with the number of patches and the number of samples per call."]
    if low:
        lines += [
            f"It is below 5 for: {'; '.join(low)}.",
            "With few patches, most of the time is the overhead of calling the layers.",
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
    """Table of our figures and the published ones, both with the published law and calibration images."""
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
    """Mean difference in BPD to the base, paired by evaluation because both use the same noise."""
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
    sections = [INTRODUCTION, *map(study, TITLES), large(), calibration_time(), sampling(), VERSIONS]
    PAGE.write_text("\n".join(section for section in sections if section))


if __name__ == "__main__":
    main()
