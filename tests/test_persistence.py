"""A saved model comes back whole, or is refused in one clear line; nothing else is ever touched."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch

import latentcal as lc
import same
from latentcal._internal import atomic_files
from latentcal._internal.atomic_files import new_file
from latentcal._internal.model_folder import SCHEMA, _document_hash


def rows(n: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(n, 3, generator=generator)
    return x, x[:, :2] + (1 + x[:, 2:].abs()) * torch.randn(n, 2, generator=generator)


def assert_same(loaded: lc.ConditionalFlow, model: lc.ConditionalFlow, x, y) -> None:
    """The saved numbers to the last bit, and float32 log densities to their rounding."""
    numbers = loaded.state_dict()
    assert numbers.keys() == model.state_dict().keys()
    assert all(same.copied(tensor, numbers[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(loaded(x).log_prob(y), model(x).log_prob(y), rtol=1e-4, atol=1e-4)


def files(folder: Path) -> tuple[dict, bytes]:
    """The manifest of a folder, but for the name of its numbers, and those."""
    document = json.loads((folder / "model.json").read_text())
    numbers = folder / document["numbers"].pop("file")
    document.pop("sha256")
    return document, numbers.read_bytes()


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
    contents = [files(tmp_path / name) for name in ("model", "again")]
    assert contents[0] == contents[1]
    assert same.different(flow(x).log_prob(y), loaded(x).log_prob(y))


def test_a_tightened_law_and_an_empirical_one_come_back(tmp_path, generator):
    radii = lc.radius.Chi(3).sample((50,), generator)
    r = torch.linspace(0, 6, 100)
    tight = lc.tighten(lc.GammaKDE.fit(radii), radii, max_lambda=0.5)
    for law in (tight, lc.EmpiricalRadius.fit(radii), lc.radius.StudentRadius(3, 4.0)):
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
    flow = lc.flows.Standardized(inner, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    model = lc.recalibrate(flow, x, y)
    lc.save(model, tmp_path / "model")
    assert_same(lc.load(tmp_path / "model"), model, x, y)


class Shifted(lc.ConditionalFlow):
    """A flow of somebody else: not in the file, given again when loading."""

    def __init__(self, shift: float) -> None:
        super().__init__(lc.base.standard_normal(2))
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
    with pytest.raises(lc.files.ModelFileError, match=r"load\(path, flow=...\)"):
        lc.load(tmp_path / "model")
    loaded = lc.load(tmp_path / "model", flow=flow)
    assert_same(loaded, model, None, y)
    assert flow.recalibration is None


def test_a_flow_with_other_weights_than_the_saved_one_raises_a_warning(tmp_path, generator):
    """A model with another flow gave wrong probabilities without a word."""
    flow = Shifted(0.25)
    lc.save(lc.recalibrate(flow, None, torch.randn(200, 2, generator=generator)), tmp_path / "model")
    with pytest.warns(UserWarning, match="weights of the flow given to load differ") as warned:
        lc.load(tmp_path / "model", flow=Shifted(0.5))
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lc.load(tmp_path / "model", flow=Shifted(0.25).double())
        rewrite(tmp_path / "model", lambda document: document["model"].pop("weights"))
        lc.load(tmp_path / "model", flow=Shifted(0.5))  # a file of an earlier version says nothing


def test_an_ensemble_a_prerank_model_and_regions_come_back(tmp_path, generator, recalibrated):
    x, y = rows(300, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x, y)
    ensemble = lc.recalibration.FlowEnsemble([flow, recalibrated])
    prerank = lc.recalibrate_prerank(flow, x, y, samples=20, generator=generator)
    for name, model in (("ensemble", ensemble), ("prerank", prerank)):
        lc.save(model, tmp_path / name)
        expected = model(x[:5]).log_prob(y[:5])
        torch.testing.assert_close(lc.load(tmp_path / name)(x[:5]).log_prob(y[:5]), expected)
    for score in ("latent", "density", "hpd", "pcp"):
        region = lc.conformal_region(recalibrated, x[:200], y[:200], coverage=[0.5, 0.9], score=score)
        lc.save(region, tmp_path / score)
        loaded = lc.load(tmp_path / score)
        assert same.copied(loaded.scores, region.scores)
        assert (loaded.coverage, loaded.score) == (region.coverage, region.score)
        torch.testing.assert_close(loaded.threshold, region.threshold)


def first_output(pred, y, x):
    return y[..., 0]


def test_a_function_that_is_not_ours_cannot_be_saved(tmp_path, generator):
    x, y = rows(100, generator)
    flow = lc.flows.LinearGaussianFlow.fit(x, y)
    model = lc.recalibrate_prerank(flow, x, y, prerank=first_output, samples=20, generator=generator)
    with pytest.raises(TypeError, match=r"model\.prerank is a function, which cannot be saved"):
        lc.save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_no_pickle_is_in_the_files_and_colleagues_may_read_them(tmp_path, recalibrated):
    before = os.umask(0o022)
    try:
        lc.save(recalibrated, tmp_path / "model")
    finally:
        os.umask(before)
    document = json.loads((tmp_path / "model" / "model.json").read_text())
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()}
    assert names == {"model.json": 0o644, document["numbers"]["file"]: 0o644}


def test_a_saved_model_replaces_an_earlier_one_and_nothing_else(tmp_path, recalibrated):
    lc.save(recalibrated, tmp_path / "model")
    (tmp_path / "model" / "thesis.tex").write_text("...")
    lc.save(lc.radius.Chi(2), tmp_path / "model")
    assert isinstance(lc.load(tmp_path / "model"), lc.radius.Chi)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert [name for name in names if not name.startswith("numbers-")] == ["model.json", "thesis.tex"]
    assert len(names) == 3


@pytest.mark.parametrize(
    "manifest", [None, "{}", '{"format": "other"}', "", "[1, 2", '{"format": "latentcal", "schema": 1}']
)
def test_a_folder_that_is_not_a_saved_model_is_left_alone(tmp_path, recalibrated, manifest):
    """A project with a model.json of its own was deleted."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "thesis.tex").write_text("...")
    if manifest is not None:
        (project / "model.json").write_text(manifest)
    before = {path.name: path.read_text() for path in project.iterdir()}
    with pytest.raises(FileExistsError, match="choose another folder"):
        lc.save(recalibrated, project)
    assert {path.name: path.read_text() for path in project.iterdir()} == before
    with pytest.raises(FileExistsError, match="is not a folder"):
        lc.save(recalibrated, project / "thesis.tex")


def rewrite(folder: Path, edit) -> None:
    """Change a manifest and give it the checksum of the change."""
    document = json.loads((folder / "model.json").read_text())
    edit(document)
    document["sha256"] = _document_hash(document)
    (folder / "model.json").write_text(json.dumps(document))


def change(folder, **entries):
    path = folder / "model.json"
    document = json.loads(path.read_text()) | entries
    path.write_text(json.dumps(document))


def test_damaged_files_are_refused_with_the_reason(tmp_path, recalibrated):
    folder = tmp_path / "model"

    def damaged(damage, message):
        shutil.rmtree(folder, ignore_errors=True)
        lc.save(recalibrated, folder)
        (numbers,) = folder.glob("numbers-*.safetensors")
        damage(numbers)
        with pytest.raises(lc.files.ModelFileError, match=message) as caught:
            lc.load(folder)
        assert "\n" not in str(caught.value)

    structure = folder / "model.json"
    damaged(lambda numbers: numbers.write_bytes(numbers.read_bytes()[:-50]), "truncated or was changed")
    damaged(lambda _: structure.write_text(structure.read_text()[:-50]), "truncated or not JSON")
    damaged(lambda numbers: numbers.unlink(), "safetensors is missing")
    damaged(lambda _: change(folder, model={}), "changed after it was saved")
    damaged(lambda _: change(folder, schema=SCHEMA + 1, version="9.0"), "written by latentcal 9.0")
    damaged(lambda _: change(folder, schema=1), "Save the model again")
    damaged(lambda _: change(folder, format="other"), "not written by latentcal")
    damaged(lambda _: structure.write_text("[" * 100_000), "too deep")
    flipped = lambda content: content[:-1] + bytes([content[-1] ^ 1])  # noqa: E731
    damaged(lambda numbers: numbers.write_bytes(flipped(numbers.read_bytes())), "was changed")
    with pytest.raises(lc.files.ModelFileError, match="no such folder"):
        lc.load(tmp_path / "nowhere")


def nested(depth: int) -> dict:
    node = {"id": 100, "class": "Chi", "args": {"dim": 2}}
    for number in range(depth):
        node = {"id": 101 + number, "class": "ScaledRadius", "args": {"reference": node}}
    return node


FORGED = {
    "no weights": (lambda flow: flow["state"].clear(), "is not used by any object|has shape None"),
    "a weight too few": (lambda flow: flow["state"].popitem(), "has shape None"),
    "a huge flow": (lambda flow: flow["args"].update(layers=10**7), "more than the numbers in the file"),
    "another size": (lambda flow: flow["args"].update(hidden=9), "has shape"),
    "a size that is text": (lambda flow: flow["args"].update(hidden="8"), "must be int, got '8'"),
    "a size that is true": (lambda flow: flow["args"].update(hidden=True), "must be int, got True"),
    "an unknown argument": (lambda flow: flow["args"].update(depth=3), "with the arguments"),
    "a missing argument": (lambda flow: flow["args"].pop("dim"), "with the arguments"),
    "another class": (lambda flow: flow.update({"class": "Chi"}), "has the entries"),
    "a class that is not there": (
        lambda flow: flow.update({"class": "os.system"}),
        "needs the unknown class",
    ),
    "a class of Python": (lambda flow: flow.update({"class": "dict"}), "needs the unknown class"),
    "no base": (lambda flow: flow.update(base=None), "must be RadialBase, got None"),
    "a base that is a law": (
        lambda flow: flow.update(base=flow["base"]["args"]["radius"]),
        "must be RadialBase",
    ),
    "a tensor that is not there": (
        lambda flow: flow["state"].update(extra={"tensor": "model.x"}),
        "must be Tensor",
    ),
    "itself": (lambda flow: flow.update(recalibration={"same": 0}), "must be"),
    "a deep law": (lambda flow: flow["base"]["args"].update(radius=nested(200)), "deep"),
    "no table": (lambda flow: flow.update(args=[1]), "must be a table"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_manifest_is_refused_in_one_line(tmp_path, name):
    """The checksum is right, the content is not: weights were random, or errors came from inside torch."""
    edit, message = FORGED[name]
    lc.save(lc.flows.ConvexPotentialFlow(2, 3, hidden=8), tmp_path / "model")
    rewrite(tmp_path / "model", lambda document: edit(document["model"]))
    with pytest.raises(lc.files.ModelFileError, match=message) as caught:
        lc.load(tmp_path / "model")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("entry", ["file", "sha256", "tensors"])
@pytest.mark.parametrize("value", [None, 3, "../../secret", {}, {"model.x": ["float64", [2]]}], ids=str)
def test_a_manifest_that_names_other_numbers_is_refused(tmp_path, recalibrated, entry, value):
    lc.save(recalibrated, tmp_path / "model")
    rewrite(tmp_path / "model", lambda document: document["numbers"].update({entry: value}))
    with pytest.raises(lc.files.ModelFileError):
        lc.load(tmp_path / "model")


SAVE_FOREVER = """
import sys, torch, latentcal as lc
laws = [lc.radius.Chi(dim) for dim in range(1, 50)]
lc.save, lc.ScaledRadius  # are loaded before the clock starts
print("ready", flush=True)
while True:
    for law in laws:
        lc.save(lc.ScaledRadius(law, 2.0), sys.argv[1])
"""


def test_whenever_a_process_is_killed_the_old_or_the_new_model_is_there(tmp_path, generator):
    """There was a moment without any model. A model that is half written fails to load."""
    folder = tmp_path / "model"
    lc.save(lc.radius.Chi(3), folder)
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, folder], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02 + 0.1 * float(torch.rand((), generator=generator)))
        process.kill()
        process.communicate()
        assert isinstance(lc.load(folder), (lc.radius.Chi, lc.ScaledRadius))
    assert isinstance(lc.load(folder), lc.ScaledRadius)  # control: models were written


def test_a_first_save_that_was_killed_does_not_block_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "numbers-0123456789abcdef.safetensors").write_text("half")
    (folder / ".latentcal-0123456789abcdef").write_text("half")
    lc.save(lc.radius.Chi(3), folder)
    assert lc.load(folder).dim == 3


def test_two_writers_and_a_reader_at_once_never_see_half_a_model(tmp_path):
    folder, failures = tmp_path / "model", []
    lc.save(lc.radius.Chi(1), folder)

    def write(dim: int) -> None:
        try:
            for _ in range(40):
                lc.save(lc.ScaledRadius(lc.radius.Chi(dim), 2.0), folder)
        except Exception as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(dim,)) for dim in (2, 3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        lc.load(folder)
    assert failures == []
    assert isinstance(lc.load(folder), lc.ScaledRadius)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_the_old_model_and_no_rubbish(tmp_path, monkeypatch, failing):
    folder, calls = tmp_path / "model", []
    lc.save(lc.radius.Chi(3), folder)
    before = sorted(path.name for path in folder.iterdir())

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) >= failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        lc.save(lc.radius.Chi(5), folder)
    with pytest.raises(OSError, match="No space"):
        lc.save(lc.radius.Chi(5), tmp_path / "new" / "model")
    monkeypatch.undo()
    assert lc.load(folder).dim == 3
    assert sorted(path.name for path in folder.iterdir()) == before
    assert not (tmp_path / "new").exists()


def test_the_next_save_removes_what_a_killed_process_left_and_nothing_that_is_being_written(tmp_path):
    folder = tmp_path / "model"
    lc.save(lc.radius.Chi(3), folder)
    rubbish = [folder / "numbers-0123456789abcdef.safetensors", folder / ".latentcal-0123456789abcdef"]
    for path in rubbish:
        path.write_text("half")
    written = folder / "numbers-0000000000000000.safetensors"
    with new_file(written, b"by another process"):
        lc.save(lc.radius.Chi(4), folder)
        assert written.exists()
    assert not any(path.exists() for path in rubbish)
    lc.save(lc.radius.Chi(5), folder)
    assert not written.exists()
    assert len([*folder.iterdir()]) == 2


def test_what_cannot_be_saved_says_so(tmp_path):
    with pytest.raises(TypeError, match=r"save takes one of .*, got dict"):
        lc.save({}, tmp_path / "model")
    assert not (tmp_path / "model").exists()
