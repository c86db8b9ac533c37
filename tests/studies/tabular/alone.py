"""Modules that need nothing but Python, loaded without their package: processes of theirs start at once."""

import importlib.util
from pathlib import Path
from types import ModuleType


def module_alone(name: str) -> ModuleType:
    """A module of ``studies``, by its path without ending, without importing torch."""
    folder = Path(__file__).parents[3] / "studies"
    spec = importlib.util.spec_from_file_location(Path(name).name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def append_many(path, worker, count, together):
    """Append records of a worker's own, and others that all workers have."""
    store = module_alone("tabular/store").Store(path)
    together.wait()
    for i in range(count):
        own = {"id": f"{worker}-{i}", "status": "done", "text": "x" * 500}
        store.append([own, {"id": f"common-{i}", "status": "done", "by": worker}])


def append_forever(path):
    """Append until the process is killed."""
    store = module_alone("tabular/store").Store(path)
    for i in range(10**6):
        store.append([{"id": str(i), "status": "done", "text": "x" * 5000}])
