"""The origin of a record, and which records must not be combined.

A record contains numbers that the code which made it computes on fixed data: losses of a short training of
its flow, and log densities of its law. Records can be combined if these agree up to rounding. Renaming and
comments do not change them; another initialisation, loss, optimiser or law does. The commit, the version of
torch and the processor are recorded for information. Records without numbers can be combined if they are of
one release.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .methods import law_numbers
from .store import DONE, Record
from .trainings import TrainedRun, agree, training_numbers

_WORDS = {"training": "trainings", "law": "laws"}


def made_by(base: TrainedRun, method: str) -> dict[str, Any]:
    """The origin of a record of a method on a trained flow."""
    return {
        "training": base.numbers,
        "law": law_numbers(method),
        "commit": commit(),
        "torch": str(torch.__version__),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


@cache
def commit() -> str | None:
    """The commit of this checkout, with a + if files differ from it; None outside a checkout."""
    folder = Path(__file__).parent

    def ask(*words: str) -> str:
        answer = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    try:
        changed = ask("status", "--porcelain", "--untracked-files=no", "--", "*.py")
        return ask("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def mixtures(records: Iterable[Record]) -> list[str]:
    """Messages on records of one suite that must not be compared; empty if all can be combined."""
    done = [record for record in records if record["status"] == DONE]
    lines = _mixed("training", "", done)
    for method in dict.fromkeys(record["method"] for record in done):
        lines += _mixed("law", f" of {method}", [record for record in done if record["method"] == method])
    versions = {record["version"] for record in done if "version" in record and "made_by" not in record}
    if len(versions) > 1:  # without numbers, the release is all that tells records apart
        lines.append(f"records of latentcal {' and '.join(sorted(versions))} are mixed")
    return lines


def made_otherwise(records: Iterable[Record]) -> list[str]:
    """Messages on differences between the present code and the code that made the records."""
    done = [record for record in records if record["status"] == DONE]
    now = [
        {
            "status": DONE,
            "method": method,
            "made_by": {"training": training_numbers(flow), "law": law_numbers(method)},
        }
        for flow, method in dict.fromkeys((record["flow"], record["method"]) for record in done)
    ]
    return mixtures([*done, *now]) if done else []


def _mixed(part: str, whose: str, records: list[Record]) -> list[str]:
    kinds: list[Any] = []
    for record in records:
        numbers = record.get("made_by", {}).get(part)
        if not any(agree(numbers, kind) for kind in kinds):
            kinds.append(numbers)
    if len(kinds) < 2:
        return []
    unknown = " (one of them not recorded)" if None in kinds else ""
    return [f"records of {len(kinds)} {_WORDS[part]}{whose}{unknown} are mixed"]
