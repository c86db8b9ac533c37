"""Numbers of every kind are understood, or refused in words: one entry for all public functions."""

import numpy as np
import pytest
import torch

import latentcal as lc
import same
from latentcal.numerics import to_tensor

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def rows():
    source = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=source, dtype=torch.float64)
    return x, x + torch.randn(60, 2, generator=source, dtype=torch.float64)


@pytest.fixture(scope="module")
def flow(rows):
    return lc.flows.LinearGaussianFlow.fit(*rows)


@pytest.fixture(scope="module")
def model(rows, flow):
    return lc.recalibrate(flow, rows[0][:40], rows[1][:40], fit=lc.ScaledRadius.fit)


CALLS = {
    "log_prob": lambda model, x, y: model(x).log_prob(y),
    "latent": lambda model, x, y: model(x).latent(y),
    "latent_pit": lambda model, x, y: lc.latent_pit(model(x), y),
    "hdr_pit": lambda model, x, y: lc.hdr_pit(model(x), y, generator=torch.Generator().manual_seed(0)),
    "marginal_pit": lambda model, x, y: lc.marginal_pit(
        model(x), y, generator=torch.Generator().manual_seed(0)
    ),
    "probability": lambda model, x, y: (
        lc.probability(model, x, lc.Box(-1, 1), generator=torch.Generator().manual_seed(0)).value
    ),
    "latent_norms": lambda model, x, y: lc.latent_norms(model, x, y),
    "recalibrate": lambda model, x, y: lc.recalibrate(model, x, y, fit=lc.ScaledRadius.fit).base.radius.cdf(
        1.0 + torch.arange(3)
    ),
    "conformal_region": lambda model, x, y: lc.conformal_region(model, x, y).threshold,
    "contains": lambda model, x, y: lc.Region(
        model, lc.LatentScore(), torch.arange(20.0).double(), 0.5
    ).contains(y, x),
    "linear fit": lambda model, x, y: lc.flows.LinearGaussianFlow.fit(x, y).bias,
    "energy score": lambda model, x, y: lc.metrics.energy_score(torch.zeros(3, len(y), 2), y),
}
KINDS = {
    "numpy": lambda v: v.numpy(),
    "frame": lambda v: pd.DataFrame(v.numpy(), columns=["a", "b"], index=[f"row {i}" for i in range(len(v))]),
    "lists": lambda v: v.tolist(),
    "objects": lambda v: v.numpy().astype(object),
    "big-endian": lambda v: v.numpy().astype(">f8"),
    "long double": lambda v: v.numpy().astype(np.longdouble),
    "read-only": lambda v: np.broadcast_to(v.numpy(), v.shape),
    "backwards": lambda v: np.ascontiguousarray(v.numpy()[::-1])[::-1],
    "columns first": lambda v: np.asfortranarray(v.numpy()),
    "negative bit": lambda v: torch._neg_view(-v),
    "transposed": lambda v: v.T.contiguous().T,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::latentcal.CalibrationReuseWarning")
def test_every_kind_of_numbers_gives_the_same_answer(name, kind, model, rows):
    x, y = (part[40:] for part in rows)
    expected = CALLS[name](model, x, y)
    found = CALLS[name](model, KINDS[kind](x), KINDS[kind](y))
    torch.testing.assert_close(found, expected, check_dtype=False)


REFUSED = {
    "complex": (lambda v: v.numpy() * 1j, "real numbers"),
    "complex tensor": (lambda v: v * 1j, "real numbers"),
    "text": (lambda v: np.full(v.shape, "a"), "numbers"),
    "dates": (lambda v: np.full(v.shape, "2020-01-01", dtype="M8[D]"), "numbers"),
    "text in a frame": (lambda v: pd.DataFrame({"a": v[:, 0].numpy(), "b": "text"}), "numbers"),
    "rows of unequal length": (lambda v: [[1.0, 2.0], [3.0]], "equal length"),
    "sparse": (lambda v: v.to_sparse(), "dense"),
    "eight bits": (lambda v: v.to(torch.float8_e4m3fn), "at least 16 bits"),
    "nan": (lambda v: torch.full_like(v, float("nan")), "NaN"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("probability", "energy score")])
def test_what_cannot_be_understood_is_refused_in_words(name, kind, model, rows):
    make, message = REFUSED[kind]
    with pytest.raises((TypeError, ValueError), match=message):
        CALLS[name](model, rows[0], make(rows[1]))


@pytest.mark.parametrize(
    "name", ["log_prob", "latent", "latent_pit", "hdr_pit", "marginal_pit", "probability", "contains"]
)
def test_no_rows_give_no_answers(name, model):
    found = CALLS[name](model, torch.empty(0, 2), torch.empty(0, 2))
    assert found.shape[0] == 0


def test_no_rows_give_no_actions(model):
    assert (
        lc.best_action(model, torch.empty(0, 2), {"go": lc.Payoff(lc.Box(-1, 1), 1, -1), "wait": 0.0}) == []
    )


@pytest.mark.parametrize(
    ("shape", "error"), [(5, TypeError), ((-1,), ValueError), ((2.0,), TypeError), ("a", TypeError)]
)
def test_a_shape_of_draws_that_is_none_is_refused_in_words(shape, error, model):
    with pytest.raises(error, match="shape of draws"):
        model(torch.zeros(3, 2)).sample(shape)


def test_a_latent_that_overflows_has_density_zero():
    flow = lc.flows.LinearGaussianFlow(None, torch.zeros(1), 1e-30 * torch.eye(1))
    for model in (flow, flow.with_base(lc.RadialBase(lc.ScaledRadius(lc.Chi(1), 2.0, 1.5), 1))):
        assert model().log_prob(torch.tensor([1e30])) == -torch.inf


def test_numbers_keep_their_values_and_tensors_their_graph():
    values = torch.randn(3, 2, requires_grad=True)
    assert to_tensor(values) is values
    assert same.copied(to_tensor(np.arange(4, dtype=np.uint16)), torch.arange(4))
    assert to_tensor(7.5).shape == ()
    assert to_tensor(np.float32(1)).dtype == torch.float32
