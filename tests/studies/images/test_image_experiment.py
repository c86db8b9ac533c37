import math

import numpy as np
import pytest
import torch
from PIL import Image

import latentcal as lc
import same
from latentcal.flows import TarFlow
from studies.images import (
    METHODS,
    EncodedImages,
    denoise,
    encode_images,
    image_records,
    paired_samples,
    recalibrate_encoded,
)
from studies.images import encoded as encoded_module
from studies.images.image_pages import (
    PUBLISHED,
    beside_published,
    classes_table,
    mean_of,
    scores_table,
)
from studies.images.pixels import Compose, GaussianNoise, ImageFolder, RandomFlip
from studies.images.source import ImageSource

SHAPE, NOISE = (1, 4, 4), GaussianNoise(0.1)


def small_flow(num_classes: int = 2, seed: int = 0) -> TarFlow:
    torch.manual_seed(seed)
    flow = TarFlow(SHAPE, 2, 8, num_blocks=2, layers_per_block=1, num_classes=num_classes, head_dim=4)
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.normal_(std=0.1)
    return flow.eval()


def pictures(n: int, seed: int, num_classes: int = 2) -> ImageSource:
    """Images narrower than the base law says, those of class 1 wider than those of class 0."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 2, (n,), generator=generator)
    images = (0.2 + 0.3 * labels)[:, None, None, None] * torch.randn(n, *SHAPE, generator=generator)
    return ImageSource(images, labels, SHAPE, num_classes)


def encoding(flow, images, cache, **changes) -> EncodedImages:
    return encode_images(
        flow, images, **({"transform": NOISE, "seed": (0, 0), "batch_size": 16, "cache": cache} | changes)
    )


@pytest.fixture
def fails_to_encode(monkeypatch):
    def fail(*_):
        raise AssertionError("the flow was asked again")

    return lambda: monkeypatch.setattr(TarFlow, "encode", fail)


# --- latents that are encoded once --------------------------------------------------------------------------


def test_encoded_images_are_the_norms_and_densities_of_the_flow(tmp_path):
    flow, images = small_flow(), pictures(40, 1)
    found = encoding(flow, images, tmp_path, transform=None)
    clean, x = images.take(torch.arange(40))
    y = clean.flatten(1)
    with torch.no_grad():
        torch.testing.assert_close(found.norms, lc.latent_norms(flow, x, y))
        torch.testing.assert_close(found.log_prob(flow), flow(x).log_prob(y.double()))
        torch.testing.assert_close(found.pit(flow), lc.latent_pit(flow(x), y))
    assert same.copied(found.labels, x[:, 0])
    assert len(found) == 40


def test_images_are_encoded_once(tmp_path, fails_to_encode):
    flow, images = small_flow(), pictures(40, 1)
    first = encoding(flow, images, tmp_path)
    model = recalibrate_encoded(flow, first)
    fails_to_encode()
    again = encoding(flow, images, tmp_path)
    assert same.copied(first.norms, again.norms)
    assert same.copied(first.log_abs_det, again.log_abs_det)
    assert same.copied(encoding(model, images, tmp_path).norms, first.norms)  # the base plays no part


CHANGES = {
    "another part": {"seed": (0, 1)},
    "another evaluation": {"seed": (1, 0)},
    "more noise": {"transform": GaussianNoise(0.2)},
    "flips": {"transform": Compose(RandomFlip(), NOISE)},
    "no noise": {"transform": None},
    "another flow": {"flow_seed": 1},
    "other images": {"images_seed": 2},
    "fewer images": {"n": 39},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_draw_flow_or_image_is_another_entry(tmp_path, change):
    def encoded(n=40, flow_seed=0, images_seed=1, **options):
        return encoding(small_flow(seed=flow_seed), pictures(n, images_seed), tmp_path, **options)

    first, other = encoded(), encoded(**change)
    assert len(list((tmp_path / "images").iterdir())) == 2
    assert same.different(first.norms, other.norms)


def test_heads_that_no_shape_tells_apart_are_other_entries(tmp_path):
    torch.manual_seed(0)
    flows = [TarFlow(SHAPE, 2, 8, 2, 1, 2, head_dim=size).eval() for size in (4, 8)]
    flows[1].load_state_dict(flows[0].state_dict())
    for flow in flows:
        encoding(flow, pictures(8, 1), tmp_path)
    assert len(list((tmp_path / "images").iterdir())) == 2


def test_an_interrupt_leaves_no_entry(tmp_path, monkeypatch):
    flow, images = small_flow(), pictures(40, 1)
    with monkeypatch.context() as patch:
        taken = ImageSource.take

        def interrupted(self, rows):
            if int(rows[0]) >= 32:
                raise KeyboardInterrupt
            return taken(self, rows)

        patch.setattr(ImageSource, "take", interrupted)
        patch.setattr(encoded_module, "_key", lambda *_: "entry")
        with pytest.raises(KeyboardInterrupt):
            encoding(flow, images, tmp_path)
        assert not (tmp_path / "images" / "entry").exists()
    assert len(encoding(flow, images, tmp_path)) == 40


def test_only_a_batch_of_images_is_asked_for_at_a_time(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    folder = ImageFolder(tmp_path, size=4, channels=1)
    lazy = ImageSource(folder, None, SHAPE, 2)
    eager = ImageSource(torch.stack([image for image, _ in folder]), folder.labels, SHAPE, 2)
    sizes = []
    take = lazy.take
    lazy.take = lambda rows: sizes.append(len(rows)) or take(rows)
    found = encoding(small_flow(), lazy, tmp_path / "1", batch_size=4)
    assert sizes == [10, 4, 4, 2]  # the first is the fingerprint
    expected = encoding(small_flow(), eager, tmp_path / "2", batch_size=4)
    torch.testing.assert_close(found.norms, expected.norms)


def test_a_flow_without_classes_has_one_class(tmp_path):
    found = encoding(small_flow(num_classes=0), pictures(20, 1, num_classes=0), tmp_path)
    assert found.labels.tolist() == [0] * 20


# --- scores -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    calibration = {"train": pictures(400, 1), "held-out": pictures(400, 2)}
    return list(
        image_records(
            small_flow(),
            calibration,
            pictures(400, 3),
            ("dark", "bright"),
            transform=NOISE,
            evaluations=range(2),
            cache=tmp_path_factory.mktemp("cache"),
        )
    )


def test_every_evaluation_scores_every_method_calibration_and_class(records):
    assert len(records) == 2 * (1 + 2 * len(METHODS)) * 3
    first, second = (r["bpd"] for r in records if (r["method"], r["class"]) == ("BASE", "all"))
    assert first != pytest.approx(second)  # fresh noise
    for record in records:
        assert math.isfinite(record["bpd"])
        assert 0 <= record["l_ece"] <= 0.5
    whole = [record for record in records if record["class"] == "all"]
    parts = [record for record in records if record["class"] == "dark"]
    assert all(all_["images"] == 400 for all_ in whole)
    assert all(100 < part["images"] < 300 for part in parts)


def test_recalibration_repairs_the_norm_and_does_not_cost_likelihood(records):
    # The L-ECE of n true uniforms is above 0.06 with a probability far below 1e-6 (n = 400, mean 0.016).
    assert mean_of(records, "l_ece", "BASE") > 0.3
    for calibration in ("train", "held-out"):
        for method in METHODS:
            assert mean_of(records, "l_ece", method, calibration) < 0.06
            assert mean_of(records, "bpd", method, calibration) < mean_of(records, "bpd", "BASE")
    # The two classes have different norms, which only laws by class can follow.
    assert mean_of(records, "l_ece", "LR", "held-out", "dark") > 0.15
    assert mean_of(records, "l_ece", "LR by class", "held-out", "dark") < 0.08


def test_scores_are_those_of_the_plain_functions(tmp_path):
    flow, calibration, test = small_flow(), pictures(300, 1), pictures(200, 2)
    records = image_records(
        flow,
        {"train": calibration},
        test,
        ("dark", "bright"),
        transform=None,
        evaluations=[0],
        cache=tmp_path,
    )
    (score,) = [r for r in records if (r["method"], r["class"]) == ("LR", "bright")]
    clean, x = calibration.take(torch.arange(300))
    model = lc.recalibrate(flow, x, clean.flatten(1))
    clean, x = test.take(torch.arange(200))
    bright = x[:, 0] == 1
    y, x = clean.flatten(1)[bright], x[bright]
    with torch.no_grad():
        nll = -model(x).log_prob(y.double()).mean()
    assert score["l_ece"] == pytest.approx(
        float(lc.metrics.calibration_error(lc.latent_pit(model(x), y))), abs=1e-6
    )
    assert score["bpd"] == pytest.approx(float(lc.metrics.bits_per_dim(nll, 16)), abs=1e-6)
    assert score["images"] == int(bright.sum())


# --- samples ------------------------------------------------------------------------------------------------


def test_pairs_of_samples_share_the_direction_and_not_the_radius(tmp_path, generator):
    flow = small_flow()
    model = recalibrate_encoded(flow, encoding(flow, pictures(300, 1), tmp_path))
    x = torch.arange(2).repeat(100)[:, None]
    pair = paired_samples(flow, model, x, 200, generator)
    with torch.no_grad():
        z, moved = (flow.encode(y, x)[0].double() for y in pair)
    torch.testing.assert_close(
        z / z.norm(dim=1, keepdim=True), moved / moved.norm(dim=1, keepdim=True), atol=1e-4, rtol=0
    )
    u, v = flow.base.radius.cdf(z.norm(dim=1)), model.base.radius.cdf(moved.norm(dim=1))
    torch.testing.assert_close(u, v, atol=1e-3, rtol=0)
    assert (z.norm(dim=1) - moved.norm(dim=1)).abs().mean() > 0.1


def test_denoising_a_gaussian_gives_its_posterior_mean(generator):
    spread, std = 0.5, 0.3
    total = math.hypot(spread, std)
    flow = lc.flows.LinearGaussianFlow(torch.zeros(2, 1), torch.zeros(2), total * torch.eye(2)).double()
    x, y = (
        torch.zeros(50, 1, dtype=torch.float64),
        torch.randn(50, 2, generator=generator, dtype=torch.float64),
    )
    torch.testing.assert_close(denoise(flow, y, x, std), y * (spread / total) ** 2)


# --- tables -------------------------------------------------------------------------------------------------


def test_tables_show_means_errors_and_paired_changes():
    rows = [
        {
            "evaluation": e,
            "calibration": c,
            "method": m,
            "class": "all",
            "images": 5,
            "l_ece": error,
            "bpd": b,
        }
        for e, c, m, error, b in [
            (0, "", "BASE", 0.4, 3.0),
            (1, "", "BASE", 0.4, 3.2),
            (0, "train", "LR-KDE", 0.01, 2.9),
            (1, "train", "LR-KDE", 0.03, 3.1),
        ]
    ]
    assert scores_table(rows).splitlines()[2:] == [
        "| - | BASE | 0.4000 ± 0 | 3.10000 ± 0.1 |  |",
        "| train | LR-KDE | 0.0200 ± 0.01 | 3.00000 ± 0.1 | -0.10000 ± 0 |",
    ]
    assert classes_table(rows, "train", ["BASE", "LR-KDE"]).splitlines()[2] == (
        "| all | 5 | 0.400 ± 0 | 0.020 ± 0.01 | 3.1000 ± 0.1 | 3.0000 ± 0.1 |"
    )
    published, ours = beside_published(rows, "train").splitlines()[2:]
    assert published.endswith("| 0.4740 ± 0.0006 | 0.0089 ± 0.002 | 5.47700 ± 4e-05 | 5.46500 ± 2e-05 |")
    assert ours.endswith("| 0.4000 ± 0 | 0.0200 ± 0.01 | 3.10000 ± 0.1 | 3.00000 ± 0.1 |")
    with pytest.raises(ValueError, match="no record of LR, calibrated on 'train'"):
        mean_of(rows, "bpd", "LR", "train")
    assert PUBLISHED["bpd"]["LR-KDE"].mean < PUBLISHED["bpd"]["BASE"].mean
