"""Check that a wheel contains the files of the package's folder and its metadata, and nothing else.

python tools/wheel_contents.py WHEEL PACKAGE_FOLDER
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def main(wheel: str, folder: str) -> None:
    """Exit with an error if files are missing or unexpected."""
    package = Path(folder)
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if not name.endswith("/")}
    metadata = {name for name in inside if name.partition("/")[0].endswith(".dist-info")}
    sources = {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    missing, surplus = sorted(sources - inside), sorted(inside - metadata - sources)
    if missing or surplus or f"{package.name}/py.typed" not in inside:
        sys.exit(f"{wheel}: missing {missing}, unexpected {surplus}; py.typed must be among the files.")
    data = sorted(name for name in sources if not name.endswith(".py"))
    print(f"{Path(wheel).name}: {len(sources)} files of the package, data: {', '.join(data)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
