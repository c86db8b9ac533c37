import math

import pytest
import torch
from torch.distributions import Beta, LogNormal

import latentcal as lc
import same
from latentcal.base import student_t
from latentcal.flows import Kind, LinearGaussianFlow, Standardized, Supported

KINDS = [
    *(
        "real",
        "positive",
        "positive(softplus)",
        "positive(softplus, 0.3)",
        "unit",
        "interval(-2, 10)",
        "unit(probit)",
        "ordered(1, 5, logit)",
    ),
    *(
        "count",
        "count(softplus)",
        "count(log)",
        "positive(exponential, 2)",
        "ordered(1, 5)",
        "rounded(0.25)",
        "rounded(0.25, 1)",
        "rounded(0.1, 0, 2)",
        "rounded(0.5, 0, softplus, 3)",
    ),
    *("count(log, 6)", "count(exponential, 2, 9.5)", "positive(exponential, 1, 4)"),
]
# Distances from the ends that the dtypes still tell apart.
EDGES = {torch.float64: (1e-300, 1e-12), torch.float32: (1e-37, 1e-6)}


def _normal(dim, dtype=torch.float64):
    scale = torch.eye(dim, dtype=dtype) + 0.3 * torch.ones(dim, dim, dtype=dtype).tril(-1)
    return LinearGaussianFlow(None, torch.zeros(dim, dtype=dtype), scale)


def _edges(kind, dtype):
    """Points at the ends of the support, as close as a difference from them can be told."""
    near_zero, near_one = EDGES[dtype]
    kind = Kind.parse(kind)
    points = []
    for end, sign in ((kind.lower, 1), (kind.upper, -1)):
        if math.isfinite(end):
            reach = near_zero if end == 0 else near_one * max(1, abs(end))
            points += [end + sign * reach, end + sign * 1e3 * reach]
    points += [3e5] if math.isinf(kind.upper) else []
    return torch.tensor(points or [-1e6, 0.0, 1e6], dtype=dtype)[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_keeps_the_promises_of_a_flow(generator, kind, dtype):
    flow = Supported(_normal(3, dtype), [kind, "real", kind])
    y = flow().sample((50,), generator)
    lc.testing.check_flow_contract(flow, None, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_log_determinants_are_those_of_autograd_at_the_edges_of_the_support(kind, dtype):
    flow = Supported(LinearGaussianFlow(None, torch.zeros(1, dtype=dtype), torch.eye(1, dtype=dtype)), [kind])
    y = _edges(kind, dtype).requires_grad_()
    z, log_abs_det = flow.encode(y)
    (slope,) = torch.autograd.grad(z.sum(), y)
    assert bool(torch.isfinite(z).all())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(log_abs_det.detach(), slope[:, 0].log(), rtol=tolerance, atol=tolerance)
    # And the way back, relative to the distance from the end.
    kind = Kind.parse(kind)
    back = flow.decode(z.detach())
    for end in (kind.lower, kind.upper):
        if math.isfinite(end):
            close = ((y - end).abs() < 0.1)[:, 0]
            step = torch.finfo(dtype).eps * max(abs(end), torch.finfo(dtype).tiny)
            off = (back - y).detach()[close].abs()
            # A log of 690 has 13 digits after the point, which is what its exponential knows; a normal score
            # of -37 knows as much.
            allowed = 2 * step + 400 * torch.finfo(dtype).eps * (y - end).detach()[close].abs()
            assert bool((off <= 5 * allowed).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_no_draw_and_no_quantile_leaves_the_support(generator, kind, dtype):
    # A law so wide that a draw in ten rounds to an end, or overflows.
    wide = LinearGaussianFlow(None, torch.zeros(1, dtype=dtype), torch.full((1, 1), 300.0, dtype=dtype))
    flow = Supported(wide, [kind])
    count = 1_000_000 if kind in ("positive", "unit", "count(softplus)") else 50_000
    draws = flow().sample((count,), generator)
    parsed = Kind.parse(kind)
    assert draws.dtype == dtype
    assert bool(parsed.contains(draws).all())
    assert bool(torch.isfinite(draws).all())
    assert bool(flow().support.check(draws).all())
    assert bool(parsed.contains(draws.double().quantile(torch.linspace(0, 1, 5).double())).all())
    # A draw that was moved to the end has a latent again, and a density.
    assert bool(torch.isfinite(flow.latent(draws)).all())
    assert bool(parsed.contains(flow().moments(2000, generator)[0]).all()) or math.isinf(parsed.upper)


def test_known_laws_have_their_densities():
    y = torch.tensor([[1e-300], [0.3], [7.0]], dtype=torch.float64)
    flow = Supported(
        LinearGaussianFlow(None, torch.tensor([0.4]).double(), 2 * torch.eye(1).double()), ["positive"]
    )
    torch.testing.assert_close(flow().log_prob(y), LogNormal(0.4, 2.0).log_prob(y)[:, 0])
    # The logit of a uniform number is logistic: a base on (0, 1), with the inverse of the logistic below.
    uniform = lc.from_functions(
        lambda s: (
            torch.sigmoid(s),
            (torch.nn.functional.logsigmoid(s) + torch.nn.functional.logsigmoid(-s)).sum(-1),
        ),
        torch.logit,
        dim=1,
        base=lc.base.uniform_interval(),
    )
    u = torch.tensor([[1e-12], [0.2], [1 - 1e-12]], dtype=torch.float64)
    expected = Beta(torch.tensor(1.0).double(), 1.0).log_prob(u)[:, 0]
    torch.testing.assert_close(Supported(uniform, ["unit"])().log_prob(u), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("text", ["count(log, 8)", "count(exponential, 3, 8)"])
def test_maps_are_straight_beyond_their_knee(text):
    kind = Kind.parse(text)
    curve = Kind.parse(text.replace(", 8", ""))
    y = torch.linspace(-0.4, 7.5, 50).double()  # as far as 8 from the end, at -0.5
    torch.testing.assert_close(kind.to_line(y), curve.to_line(y))
    far = torch.tensor([7.5, 20.0, 100.0, 1e6]).double()
    line, log_slope = kind.to_line(far)
    torch.testing.assert_close(log_slope, curve.to_line(far[:1])[1].expand(4))
    torch.testing.assert_close(line.diff() / far.diff(), log_slope[1:].exp())
    torch.testing.assert_close(kind.from_line(line), far)
    # Five more on the line are no longer worlds away, as they are on the curve.
    there, curved = kind.from_line(line[:1] + 5), curve.from_line(line[:1] + 5)
    assert float(there) < 70 < float(curved)


def test_outside_of_the_support_the_density_is_0_and_nothing_is_nan(generator):
    flow = Supported(_normal(2), ["positive", "unit"])
    inside = flow().sample((200,), generator)
    y = torch.tensor([[0.0, 0.5], [1.0, 1.0], [-3.0, 2.0], [1.0, 0.5]]).double().requires_grad_()
    for model in (
        flow,
        flow.with_base(student_t(2, 3.0)),
        lc.recalibrate(flow, None, inside),
        lc.align(flow, None, inside),
    ):
        log_prob = model().log_prob(y)
        assert torch.isneginf(log_prob).tolist() == [True, True, True, False]
        assert torch.isinf(model().latent_norm(y)).tolist() == [True, True, True, False]
        assert same.defined(lc.latent_pit(model(), y)[:3], torch.ones(3).double())
        assert model().support.check(y).tolist() == [False, True, False, True]  # torch's intervals are closed
        (slope,) = torch.autograd.grad(log_prob[3], y)
        assert bool(torch.isfinite(slope).all())
    with pytest.raises(ValueError, match=r"3 of 4 rows .*positive at output 0, 0; unit at output 1, 1"):
        flow.to_line(y)
    with pytest.raises(ValueError, match="outside the flow's support"):
        lc.recalibrate(flow, None, y)


def test_all_that_works_on_flows_works_and_keeps_to_the_support(generator):
    x = torch.randn(300, 1, generator=generator)
    y = torch.stack(
        [
            torch.exp(x[:, 0] + 0.5 * torch.randn(300, generator=generator)),
            torch.rand(300, generator=generator),
        ],
        1,
    )
    kinds = ["positive", "unit"]
    line = Supported(_normal(2), kinds).to_line(y.double())
    flow = Supported(LinearGaussianFlow.fit(x.double(), line), kinds)
    for model in (lc.recalibrate(flow, x, y), lc.autocalibrate(flow, x, y, folds=2)):
        draws = model(x).sample((50,), generator)
        assert bool(model.support.check(draws).all())
        assert bool(torch.isfinite(model(x).log_prob(y)).all())
        region = lc.conformal_region(model, x, y, coverage=0.9)
        assert 0.85 < float(region.contains(y, x).double().mean()) < 0.95
    pit = lc.latent_pit(flow(x), y)
    assert 0.3 < float(pit.mean()) < 0.7


def test_kinds_in_one_row_are_those_of_each_output():
    kinds = ["unit", "real", "positive", "unit", "count"]
    y = torch.tensor([[0.2, -3.0, 5.0, 0.7, 2.0]]).double()
    line = Supported(_normal(5), kinds).to_line(y)[0]
    alone = [
        float(Supported(_normal(1), [kind]).to_line(value.reshape(1, 1)))
        for kind, value in zip(kinds, y[0], strict=True)
    ]
    torch.testing.assert_close(line, torch.tensor(alone).double())
    torch.testing.assert_close(Supported(_normal(5), kinds).from_line(line), y[0])


def test_float32_flows_above_float64_means_keep_the_digits(generator):
    inner = Standardized(
        _normal(1, torch.float32), torch.tensor([5.0]).double(), torch.tensor([0.1]).double()
    )
    flow = Supported(inner, ["unit"])
    y = flow().sample((1000,), generator)
    assert y.dtype == torch.float64
    assert bool((y < 1).all())
    torch.testing.assert_close(flow.decode(flow.latent(y)), y)


@pytest.mark.parametrize(
    "kind",
    [
        *KINDS,
        "unit + 0 + 1",
        "interval(0.1, 0.30000000000000004)",
        "positive + 1000000",
        "real + -1e-9 + 2.5e+20",
        "interval(0, 1e+07) + 0",
    ],
)
def test_a_kind_reads_what_it_writes(kind):
    parsed = Kind.parse(kind)
    assert Kind.parse(str(parsed)) == parsed
    assert Kind.parse(f" {kind.upper()} ".replace(", ", ",")) == parsed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("positiv", "did you mean 'positive'"),
        ("interval", "wrong numbers for 'interval'"),
        ("interval(3, 1)", "the lower end must be below the upper one"),
        ("positive(2)", "wrong numbers"),
        ("positive(softplus, -1)", "wrong numbers"),
        ("unit(softplus)", "wrong numbers"),
        ("ordered(1, 5, log)", "wrong numbers"),
        ("count(log, 1, 2)", "wrong numbers"),
        ("count(log, 0)", "wrong numbers"),
        ("count(softplus, 1, 2)", "wrong numbers"),
        ("unit(probit, 2)", "wrong numbers"),
        ("positive(logit)", "wrong numbers"),
        ("ordered(0.5, 2)", "wrong numbers"),
        ("rounded(0)", "wrong numbers"),
        ("rounded(0.5, 0, 1.2)", "wrong numbers"),
        ("interval(a, b)", "an invalid number"),
        ("rounded(0.5) + 0", "drop the atoms"),
        ("real + nan", "an invalid number"),
        ("what is this", "is not a kind of output"),
        (3, "is not a kind of output"),
    ],
)
def test_what_is_no_kind_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Kind.parse(text)
    with pytest.raises(ValueError, match="kinds must be a list of 2 kinds"):
        Supported(_normal(2), "real")


def test_values_go_to_the_cell_that_they_lie_in():
    y = torch.tensor([-0.4, 0.49, 2.6, 7.0])
    assert Kind.parse("count").round(y).tolist() == [0.0, 0.0, 3.0, 7.0]
    assert Kind.parse("ordered(0, 5)").round(y).tolist() == [0.0, 0.0, 3.0, 5.0]
    torch.testing.assert_close(Kind.parse("rounded(0.25)").round(y), torch.tensor([-0.5, 0.5, 2.5, 7.0]))
    assert same.copied(Kind.parse("positive").round(y), y)
