import pytest
import torch

import same
from latentcal.conformal import conformal_region
from latentcal.events import Box, HalfSpace, Maximum, Membership, Sum, probability
from latentcal.flows import LinearGaussianFlow

Y = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, -1.0], [-1.0, 0.5]])


def test_a_box_contains_its_sides_and_what_lies_between():
    assert Box([0, -1], [1, 1]).contains(Y).tolist() == [True, True, False, False]
    assert Box(-1, 1).contains(Y).tolist() == [True, True, False, True]
    assert Box([-torch.inf, 0], torch.inf).contains(Y).tolist() == [True, True, False, True]


def test_a_half_space_contains_what_lies_on_its_side():
    assert HalfSpace([1, 1], 1).contains(Y).tolist() == [True, False, True, True]


def test_sets_combine():
    a, b = Box(-0.5, 1.5), HalfSpace([1.0, 0.0], 0.5)
    inside_a, inside_b = a.contains(Y), b.contains(Y)
    assert same.decided((a | b).contains(Y), inside_a | inside_b)
    assert same.decided((a & b).contains(Y), inside_a & inside_b)
    assert same.decided((~a).contains(Y), ~inside_a)
    assert same.decided((a & (lambda y, x: y[..., 1] > 0.5)).contains(Y), inside_a & (Y[:, 1] > 0.5))


def test_a_rule_sees_x():
    above = Membership(lambda y, x: y[..., 0] > x[..., 0])
    assert above.contains(Y, torch.tensor([[-1.0], [1.0], [1.0], [0.0]])).tolist() == [
        True,
        False,
        True,
        False,
    ]


def test_what_is_not_a_region_says_so():
    with pytest.raises(ValueError, match=r"lower <= upper for each output, got \[1.0, 0.0\]"):
        Box([1, 0], [0, 1])
    with pytest.raises(ValueError, match="one number for each output"):
        Box([1, 0], [2, 2, 2])
    with pytest.raises(ValueError, match="The box has 3 sides, but y has 2 outputs"):
        Box([0, 0, 0], 1).contains(Y)
    with pytest.raises(ValueError, match="finite and not 0"):
        HalfSpace([0.0, 0.0], 1)
    with pytest.raises(ValueError, match="The normal has 1 entries, but y has 2 outputs"):
        HalfSpace([1.0], 1).contains(Y)
    with pytest.raises(ValueError, match=r"True or False for each of the points \(4,\); got torch.float32"):
        Membership(lambda y, x: y[..., 0]).contains(Y)
    with pytest.raises(TypeError, match=r"or a function of \(y, x\).* got int"):
        Box(0, 1) | 3


def test_a_conformal_region_combines_with_others_and_several_levels_are_refused():
    flow = LinearGaussianFlow(None, torch.zeros(2), torch.eye(2))
    y = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    region, right = conformal_region(flow, None, y, coverage=0.8), HalfSpace([-1.0, 0.0], 0)
    inside = region.contains(Y) & right.contains(Y)
    assert same.decided((region & right).contains(Y), inside)
    assert same.decided((right & region).contains(Y), inside)
    with pytest.raises(ValueError, match=r"several levels, choose one: region\.at\(0\.9\)"):
        probability(flow, None, region.at([0.5, 0.8]))


def test_path_events_are_those_of_sums_and_maxima():
    y = torch.tensor([[1.0, 2.0, 3.0], [4.0, -5.0, 0.0]])
    assert Sum(above=0).contains(y).tolist() == [True, False]
    assert Sum(above=-2, below=6).contains(y).tolist() == [False, True]
    assert Sum(below=0, weights=[0.0, 1.0, 0.0]).contains(y).tolist() == [False, True]
    assert Maximum(above=3.5).contains(y).tolist() == [False, True]
    assert (Maximum(below=3.5) & Sum(above=0)).contains(y).tolist() == [True, False]
    for wrong in ({}, {"above": 1.0, "below": 0.0}, {"above": float("nan")}):
        with pytest.raises(ValueError, match=r"limit|NaN"):
            Maximum(**wrong)
    with pytest.raises(ValueError, match="weights for 3 outputs"):
        Sum(above=0, weights=[1.0]).contains(y)


def test_probabilities_of_path_events_are_those_of_the_normal_law():
    flow = LinearGaussianFlow(None, torch.zeros(3).double(), torch.eye(3).double())
    normal = torch.distributions.Normal(0.0, 1.0)
    total = probability(flow, None, Sum(above=1.0))
    assert float(total.value) == pytest.approx(1 - float(normal.cdf(torch.tensor(1 / 3**0.5))), abs=0.005)
    largest = probability(flow, None, Maximum(below=1.0))
    assert float(largest.value) == pytest.approx(float(normal.cdf(torch.tensor(1.0))) ** 3, abs=0.005)
