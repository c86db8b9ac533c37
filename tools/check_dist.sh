#!/usr/bin/env bash
# Does a wheel hold what it should, and does it work where there is nothing else?
#
#     tools/check_dist.sh dist/latentcal-0.2.0-py3-none-any.whl
#
# Installs it, with the versions of constraints.txt and without extras, in an environment of its own, and runs the first
# Python block of the README there: it must print the text block that follows, up to rounding.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
wheel="$(realpath "$1")"
python="${PYTHON:-python3}"
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT

"$python" "$root/tools/wheel_contents.py" "$wheel" "$root/src/latentcal"
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$wheel"
"$folder/venv/bin/python" -m pip check
cp "$root/README.md" "$root/tests/printed.py" "$folder"
cd "$folder"  # away from the sources: what is imported is the wheel
venv/bin/python - <<'CODE'
import contextlib
import io
import pathlib
import re

import latentcal
from printed import agree

assert "site-packages" in latentcal.__file__, latentcal.__file__
text = pathlib.Path("README.md").read_text(encoding="utf-8")
code, expected = re.search(r"^```python\n(.*?)^```\n+```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE).groups()
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    exec(code)
print(printed.getvalue(), end="")
if not agree(printed.getvalue(), expected):
    raise SystemExit(f"The README says:\n{expected}")
print(f"latentcal {latentcal.__version__} from the wheel prints what the README says.")
CODE
