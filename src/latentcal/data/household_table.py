"""An artificial table of households: what a user's own table looks like, in any size."""

from __future__ import annotations

import numpy as np

TARGETS = ("food", "housing", "energy")
_REGIONS = ("north", "east", "south", "west")
_TENURES = ("owner", "tenant", "other")


def household_table(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns (n,) of a table of households: an identifier, seven features and three expenses.

    Expenses grow with income and with the number of persons, are skewed, depend on each other, and are more
    uncertain the larger the income: nothing that a linear model with normal errors describes.

    Args:
        n: number of rows.
        seed: of the rows; another one gives other households of the same kind.

    Examples:
        >>> table = household_table(3)
        >>> list(table)[-3:], table["food"].shape
        (['food', 'housing', 'energy'], (3,))
    """
    random = np.random.default_rng(seed)
    region = random.integers(len(_REGIONS), size=n)
    tenure = random.choice(len(_TENURES), size=n, p=(0.55, 0.4, 0.05))
    urban = random.random(n) < 0.7
    age = random.integers(20, 90, size=n)
    persons = 1 + random.poisson(1.3, size=n).clip(max=12)
    income = np.exp(10.3 + 0.15 * np.log(persons) - ((age - 50) / 45) ** 2 + 0.5 * random.standard_normal(n))
    rooms = (1 + persons * 0.6 + income / 4e4 + random.gamma(2.0, 0.7, size=n)).round().clip(max=20)
    common = random.standard_normal(n)
    noise = 0.25 + 0.1 * (income > np.median(income) if n else 0)
    shocks = noise * (0.7 * common + 0.7 * random.standard_normal((len(TARGETS), n)))
    level = np.log(income)
    logs = (
        1.9 + 0.55 * level + 0.35 * np.log(persons) + shocks[0],
        1.2 + 0.65 * level + 0.3 * (tenure == 1) + 0.15 * urban + 1.4 * shocks[1],
        1.6 + 0.35 * level + 0.4 * np.log(rooms) + 0.1 * (region == 0) + 1.1 * shocks[2],
    )
    expenses = {name: np.exp(log).round(2) for name, log in zip(TARGETS, logs, strict=True)}
    return {
        "household": np.array([f"h{seed}-{i}" for i in range(n)]),
        "region": np.array(_REGIONS)[region],
        "tenure": np.array(_TENURES)[tenure],
        "urban": urban,
        "age": age,
        "persons": persons,
        "rooms": rooms.astype(int),
        "income": income.round(2),
        **expenses,
    }
