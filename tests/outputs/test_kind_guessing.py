import math

import pytest
import torch

from latentcal.flows import Kind
from latentcal.outputs import choose_links, describe_kinds, guess_kinds, resolve_kinds


def _draws(generator, n=500):
    normal = torch.randn(n, generator=generator)
    return {
        "normal": (normal, "real"),
        "far": (1000 + normal, "real"),
        "lognormal": (normal.exp(), "positive"),
        "uniform": (torch.rand(n, generator=generator), "unit"),
        "poisson": (torch.poisson((1 + normal / 2).exp(), generator=generator), "count"),
        "stars": (1 + torch.randint(5, (n,), generator=generator).float(), "ordered(1, 5)"),
        "answer": ((normal > 0).float(), "ordered(0, 1)"),
        "cents": ((normal.exp() * 20).round() / 20, "rounded(0.05, 0)"),
        "degrees": ((20 + 3 * normal).round(), "rounded(1)"),
        "rain": (normal.exp() * (normal > 0), "positive + 0"),
        "share": ((0.5 + normal).clamp(0, 1), "unit + 0 + 1"),
    }


def test_kinds_are_told_from_the_data(generator):
    draws = _draws(generator)
    y = torch.stack([values for values, _ in draws.values()], 1)
    assert dict(zip(draws, guess_kinds(y), strict=True)) == {name: kind for name, (_, kind) in draws.items()}
    y[::7] = torch.nan
    assert dict(zip(draws, guess_kinds(y), strict=True)) == {name: kind for name, (_, kind) in draws.items()}


def test_what_is_declared_holds_and_the_rest_is_guessed(generator):
    draws = _draws(generator)
    names = ["poisson", "cents", "stars", "lognormal"]
    y = torch.stack([draws[name][0] for name in names], 1)
    declared = {"poisson": "count(softplus)", "cents": "rounded", "stars": "ordered"}
    kinds = resolve_kinds(declared, y, names)
    assert kinds[0].startswith("count(softplus, ")
    assert kinds[1:] == ["rounded(0.05, 0)", "ordered(1, 5)", "positive"]
    assert resolve_kinds(["auto", "auto", "real", "real"], y) == ["count", "rounded(0.05, 0)", "real", "real"]
    assert resolve_kinds(None, y, names) == guess_kinds(y)


def test_the_kinds_are_said_in_one_line():
    line = describe_kinds(["unit + 0 + 1", "count", "interval(0, 2)"], ["a", "b", "c"])
    assert line == "Outputs: a: unit, atoms at 0, 1; b: count; c: interval(0, 2)."


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"visit": "count"}, "No output is named 'visit'; did you mean 'visits'"),
        (
            {"visits": "positive"},
            r"declared as positive, but \d+ of 500 values are not of this kind, for example 0. The data look",
        ),
        ({"price": "count"}, "declared as count, but"),
        ({"price": "rounded"}, r"no step can be inferred from its values .* Give the step"),
        (["count"], "y has 2 outputs"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(generator, outputs, message):
    draws = _draws(generator)
    y = torch.stack([draws["poisson"][0], draws["lognormal"][0]], 1)
    with pytest.raises(ValueError, match=message):
        resolve_kinds(outputs, y, ["visits", "price"])
    with pytest.raises(ValueError, match="Output 1 has no value in any row"):
        guess_kinds(torch.tensor([[1.0, torch.nan]]))


def test_maps_of_half_lines_are_chosen_by_rows_held_out(generator):
    normal = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    lognormal = normal[:, 0].mul(2).exp()
    far = 40 + 5 * normal[:, 0]
    waiting = -torch.rand(2000, generator=generator, dtype=torch.float64).log() * 3
    counts = torch.poisson(waiting, generator=generator)
    probit = torch.special.ndtr(2 * normal[:, 1])
    logistic = torch.sigmoid(2 * normal[:, 1])
    y = torch.stack([lognormal, far, waiting, counts, counts * 0.5, normal[:, 1], probit, logistic], 1)
    kinds = ["positive", "positive", "positive + 0", "count", "rounded(0.5, 0)", "real", "unit", "unit"]
    found = choose_links(None, y, kinds)
    assert found[0] == "positive"
    assert found[1].startswith("positive(softplus, ")
    assert found[2].startswith("positive(exponential, ")
    assert found[2].endswith(" + 0")
    assert found[3].startswith("count(exponential, ")
    assert found[4].startswith("rounded(0.5, 0, exponential, ")
    assert found[5:] == ["real", "unit(probit)", "unit"]
    assert choose_links(normal, y, ["count(log)" if k == "count" else k for k in kinds])[3] == "count(log)"
    # Of few rows the maps of grids alone have a scale.
    few = choose_links(None, y[:30], kinds)
    assert [few[j] for j in (0, 1, 2, 5, 6, 7)] == [kinds[j] for j in (0, 1, 2, 5, 6, 7)]
    assert few[3].startswith("count(exponential, ")
    assert few[4].startswith("rounded(0.5, 0, exponential, ")


def test_a_grid_has_a_log_only_where_that_is_clearly_better_and_straight_far_out(generator):
    normal = torch.randn(1000, generator=generator, dtype=torch.float64)
    heavy = torch.round(20 * torch.exp(1.2 * normal))  # a log-normal law: a log is right
    light = torch.poisson(torch.full((1000,), 3.0, dtype=torch.float64), generator=generator)
    found = [Kind.parse(text) for text in choose_links(None, torch.stack([heavy, light], 1), ["count"] * 2)]
    assert [kind.link for kind in found] == ["log", "exponential"]
    # A latent of 5 is within three ranges of the data: a log without an end has it at 8,000.
    far = found[0].from_line(torch.tensor(math.log(20) + 5 * 1.2).double())
    assert float(heavy.max()) < float(far) < 3 * float(heavy.max())
    assert found[0].knee < float(heavy.max()) + 0.5


def test_a_geometric_law_of_few_rows_has_the_mean_of_the_data_and_some_more_spread():
    y = torch.zeros(200, 1).double()
    y[:6] = torch.tensor([1.0, 1.0, 1.0, 2.0, 1.0, 3.0])[:, None]
    (text,) = choose_links(None, y, ["count + 0"])
    kind = Kind.parse(text)
    steps = kind.from_line(torch.randn(100_000, generator=torch.Generator().manual_seed(0)).double())
    values = kind.without_atoms.round(steps)
    # 3 steps above 1 in 6 rows, and a half of both beside them: 3.5 / 6.5 + 1, less what is straightened.
    assert float(values.mean()) == pytest.approx(1.54, abs=0.08)
    assert float(values.min()) == pytest.approx(1)
    # Five standard deviations are within three ranges of the data.
    assert 3 < float(kind.from_line(torch.tensor(5.0).double())) < 9
