"""The registry of names: what it promises is there, under that name."""

import pytest

from latentcal._internal.names import CLASSES, FLOWS, FUNCTIONS, LAWS, find
from latentcal.flow import ConditionalFlow
from latentcal.model_classes import is_known


@pytest.mark.parametrize(("name", "place"), [*CLASSES.items(), *FUNCTIONS.items()])
def test_what_a_file_may_name_is_where_the_registry_says(name, place):
    assert find(place).__name__ == name


@pytest.mark.parametrize("place", FLOWS.values(), ids=FLOWS.keys())
def test_a_flow_with_a_name_can_be_saved(place):
    flow = find(place)
    assert issubclass(flow, ConditionalFlow)
    assert is_known(flow)


@pytest.mark.parametrize("place", LAWS.values(), ids=LAWS.keys())
def test_a_law_with_a_name_can_be_saved(place):
    assert is_known(find(place).__self__)


def test_a_class_with_the_name_of_another_is_not_known():
    assert not is_known(type("Chi", (), {}))
