"""Model files that were written once are read for ever, or refused in one line.

The files in ``golden`` are never written again. Where the format changes on purpose, raise ``SCHEMA`` and run
``python tests/golden/make.py``, which writes a new folder beside the old one. Old folders stay: either they
are still read, or their schema goes into ``REFUSED``, and the error must be one clear line.
"""

import json
import warnings
from pathlib import Path

import pytest
import torch

import latentcal as lc
from latentcal._internal.model_folder import SCHEMA
from latentcal._internal.names import CLASSES, FUNCTIONS

for name in ("sklearn", "pandas", "click", "zuko"):
    pytest.importorskip(name)

from model_kinds import answer_of, read_any  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
REFUSED: set[int] = set()
"""Schemas that this version does not read any more."""

FOLDERS = sorted(path.parent for path in GOLDEN.glob("schema_*/*/model.json"))
FLOAT32 = {"convex_potential", "autoregressive", "averaged", "flow_matching", "tarflow"}


def assert_alike(found: object, expected: object, tolerance: float) -> None:
    """Text that is the same, and numbers up to rounding."""
    if isinstance(expected, dict):
        assert isinstance(found, dict)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_alike(found[name], value, tolerance)
    elif isinstance(expected, list):
        first, second = (torch.tensor(values, dtype=torch.float64) for values in (found, expected))
        torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)
    else:
        assert found == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_a_file_of_any_version_is_read_as_it_was_written_or_refused(folder):
    if int(folder.parent.name.removeprefix("schema_")) in REFUSED:
        with pytest.raises(lc.files.ModelFileError) as caught:
            lc.load(folder)
        assert len(str(caught.value).splitlines()) == 1
        return
    expected = json.loads((folder / "answer.json").read_text())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lc.conformal.InfiniteRegionWarning)
        found = json.loads(json.dumps(answer_of(read_any(folder))))
    assert_alike(found, expected, 1e-4 if folder.name in FLOAT32 else 1e-7)


def test_everything_that_a_file_may_name_is_in_a_golden_file():
    """For a new class add a model to ``model_kinds.py``, run ``golden/make.py`` and commit the new folder."""
    text = "".join((f / "model.json").read_text() for f in FOLDERS if f.parent.name == f"schema_{SCHEMA}")
    assert [name for name in CLASSES if f'"class": "{name}"' not in text] == []
    assert [name for name in FUNCTIONS if f'"function": "{name}"' not in text] == []


def test_golden_files_are_small_and_name_no_module():
    for folder in FOLDERS:
        assert sum(path.stat().st_size for path in folder.iterdir()) < 20_000
        assert "latentcal." not in (folder / "model.json").read_text()
