import pytest
import torch
from torch import distributions as td
from torch import nn

import latentcal as lc
import same
from latentcal.adapters import from_torch

LOC, SCALE = torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.3])


def standard(dim=2):
    return td.Independent(td.Normal(torch.zeros(dim), torch.ones(dim)), 1)


CHAINS = {
    "no transform": td.MultivariateNormal(LOC, scale_tril=torch.tensor([[1.0, 0], [0.5, 2.0]])),
    "element-wise": td.TransformedDistribution(
        standard(), [td.AffineTransform(LOC, SCALE), td.ExpTransform()]
    ),
    "number as scale": td.TransformedDistribution(standard(), [td.AffineTransform(1.0, 2.0)]),
    "on events": td.TransformedDistribution(
        td.Normal(torch.zeros(2), torch.ones(2)), [td.AffineTransform(LOC, SCALE, event_dim=1)]
    ),
    "composed": td.TransformedDistribution(
        standard(), td.ComposeTransform([td.TanhTransform(), td.AffineTransform(LOC, SCALE)])
    ),
    "independent log-normal": td.Independent(td.LogNormal(LOC, SCALE), 1),
    "nested": td.TransformedDistribution(
        td.Independent(td.LogNormal(LOC, SCALE), 1), [td.PowerTransform(2.0)]
    ),
    "cube": td.TransformedDistribution(
        td.Independent(td.Uniform(torch.zeros(2), torch.ones(2)), 1), [td.SigmoidTransform().inv]
    ),
    "inverse": td.TransformedDistribution(standard(), [td.ExpTransform(), td.ExpTransform().inv]),
}


@pytest.mark.parametrize("distribution", CHAINS.values(), ids=CHAINS.keys())
def test_the_density_is_the_library_s_and_the_promises_are_kept(distribution):
    y = distribution.sample((40,))
    flow = from_torch(distribution)
    lc.testing.check_flow_contract(flow, None, y, log_prob=distribution.log_prob(y))


class Conditional(nn.Module):
    """x -> a distribution whose base and transforms depend on x, with dropout on the way."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 6))

    def forward(self, x):
        loc, log_scale, shift = self.network(x).chunk(3, -1)
        base = td.Independent(td.Normal(loc, log_scale.exp()), 1)
        return td.TransformedDistribution(base, [td.AffineTransform(shift, 2.0), td.ExpTransform()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_conditional_distribution_takes_batches_of_x_and_extra_sample_dims(dtype):
    model = Conditional().to(dtype)
    x = torch.randn(30, 3, dtype=dtype)
    flow = from_torch(model, x[:1])
    y = model(x).sample((5,))
    assert y.shape == (5, 30, 2)
    torch.testing.assert_close(flow(x).log_prob(y), model(x).log_prob(y), rtol=1e-5, atol=1e-5)
    assert flow(x).sample((7,)).dtype == dtype
    lc.testing.check_flow_contract(flow, x, y[0])


def test_a_function_without_x_ignores_it_and_one_with_x_wants_it():
    y, distribution = torch.ones(4, 2), CHAINS["element-wise"]
    for alone in (from_torch(lambda: distribution), from_torch(distribution, torch.zeros(1, 3))):
        torch.testing.assert_close(alone(torch.zeros(4, 3)).log_prob(y), alone().log_prob(y))
    with pytest.raises(ValueError, match=r"must be \(..., p\), got None"):
        from_torch(Conditional(), torch.zeros(1, 3))().log_prob(y)


def test_gradients_reach_the_model():
    model = Conditional()
    x = torch.randn(30, 3)
    y = model(x).sample()
    ours, theirs = (
        torch.autograd.grad(d.log_prob(y).mean(), list(model.parameters()))
        for d in (from_torch(model, x)(x), model(x))
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_element_wise_determinants_are_summed_over_the_outputs():
    distribution = CHAINS["element-wise"]
    y = distribution.sample((40,))
    z, log_abs_det = from_torch(distribution).encode(y)
    u, naive = y, torch.zeros(())
    for transform in reversed(distribution.transforms):
        before = transform.inv(u)
        naive = naive - transform.log_abs_det_jacobian(before, u)
        u = before
    assert naive.shape == y.shape  # what an unreduced recipe would have: one number a coordinate
    torch.testing.assert_close(log_abs_det, naive.sum(-1))
    torch.testing.assert_close(z, u)


def test_determinants_of_stacked_transforms_are_summed_although_torch_cannot():
    stack = td.StackTransform([td.ExpTransform(), td.AffineTransform(1.0, 3.0)], dim=-1)
    distribution = td.TransformedDistribution(standard(), [stack])
    y = distribution.sample((20,))
    with pytest.raises(RuntimeError, match="size of tensor"):  # control
        distribution.log_prob(y)
    flow = from_torch(distribution)
    alone = td.LogNormal(0.0, 1.0).log_prob(y[:, 0]) + td.Normal(1.0, 3.0).log_prob(y[:, 1])
    lc.testing.check_flow_contract(flow, None, y, log_prob=alone)


def test_transforms_lead_from_latent_to_data():
    flow = from_torch(td.TransformedDistribution(standard(), [td.ExpTransform()]))
    torch.testing.assert_close(flow.latent(torch.full((1, 2), 3.0)), torch.full((1, 2), 3.0).log())
    torch.testing.assert_close(flow.decode(torch.ones(1, 2)), torch.ones(1, 2).exp())


class WrongInverse(td.Transform):
    domain = codomain = td.constraints.real
    bijective = True

    def _call(self, x):
        return 2 * x

    def _inverse(self, y):
        return y / 3

    def log_abs_det_jacobian(self, x, y):
        return torch.full_like(x, 0.6931)


def test_a_cache_does_not_hide_a_wrong_inverse():
    transform = WrongInverse(cache_size=1)
    z = torch.randn(10, 2)
    assert same.copied(transform.inv(transform(z)), z)  # control: the cache does hide it
    flow = from_torch(td.TransformedDistribution(standard(), [transform]))
    assert float((flow.latent(flow.decode(z)) - z).abs().max()) > 0.1
    y = torch.randn(10, 2)
    assert float((flow.decode(flow.latent(y)) - y).abs().max()) > 0.1
    assert not lc.check_flow(flow, None, y).passed


def test_a_cache_does_not_return_what_old_parameters_gave():
    scale = torch.ones(2)
    flow = from_torch(td.TransformedDistribution(standard(), [td.AffineTransform(0.0, scale, cache_size=1)]))
    y = torch.ones(1, 2)
    first = flow.latent(y)
    scale.mul_(2)
    torch.testing.assert_close(flow.latent(y), first / 2)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: lambda x: m(x), lambda m: m.forward])
def test_networks_are_in_evaluation_mode_during_calls_and_back_in_their_own_after(wrap):
    model = Conditional(dropout=0.5).train()
    model.network[1].eval()  # a module with a mode of its own
    x, y = torch.randn(30, 3), torch.rand(30, 2) + 0.5
    assert same.different(model(x).log_prob(y), model(x).log_prob(y))  # control: it is random
    flow = from_torch(wrap(model), x)
    z, _ = flow.encode(y, x)
    assert same.repeated(flow.encode(y, x)[0], z)
    assert [model.training, model.network[2].training, model.network[1].training] == [True, True, False]
    torch.testing.assert_close(flow.decode(z, x), y, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        model.eval()
        torch.testing.assert_close(flow(x).log_prob(y), model(x).log_prob(y), rtol=1e-5, atol=1e-5)


def test_networks_that_a_function_hides_can_be_named():
    hidden = {"model": Conditional(dropout=0.5)}
    x, y = torch.randn(30, 3), torch.rand(30, 2) + 0.5
    flow = from_torch(lambda x: hidden["model"](x), x, networks=hidden["model"])
    assert same.repeated(flow.latent(y, x), flow.latent(y, x))
    assert len(list(flow.parameters())) == 4
    with pytest.raises(TypeError, match="networks must be torch modules, got str"):
        from_torch(hidden["model"], x, networks=["model"])


def test_dtype_and_answers_do_not_depend_on_the_argument_checks_of_torch():
    distribution = CHAINS["element-wise"]
    y = distribution.sample((4,))
    before = td.Distribution._validate_args
    try:
        answers = []
        for checks in (True, False):
            td.Distribution.set_default_validate_args(checks)
            flow = from_torch(distribution)
            answers.append(flow().log_prob(y))
            with pytest.raises(ValueError, match="NaN or infinite"):
                flow().log_prob(y * float("nan"))
            with pytest.raises(ValueError, match="y has 3 outputs"):
                flow().log_prob(torch.ones(4, 3))
    finally:
        td.Distribution.set_default_validate_args(before)
    torch.testing.assert_close(*answers)


def test_a_double_distribution_takes_float_data_and_answers_in_double():
    double = td.TransformedDistribution(
        td.Independent(td.Normal(torch.zeros(2).double(), torch.ones(2).double()), 1), [td.ExpTransform()]
    )
    flow = from_torch(double)
    assert flow().sample((3,)).dtype == torch.float64
    assert flow().latent(torch.ones(3, 2)).dtype == torch.float64


def test_example_features_of_another_dtype_are_cast_to_that_of_the_networks():
    from_torch(Conditional(), torch.zeros(1, 3, dtype=torch.float64).numpy())


def test_a_function_without_networks_works_in_the_dtype_of_the_data():
    flow = from_torch(lambda x: td.Independent(td.Normal(x, torch.ones_like(x)), 1), torch.zeros(1, 2))
    x, y = torch.zeros(1, 2, dtype=torch.float64), torch.full((1, 2), 1e-12, dtype=torch.float64)
    torch.testing.assert_close(flow(x + 1).latent(1 + y), 1 + y - 1, rtol=1e-6, atol=0)  # float32: 0


WRONG = {
    "a network": (nn.Linear(2, 2), torch.zeros(1, 2), TypeError, "Expected a torch distribution, got Tensor"),
    "a number": (3.0, None, TypeError, "distribution or a function x -> distribution, got float"),
    "no x": (Conditional(), None, TypeError, r"from_torch\(function, x\)"),
    "outputs in the batch": (
        td.Normal(torch.zeros(2), 1.0),
        None,
        ValueError,
        r"Independent\(distribution, 1\)",
    ),
    "not one to one": (
        td.TransformedDistribution(standard(), [td.AbsTransform()]),
        None,
        ValueError,
        "AbsTransform.*recalibrate_prerank",
    ),
    "another dimension": (
        td.TransformedDistribution(standard(), [td.StickBreakingTransform()]),
        None,
        ValueError,
        "3 outputs but 2 latent dimensions",
    ),
}


@pytest.mark.parametrize(("thing", "x", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_flow_is_refused_with_a_reason(thing, x, error, words):
    with pytest.raises(error, match=words):
        from_torch(thing, x)


def test_a_base_that_becomes_another_law_is_refused():
    laws = [td.Normal(torch.zeros(1, 2), 1.0), td.Laplace(torch.zeros(1, 2), 1.0)]
    flow = from_torch(lambda x: td.Independent(laws[0], 1), torch.zeros(1, 1))
    laws.reverse()
    with pytest.raises(ValueError, match=r"family='normal'.*when the adapter was made"):
        flow.encode(torch.zeros(1, 2), torch.zeros(1, 1))


def test_a_recalibrated_one_is_saved_and_loaded_around_the_model(tmp_path):
    model = Conditional()
    x = torch.randn(200, 3)
    y = model(x).sample()
    flow = from_torch(model, x)
    fitted = lc.recalibrate(flow, x, 1.5 * y)
    lc.save(fitted, tmp_path / "model")
    again = lc.load(tmp_path / "model", flow=flow)
    torch.testing.assert_close(again(x).log_prob(y), fitted(x).log_prob(y))
    for name, tensor in again.base.state_dict().items():
        assert same.copied(tensor, fitted.base.state_dict()[name]), name
