"""Processes start as copies of one that has imported the package: in milliseconds instead of seconds."""

import multiprocessing
from types import SimpleNamespace

import pytest

from studies.tabular import runner


@pytest.fixture(scope="session")
def copies():
    """Starts processes as copies of a process that is fresh but for the imports."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    # Optimisers of torch import torch._dynamo when the first one is made, which takes seconds, too.
    multiprocessing.set_forkserver_preload(["studies.tabular", "torch._dynamo", "distributed"])
    return multiprocessing.get_context("forkserver")


@pytest.fixture
def quick_workers(copies, monkeypatch):
    """The workers of the runner start as copies."""
    monkeypatch.setattr(runner, "multiprocessing", SimpleNamespace(get_context=lambda method: copies))
