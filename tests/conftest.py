"""Settings and fixtures that every test shares."""

import contextlib
import locale
import os
import random

# The tensors of tests are small: threads that wait for each other only cost time. Before numpy is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch

import other_rounding

other_rounding.install(int(os.environ.get("LATENTCAL_ROUNDING", "0")))
# Two processes share two cores; OMP_NUM_THREADS asks for another number.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

# Programs that call the library may follow the user's locale, decimal comma and all.
with contextlib.suppress(locale.Error):
    locale.setlocale(locale.LC_ALL, "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """LATENTCAL_SHUFFLE=number puts modules, and the tests of each, in another order."""
    if number := os.environ.get("LATENTCAL_SHUFFLE"):
        source = random.Random(int(number))
        place: dict[str, float] = {}
        for item in items:
            place.setdefault(item.nodeid.partition("::")[0], source.random())
        items.sort(key=lambda item: (place[item.nodeid.partition("::")[0]], source.random()))


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness, new for every test."""
    return torch.Generator().manual_seed(20251)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """What draws from torch's global generator does so alike in every run and every order of tests."""
    torch.manual_seed(0)
