"""Write one model file of every kind, with its answers beside it, into this folder.

    python tests/golden/make.py

What is there already is never written again: see ``tests/test_golden_files.py``.
"""

import json
import sys
from pathlib import Path

import torch

GOLDEN = Path(__file__).resolve().parent
sys.path.insert(0, str(GOLDEN.parent))

from latentcal._internal.model_folder import SCHEMA  # noqa: E402
from model_kinds import answer_of, model_kinds, other_kinds, read_any  # noqa: E402


def main() -> None:
    """Write the kinds that are missing."""
    torch.set_num_threads(1)
    for name, kind in {**model_kinds(), **other_kinds()}.items():
        folder = GOLDEN / f"schema_{SCHEMA}" / name
        if not folder.exists():
            kind.write(kind.model, folder)
            answer = json.dumps(answer_of(read_any(folder)), indent=1)
            (folder / "answer.json").write_text(f"{answer}\n")


if __name__ == "__main__":
    main()
