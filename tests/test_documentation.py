"""Every block of Python in the documents runs and prints the text block after it, up to rounding."""

import contextlib
import io
import re
from itertools import zip_longest
from pathlib import Path

import pytest

from printed import agree

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(path for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) if path.exists())
LONG = {"docs/tutorials/correct_an_sbi_posterior.md", "docs/tutorials/decisions.md"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str | None]]:
    """Python blocks, each with the text block that directly follows it."""
    found = list(BLOCK.finditer(text))
    result = []
    for block, following in zip_longest(found, found[1:]):
        if block[1] == "python":
            adjacent = following is not None and following[1] == "text"
            adjacent = adjacent and not text[block.end() : following.start()].strip()
            result.append((block[2], following[2] if adjacent else None))
    return result


def document(path: Path) -> object:
    name = str(path.relative_to(ROOT))
    return pytest.param(path, id=name, marks=[pytest.mark.slow] if name in LONG else [])


def run(text: str) -> None:
    names: dict[str, object] = {}
    for code, expected in blocks(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "document", "exec"), names)
        if expected is not None:
            assert agree(printed.getvalue(), expected), f"{printed.getvalue()}\ninstead of\n{expected}"


@pytest.mark.filterwarnings("ignore:Capping max_sampling_batch_size:UserWarning")  # sbi's, about memory
@pytest.mark.parametrize("path", [document(path) for path in DOCUMENTS])
def test_the_code_of_a_document_runs_and_prints_what_it_says(path, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    run(path.read_text())
    pyplot.close("all")


def test_a_document_that_says_something_else_fails():
    with pytest.raises(AssertionError):
        run("```python\nprint(1)\n```\n\n```text\n2\n```\n")
