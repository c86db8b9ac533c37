import json

import pytest
import torch

import latentcal as lc
import same
from latentcal.persistence import SCHEMA


def rows(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=generator)
    return x, x[:, :2] + (1 + x[:, 2:].abs()) * torch.randn(n, 2, generator=generator)


def assert_same(loaded: lc.ConditionalFlow, model: lc.ConditionalFlow, x, y) -> None:
    """The saved numbers to the last bit, and float32 log densities to their rounding."""
    numbers = loaded.state_dict()
    assert numbers.keys() == model.state_dict().keys()
    assert all(same.copied(tensor, numbers[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(loaded(x).log_prob(y), model(x).log_prob(y), rtol=1e-4, atol=1e-4)


@pytest.fixture
def recalibrated(generator):
    x, y = rows(600, generator)
    return lc.recalibrate(lc.flows.LinearGaussianFlow.fit(x[:300], y[:300]), x[300:], y[300:])


@pytest.mark.parametrize(
    "fit",
    [lc.StackedRadius.fit, lc.GammaKDE.fit, lc.SplineRadius.fit, lc.ScaledRadius.fit],
    ids=["stacked", "gamma_kde", "spline", "scaled"],
)
def test_a_loaded_model_has_the_same_numbers_to_the_last_bit_and_the_same_log_densities(
    tmp_path, generator, fit
):
    x, y = rows(600, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x[:300], y[:300])
    model = lc.recalibrate(flow, x[300:], y[300:], fit=fit)
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    assert_same(loaded, model, x, y)
    lc.save(loaded, tmp_path / "again")  # numbers that are no tensors are in the files too
    for file in (tmp_path / "model").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()
    assert same.different(flow(x).log_prob(y), loaded(x).log_prob(y))


def test_a_tightened_law_and_an_empirical_one_come_back(tmp_path, generator):
    radii = lc.Chi(3).sample((50,), generator)
    r = torch.linspace(0, 6, 100)
    tight = lc.tighten(lc.GammaKDE.fit(radii), radii, max_lambda=0.5)
    for law in (tight, lc.EmpiricalRadius.fit(radii), lc.StudentRadius(3, 4.0)):
        lc.save(law, tmp_path / "law")
        torch.testing.assert_close(lc.load(tmp_path / "law").cdf(r), law.cdf(r))


def test_a_hundred_thousand_radii_take_at_most_a_hundred_kilobytes(tmp_path, generator):
    x, y = rows(100_000, generator)
    model = lc.recalibrate(lc.flows.LinearGaussianFlow.fit(x[:300], y[:300]), x, y)
    lc.save(model, tmp_path / "model")
    assert sum(file.stat().st_size for file in (tmp_path / "model").iterdir()) <= 100_000
    assert_same(lc.load(tmp_path / "model"), model, x, y)


def test_the_record_of_the_recalibration_comes_back(tmp_path, recalibrated):
    lc.save(recalibrated, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    assert str(loaded.recalibration) == str(recalibrated.recalibration)
    assert loaded.recalibration.fingerprint == recalibrated.recalibration.fingerprint
    assert loaded.recalibration.law is loaded.base.radius


def test_a_flow_in_the_users_units_comes_back(tmp_path, generator):
    x, y = rows(600, generator)
    inner = lc.flows.LinearGaussianFlow.fit(x[:300], y[:300])
    flow = lc.Standardized(inner, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    model = lc.recalibrate(flow, x, y)
    lc.save(model, tmp_path / "model")
    assert_same(lc.load(tmp_path / "model"), model, x, y)


class Shifted(lc.ConditionalFlow):
    """A flow of somebody else: not in the file, given again when loading."""

    def __init__(self, shift: float) -> None:
        super().__init__(lc.standard_normal(2))
        self.register_buffer("offset", torch.tensor(shift))

    def encode(self, y, x=None):
        return y - self.offset, torch.zeros(y.shape[:-1])

    def decode(self, z, x=None):
        return z + self.offset


def test_a_foreign_flow_is_given_again_when_loading(tmp_path, generator):
    y = 1.5 * torch.randn(200, 2, generator=generator)
    flow = Shifted(0.25)
    model = lc.recalibrate(flow, None, y)
    lc.save(model, tmp_path / "model")
    with pytest.raises(lc.ModelFileError, match=r"load\(path, flow=...\)"):
        lc.load(tmp_path / "model")
    loaded = lc.load(tmp_path / "model", flow=flow)
    assert_same(loaded, model, None, y)
    assert flow.recalibration is None


def test_no_pickle_is_in_the_files(tmp_path, recalibrated):
    lc.save(recalibrated, tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]
    json.loads((tmp_path / "model" / "model.json").read_text())


def test_a_saved_model_replaces_an_earlier_one_and_nothing_else(tmp_path, recalibrated):
    lc.save(recalibrated, tmp_path / "model")
    lc.save(lc.Chi(2), tmp_path / "model")
    assert isinstance(lc.load(tmp_path / "model"), lc.Chi)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.tex").write_text("...")
    with pytest.raises(FileExistsError, match="is not a saved model"):
        lc.save(recalibrated, tmp_path / "precious")
    assert (tmp_path / "precious" / "thesis.tex").exists()


def change(folder, **entries):
    path = folder / "model.json"
    document = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(document))


def test_damaged_files_are_refused_with_the_reason(tmp_path, recalibrated):
    folder = tmp_path / "model"

    def damaged(damage, message):
        lc.save(recalibrated, folder)
        damage()
        with pytest.raises(lc.ModelFileError, match=message):
            lc.load(folder)

    numbers, structure = folder / "model.safetensors", folder / "model.json"
    damaged(lambda: numbers.write_bytes(numbers.read_bytes()[:-50]), "truncated or was changed")
    damaged(lambda: structure.write_text(structure.read_text()[:-50]), "truncated or not JSON")
    damaged(lambda: numbers.unlink(), "model.safetensors is missing")
    damaged(lambda: change(folder, model={}), "changed after it was saved")
    damaged(lambda: change(folder, schema=SCHEMA + 1, version="9.0"), "written by latentcal 9.0.*Upgrade")
    damaged(lambda: change(folder, format="other"), "not written by latentcal")
    flipped = lambda content: content[:-1] + bytes([content[-1] ^ 1])  # noqa: E731
    damaged(lambda: numbers.write_bytes(flipped(numbers.read_bytes())), "was changed")


def test_what_cannot_be_saved_says_so(tmp_path):
    with pytest.raises(TypeError, match="takes a flow or a law, got dict"):
        lc.save({}, tmp_path / "model")
    assert not (tmp_path / "model").exists()
