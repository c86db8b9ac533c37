"""Settings and fixtures that every test shares."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded source of randomness, new for every test."""
    return torch.Generator().manual_seed(20251)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """What draws from torch's global generator does so alike in every run and every order of tests."""
    torch.manual_seed(0)
