"""Licences of the packages that latentcal and its extras require, as the table of the page on security.

python tools/licences.py           prints the table
python tools/licences.py --write   writes it to docs/concepts/security.md

The licences are those in the metadata of the installed packages; all extras must be installed.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "concepts" / "security.md"
TABLE = re.compile(r"(?<=<!-- licences -->\n).*?(?=<!-- end of licences -->)", re.DOTALL)
# Extras for the development of latentcal, not for its users.
OWN = {"dev", "docs", "all"}
SHORT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD-3-clause": "BSD-3-Clause",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def named_packages() -> dict[str, list[str]]:
    """Packages by name, each with the extras that require it; "core" if all users need it."""
    import tomllib  # from Python 3.11 on

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, list[str]] = {}
    for group, requirements in groups.items():
        for requirement in requirements if group not in OWN else ():
            name = re.match(r"[\w.-]+", requirement)
            if name and name[0] != "latentcal":
                found.setdefault(name[0], []).append(group)
    return found


def licence(name: str) -> str:
    """The licence of a package: its expression, classifier, or the first line of its text."""
    declared = metadata(name)
    expression = declared.get("License-Expression")
    classifiers = [c for c in declared.get_all("Classifier") or [] if c.startswith("License :: ")]
    kinds = [c.rpartition(" :: ")[2] for c in classifiers if not c.endswith("OSI Approved")]
    text = (declared.get("License") or "").strip().partition("\n")[0]
    answer = expression or " and ".join(kinds) or text
    # The classifier "BSD License" does not say which one; the text may.
    if answer == "BSD License" and 0 < len(text) < 40:
        answer = text
    return SHORT.get(answer, answer) or "not declared"


def table() -> str:
    """Packages with their licences in Markdown."""
    lines = ["| package | needed for | licence |", "|---|---|---|"]
    missing = []
    for name, groups in sorted(named_packages().items(), key=lambda item: item[0].lower()):
        try:
            lines.append(f"| {name} | {', '.join(groups)} | {licence(name)} |")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}. pip install '.[dev]' brings them.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, or write it."""
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text()))
    else:
        print(table(), end="")


if __name__ == "__main__":
    main()
