"""Every public function answers or says why not, whatever it is given.

``LATENTCAL_EXAMPLES=500 pytest tests/test_properties.py`` tries more; so does ``tools/fuzz_api.py``, by
the same table of calls.
"""

import os
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("resource")
pytest.importorskip("sklearn")

import latentcal as lc
from call_table import EFFORT, TABLE
from outcomes import GOOD, Call, judge
from strategies import EXACT, REFUSED, Draw, Given, Seed

EXAMPLES = int(os.environ.get("LATENTCAL_EXAMPLES", "0"))
QUICK = [name for name in TABLE if EFFORT[name] <= 60]


def examples(name: str) -> int:
    """Few, and fewer of the costly."""
    return EXAMPLES or max(2, min(8, 40 // EFFORT[name]))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TABLE]
)
def test_a_call_gives_the_right_answer_or_a_clear_error(name):
    @settings(
        max_examples=examples(name),
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def holds(source):
        draw = Draw(source)
        call = TABLE[name](draw)
        outcome = judge(call, draw)
        assert outcome.kind in GOOD, f"{outcome} of {call.arguments}"

    holds()


def test_the_table_has_every_function_that_takes_arrays():
    functions = {name for name in lc.__all__ if callable(getattr(lc, name)) and name[0].islower()}
    made = {name.partition(",")[0].partition(" ")[0].partition(".")[0] for name in TABLE}
    # They take models, partitions or files, which have tests of their own.
    others = {name for name in functions if name.startswith("from_")} | {
        *(
            "to_sbi",
            "fit_chain",
            "save",
            "load",
            "diagnose_partitions",
            "evaluate_partitions",
            "recalibrate_partitions",
        ),
        *("standard_normal", "student_t", "laplace", "uniform_ball", "uniform_cube", "uniform_interval"),
    }
    assert functions - others - made == set()
    metrics = {f"metrics.{name}" for name in lc.metrics.__all__ if name[0].islower()}
    assert metrics <= set(TABLE)


def outcome_of(function, values, **expected):
    draw = Draw(random.Random(0))
    return judge(Call(function, {"values": Given(values, None, "tensor")}, **expected), draw).kind


def test_the_judge_sees_what_must_not_happen():
    nan = torch.tensor([1.0, torch.nan])
    assert outcome_of(lambda values: values, nan) == "silently wrong"
    assert outcome_of(lambda values: values / 0, torch.ones(2)) == "silently wrong"
    assert outcome_of(lambda values: values, torch.ones(2), shape=(3,)) == "silently wrong"
    assert outcome_of(lambda values: values @ values, torch.ones(2, 3)) == "other exception"
    assert outcome_of(lambda values: torch.ones(values), "a") == "obscure error"
    assert outcome_of(lambda values: lc.metrics.calibration_error(values), "a", names=("u",)) == "clear error"
    assert outcome_of(lambda values: lc.metrics.calibration_error(values), "a") == "obscure error"
    assert outcome_of(lambda values: values, torch.ones(2)) == "answer"


def test_the_judge_sees_another_answer_than_for_a_plain_tensor():
    numbers = torch.tensor([1.0, 2.0], dtype=torch.float64).numpy()
    given = Given([1.0, 2.0], numbers, "lists")
    call = Call(lambda values: float(isinstance(values, list)), {"values": given})
    assert judge(call, Draw(random.Random(0))).kind == "silently wrong"


def test_the_judge_wants_an_answer_where_all_is_in_order_and_an_error_where_not():
    def refuse(values):
        return lc.metrics.calibration_error(2 + values)

    draw = Draw(random.Random(0))
    call = Call(lambda u: refuse(u), {"u": torch.ones(2)}, answers=True, names=("PIT values",))
    assert judge(call, draw).kind == "other exception"
    draw.odd("it is wrong")
    assert judge(call, draw).kind == "clear error"
    assert judge(Call(lambda u: u, {"u": torch.ones(2)}), draw).kind == "silently wrong"


def test_a_case_is_known_by_its_number():
    def made(number):
        draw = Draw(random.Random(number))
        return repr(TABLE["latent_norms"](draw).arguments), draw.refused

    assert made(5) == made(5)
    assert made(5) != made(6)
    assert Seed().generator().initial_seed() == Seed().generator().initial_seed()
    assert len(EXACT) >= 16
    assert len(REFUSED) >= 18
