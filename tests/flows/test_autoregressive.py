import importlib
import sys

import pytest
import torch
from torch.distributions import Distribution

import latentcal as lc
import same
from latentcal.flows import AutoregressiveFlow, train_flow

pytest.importorskip("zuko")


def fresh(dim: int, features: int, dtype: torch.dtype = torch.float32, **options) -> AutoregressiveFlow:
    torch.manual_seed(0)
    return AutoregressiveFlow(dim, features, hidden=16, **options).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transform", ["spline", "affine"])
@pytest.mark.parametrize(("dim", "features"), [(1, 2), (2, 0), (2, 2), (16, 2)])
def test_the_flow_keeps_its_promises(dim, features, transform, dtype, generator):
    flow = fresh(dim, features, dtype, transform=transform, flows=2)
    x = torch.randn(40, features, generator=generator, dtype=dtype) if features else None
    y = torch.randn(40, dim, generator=generator, dtype=dtype)
    lc.testing.check_flow_contract(flow, x, y)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-4), (torch.float64, 1e-8)])
@pytest.mark.parametrize("transform", ["spline", "affine"])
def test_a_trained_flow_decodes_far_into_the_tails(transform, dtype, least, generator):
    toy = lc.toy.heteroscedastic_linear()
    x, y = toy.sample(1000, generator, dtype=dtype)
    flow = fresh(2, x.shape[1], dtype, transform=transform)
    log = train_flow(flow, x, y, validation=(x, y), max_epochs=6, batch_size=250, learning_rate=5e-3)
    assert log.best_loss < log.validation_loss[0] - 0.1  # control: it has learned something
    direction = torch.nn.functional.normalize(
        torch.randn(10, 1000, 2, generator=generator, dtype=dtype), dim=-1
    )
    farthest = 2 * float(lc.radius.Chi(2).icdf(torch.tensor(0.9999)))
    z = farthest * torch.rand(10, 1000, 1, generator=generator, dtype=dtype) * direction
    with torch.no_grad():
        y = flow.decode(z, x)
        again, _ = flow.encode(y, x)
        jacobian = torch.autograd.functional.jacobian(lambda y: flow.encode(y, x[:50])[0].sum(0), y[0, :50])
    steepest = float(torch.linalg.matrix_norm(jacobian.transpose(0, 1), 2).max())
    allowed = least + 8 * torch.finfo(dtype).eps * steepest * float(y.norm(dim=-1).max())
    assert float((again - z).norm(dim=-1).max()) <= allowed


def forget_zuko(monkeypatch) -> None:
    """Checks of arguments as torch has them, and no zuko in memory: its import is the first."""
    monkeypatch.setattr(Distribution, "_validate_args", True)
    for name in [name for name in sys.modules if name.split(".")[0] == "zuko"]:
        monkeypatch.delitem(sys.modules, name)


def test_the_argument_checks_of_torch_distributions_stay_on(monkeypatch):
    forget_zuko(monkeypatch)
    AutoregressiveFlow(2, 0)
    assert "zuko" in sys.modules
    with pytest.raises(ValueError, match="scale"):
        torch.distributions.Normal(0.0, -1.0)
    forget_zuko(monkeypatch)
    importlib.import_module("zuko")
    assert not Distribution._validate_args  # control: imported plainly, zuko switches them off


def test_a_saved_flow_comes_back_with_its_weights(tmp_path, generator):
    flow = fresh(2, 1)
    x, y = torch.randn(20, 1, generator=generator), torch.randn(20, 2, generator=generator)
    lc.save(flow, tmp_path / "flow")
    loaded = lc.load(tmp_path / "flow")
    for name, tensor in flow.state_dict().items():
        assert same.copied(loaded.state_dict()[name], tensor), name
    torch.testing.assert_close(loaded(x).log_prob(y), flow(x).log_prob(y))


def test_an_unknown_transform_is_refused():
    with pytest.raises(ValueError, match="'spline' or 'affine', got 'cubic'"):
        AutoregressiveFlow(2, 1, transform="cubic")


def test_missing_features_are_named():
    with pytest.raises(ValueError, match=r"needs 3 features: .*got None"):
        fresh(2, 3).encode(torch.zeros(1, 2))
