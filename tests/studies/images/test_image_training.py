import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import same
from latentcal.flows import TarFlow, TrainingWarning, mean_nll
from latentcal.metrics import bits_per_dim
from studies.images import CheckpointError, ImageRecipe, image_grid, train_images, write_png
from studies.images import state as state_module
from studies.images import training_loop as training_module
from studies.images.pixels import Compose, GaussianNoise, ImageFolder, RandomFlip
from studies.images.source import ImageSource, rows_at
from studies.images.state import MovingAverage, read_checkpoint, write_checkpoint

NOISE = Compose(RandomFlip(), GaussianNoise(0.1))
RECIPE = {
    "steps": 12,
    "batch_size": {0: 5, 6: 9},
    "warmup": 3,
    "learning_rate": 3e-3,
    "ema": 0.9,
    "drop_label": 0.2,
    "augment": NOISE,
}


def small_flow(num_classes: int = 2) -> TarFlow:
    torch.manual_seed(0)
    return TarFlow((1, 4, 4), 2, 8, num_blocks=2, layers_per_block=1, num_classes=num_classes, head_dim=4)


def recipe(**changes) -> ImageRecipe:
    return ImageRecipe(**(RECIPE | changes))


@pytest.fixture(scope="module")
def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """23 images, dark or bright as their class says; batches go across the ends of epochs."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (23,), generator=generator)
    brightness = (labels - 0.5)[:, None, None, None]
    return brightness + 0.1 * torch.randn(23, 1, 4, 4, generator=generator), labels


def weights(flow: TarFlow) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in flow.parameters()])


def stop_after(step, how="return"):
    def on_step(done, log):
        if done == step and how == "interrupt":
            raise KeyboardInterrupt
        return done == step

    return on_step


# --- the recipe ---------------------------------------------------------------------------------------------


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    plan = ImageRecipe(steps=110, warmup=10, learning_rate=2.0, floor=0.1)
    rates = [plan.learning_rate_at(step) for step in range(111)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == pytest.approx(2.0)
    assert rates[60] == pytest.approx(2.0 * 0.55)  # halfway between the peak and the floor
    assert rates[110] == pytest.approx(0.2)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_batch_sizes_change_at_their_steps_and_no_image_is_counted_twice():
    plan = ImageRecipe(steps=500, batch_size={0: 4, 10: 7, 20: 3}, warmup=0)
    sizes = [plan.batch_size_at(step) for step in range(25)]
    assert sizes == [4] * 10 + [7] * 10 + [3] * 5
    assert [plan.images_before(step) for step in range(26)] == [sum(sizes[:step]) for step in range(26)]
    assert ImageRecipe(steps=500, batch_size=6).images_before(7) == 42


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": {5: 3}}, "batch_size must be positive, with a size from step 0 on"),
        ({"warmup": 12}, "warmup must be from 0 to steps - 1, got 12"),
        ({"learning_rate": math.nan}, "learning_rate must be positive and finite"),
        ({"ema": 1.0}, "ema must be from 0 to below 1"),
        ({"micro_batch": 0}, "micro_batch must be at least 1"),
    ],
)
def test_impossible_recipes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


# --- the images ---------------------------------------------------------------------------------------------


def test_every_epoch_shows_every_image_once_in_another_order():
    rows = rows_at(0, 30, 10, seed=0).reshape(3, 10)
    assert rows.sort(1).values.tolist() == [list(range(10))] * 3
    assert len({tuple(order) for order in rows.tolist()}) == 3
    assert same.decided(rows_at(7, 16, 10, seed=0), rows.flatten()[7:23])
    assert not same.decided(rows_at(0, 10, 10, seed=1), rows[0])


def test_images_of_the_wrong_kind_are_refused():
    shape = (1, 4, 4)
    with pytest.raises(ValueError, match=r"must be \(n, 1, 4, 4\) or \(n, 16\), got \(2, 1, 5, 4\)"):
        ImageSource(torch.zeros(2, 1, 5, 4), None, shape, 0)
    with pytest.raises(TypeError, match=r"floats in \[-1, 1\], got torch.uint8"):
        ImageSource(torch.zeros(2, 16, dtype=torch.uint8), None, shape, 0)
    with pytest.raises(ValueError, match="2 training images need as many labels, got None"):
        ImageSource(torch.zeros(2, 16), None, shape, 3)
    with pytest.raises(ValueError, match="There are no validation images"):
        ImageSource(torch.zeros(0, 16), None, shape, 0, name="validation")
    with pytest.raises(ValueError, match="NaN or infinite"):
        ImageSource(torch.full((2, 16), math.nan), None, shape, 0).take(torch.tensor([0]))


def test_a_folder_on_disk_trains_to_the_same_bits_as_the_same_images_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (4, 4), dtype=np.uint8)).save(tmp_path / name / f"{i}.png")
    folder = ImageFolder(tmp_path, size=4, channels=1)
    lazy, eager = small_flow(), small_flow()
    train_images(lazy, folder, recipe=recipe())
    train_images(eager, torch.stack([image for image, _ in folder]), folder.labels, recipe=recipe())
    assert same.repeated(weights(lazy), weights(eager))
    with pytest.raises(ValueError, match=r"must be \(1, 4, 4\), the data give \{\(1, 8, 8\)\}"):
        train_images(small_flow(), ImageFolder(tmp_path, size=8, channels=1), recipe=recipe())


# --- the steps ----------------------------------------------------------------------------------------------


def test_training_lowers_the_bits_per_dimension_and_tells_the_classes_apart(pictures):
    images, labels = pictures
    flow = small_flow()
    log = train_images(
        flow,
        images,
        labels,
        recipe=recipe(steps=150, batch_size=23, learning_rate=1e-2),
        validation=(images, labels),
        checkpoint_every=50,
    )
    assert [step for step, _ in log.validation_bpd] == [50, 100, 150]
    assert sum(log.train_bpd[-10:]) / 10 < sum(log.train_bpd[:10]) / 10 - 0.5
    assert log.validation_bpd[-1][1] < log.validation_bpd[0][1]
    right, wrong = (mean_nll(flow, x[:, None], images.flatten(1)) for x in (labels, 1 - labels))
    assert right < wrong
    assert not flow.training
    assert "150 steps" in str(log)


def test_the_reported_number_is_the_negative_log_likelihood_in_bits(pictures):
    images, labels = pictures
    flow = small_flow()
    nll = mean_nll(flow, labels[:, None], images.flatten(1))
    plain = recipe(steps=1, batch_size=23, warmup=0, augment=None, drop_label=0.0)
    log = train_images(flow, images, labels, recipe=plain)
    assert log.train_bpd == [pytest.approx(bits_per_dim(nll, 16), rel=1e-6)]


def test_accumulated_gradients_are_those_of_the_whole_batch(pictures):
    gradients = []
    for micro in (None, 4):
        flow = small_flow().double()
        state = state_module.TrainingState(flow, recipe(batch_size=9, micro_batch=micro, clip=None), "")
        bpd, norm = training_module._gradient(state, ImageSource(*pictures, (1, 4, 4), 2))
        gradients.append((bpd, norm, torch.cat([weight.grad.flatten() for weight in flow.parameters()])))
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0][1] > 0


def test_the_gradient_is_clipped(pictures):
    flow = small_flow()
    state = state_module.TrainingState(flow, recipe(clip=1e-3), "")
    _, norm = training_module._gradient(state, ImageSource(*pictures, (1, 4, 4), 2))
    clipped = torch.cat([weight.grad.flatten() for weight in flow.parameters()]).norm()
    assert norm > 1e-2
    assert float(clipped) == pytest.approx(1e-3, rel=1e-2)


def test_the_moving_average_follows_its_formula_and_gives_the_weights_back():
    module = torch.nn.Linear(1, 1, bias=False)
    average = MovingAverage(module)
    start = module.weight.item()
    with torch.no_grad():
        module.weight.fill_(3.0)
    average.update(0.75)
    expected = 0.75 * start + 0.25 * 3.0
    with average.applied():
        assert module.weight.item() == pytest.approx(expected)
    assert module.weight.item() == 3.0
    average.apply()
    assert module.weight.item() == pytest.approx(expected)


def test_only_matrices_decay():
    flow = small_flow()
    decaying, others = state_module._groups(flow, 0.1)
    named = {id(weight): name for name, weight in flow.named_parameters()}
    assert {named[id(weight)].rsplit(".", 1)[-1] for weight in others["params"]} >= {
        "bias",
        "pos_embed",
        "class_embed",
    }
    assert all(weight.dim() == 2 for weight in decaying["params"])
    assert (decaying["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert len(named) == len(decaying["params"]) + len(others["params"])


# --- going on after an interrupt ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uninterrupted(pictures, tmp_path_factory):
    flow, folder = small_flow(), tmp_path_factory.mktemp("uninterrupted")
    log = train_images(
        flow, *pictures, recipe=recipe(), validation=pictures, folder=folder, checkpoint_every=4
    )
    return SimpleNamespace(flow=flow, log=log, folder=folder)


@pytest.mark.parametrize("how", ["return", "interrupt"])
@pytest.mark.parametrize("steps", [[1], [4], [12], [3, 8, 11]])
def test_an_interrupted_and_resumed_training_is_the_uninterrupted_one_bit_for_bit(
    steps, how, pictures, tmp_path, uninterrupted
):
    folder = tmp_path / "parts"
    options = {"recipe": recipe(), "validation": pictures, "folder": folder, "checkpoint_every": 4}
    for step in steps:
        log = train_images(small_flow(), *pictures, **options, on_step=stop_after(step, how))
        assert f"after step {step}" in log.stopped
    torch.manual_seed(5)
    flow = TarFlow((1, 4, 4), 2, 8, 2, 1, num_classes=2, head_dim=4)  # its own weights do not matter
    log = train_images(flow, *pictures, **options)
    (tensors, facts), (whole_tensors, whole_facts) = map(read_checkpoint, (folder, uninterrupted.folder))
    assert same.repeated(weights(flow), weights(uninterrupted.flow))
    assert same.repeated(log.train_bpd, uninterrupted.log.train_bpd)
    assert same.repeated(log.validation_bpd, uninterrupted.log.validation_bpd)
    assert tensors.keys() == whole_tensors.keys()
    assert any(name.startswith("optimizer.") and name.endswith("exp_avg_sq") for name in tensors)
    for name, tensor in tensors.items():  # weights, average, moments and step counts of the optimiser
        assert same.repeated(tensor, whole_tensors[name]), name
    assert facts | {"seconds": 0, "sha256": ""} == whole_facts | {"seconds": 0, "sha256": ""}


def test_the_comparison_sees_another_order_of_the_images(pictures, uninterrupted):
    flow = small_flow()
    train_images(flow, *pictures, recipe=recipe(seed=1))
    assert same.different(weights(flow), weights(uninterrupted.flow))


def test_an_interrupt_between_two_weights_falls_back_to_the_last_checkpoint(
    pictures, tmp_path, monkeypatch, uninterrupted
):
    update = MovingAverage.update

    def interrupted(self, decay, calls=[]):  # noqa: B006
        calls.append(0)
        if len(calls) == 7:
            raise KeyboardInterrupt
        update(self, decay)

    options = {
        "recipe": recipe(),
        "validation": pictures,
        "folder": tmp_path / "parts",
        "checkpoint_every": 4,
    }
    with monkeypatch.context() as patch:
        patch.setattr(MovingAverage, "update", interrupted)
        log = train_images(small_flow(), *pictures, **options)
    assert log.stopped == "interrupted after step 4"
    flow = small_flow()
    train_images(flow, *pictures, **options)
    assert same.repeated(weights(flow), weights(uninterrupted.flow))


def test_a_crash_while_writing_leaves_the_earlier_checkpoint_in_force(tmp_path, monkeypatch):
    write_checkpoint(tmp_path, 1, {"a": torch.ones(2)}, {"note": "first"})
    replace = state_module._replace

    def crash(path, content):
        if path.suffix == ".json":
            raise OSError("power cut")
        replace(path, content)

    monkeypatch.setattr(state_module, "_replace", crash)
    with pytest.raises(OSError, match="power cut"):
        write_checkpoint(tmp_path, 2, {"a": torch.zeros(2)}, {"note": "second"})
    tensors, facts = read_checkpoint(tmp_path)
    assert facts["note"] == "first"
    assert tensors["a"].tolist() == [1, 1]


def test_only_the_newest_checkpoint_is_kept(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, {"a": torch.ones(2)}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.json",
        "step-00000003.safetensors",
    ]


def test_a_finished_training_is_only_loaded(pictures, uninterrupted):
    flow = small_flow()
    log = train_images(
        flow,
        *pictures,
        recipe=recipe(),
        folder=uninterrupted.folder,
        on_step=lambda *_: pytest.fail("a step was taken"),
    )
    assert log.stopped == "reached steps = 12"
    assert same.repeated(weights(flow), weights(uninterrupted.flow))


def test_a_checkpoint_of_another_training_is_refused(pictures, uninterrupted):
    images, labels = pictures
    folder = uninterrupted.folder
    with pytest.raises(CheckpointError, match=r"warmup was 3, is 4; augment was Compose.*, is None\. Choose"):
        train_images(small_flow(), images, labels, recipe=recipe(warmup=4, augment=None), folder=folder)
    with pytest.raises(CheckpointError, match="the training images are different"):
        train_images(small_flow(), images + 0.1, labels, recipe=recipe(), folder=folder)
    other = TarFlow((1, 4, 4), 2, 8, 3, 1, num_classes=2, head_dim=4)
    with pytest.raises(CheckpointError, match="the flow has another architecture"):
        train_images(other, images, labels, recipe=recipe(), folder=folder)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    write_checkpoint(tmp_path, 3, {"a": torch.ones(2)}, {})
    path = tmp_path / "step-00000003.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="missing or damaged"):
        read_checkpoint(tmp_path)
    (tmp_path / "checkpoint.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"checkpoint.json is damaged"):
        read_checkpoint(tmp_path)
    (tmp_path / "checkpoint.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(CheckpointError, match="not a checkpoint that this version reads"):
        read_checkpoint(tmp_path)


def test_a_time_budget_ends_the_call_and_the_next_one_goes_on(pictures, tmp_path, monkeypatch, uninterrupted):
    class Clock:
        now = 0.0

        @classmethod
        def perf_counter(cls):
            cls.now += 10.0
            return cls.now

    monkeypatch.setattr(training_module, "time", Clock)
    log = train_images(small_flow(), *pictures, recipe=recipe(), folder=tmp_path / "parts", minutes=1)
    assert log.stopped.startswith("reached minutes = 1 after step ")
    assert 0 < len(log.train_bpd) < 12
    flow = small_flow()
    before = Clock.now
    resumed = train_images(flow, *pictures, recipe=recipe(), folder=tmp_path / "parts")
    assert resumed.seconds == log.seconds + Clock.now - (
        before + 10
    )  # the first look at the clock is the start
    assert same.repeated(weights(flow), weights(uninterrupted.flow))


# --- what goes wrong, and pictures --------------------------------------------------------------------------


def test_a_step_that_is_not_finite_is_not_taken(pictures):
    def explode(images, generator, calls=[]):  # noqa: B006
        calls.append(0)
        return images * (1e30 if len(calls) == 4 else 1)

    flow = small_flow()
    with pytest.warns(TrainingWarning, match=r"diverged in step 4: .* lower learning rate"):
        log = train_images(flow, *pictures, recipe=recipe(augment=explode))
    assert len(log.train_bpd) == 3
    assert bool(torch.isfinite(weights(flow)).all())


def test_noise_that_changes_the_shape_is_refused(pictures):
    with pytest.raises(ValueError, match=r"augment made \(5, 16\) of images \(5, 1, 4, 4\)"):
        train_images(small_flow(), *pictures, recipe=recipe(augment=lambda images, _: images.flatten(1)))


def test_sample_grids_are_drawn_on_the_way_and_change_nothing(pictures, tmp_path, uninterrupted):
    flow = small_flow()
    train_images(flow, *pictures, recipe=recipe(), folder=tmp_path / "drawn", sample_every=5)
    paths = sorted((tmp_path / "drawn/samples").iterdir())
    assert [path.name for path in paths] == [f"step-{step:08d}.png" for step in (5, 10, 12)]
    with Image.open(paths[-1]) as grid:
        assert grid.size == (8 * 5 - 1, 2 * 5 - 1)  # 8 samples of each of 2 classes
        assert grid.mode == "L"
    assert same.repeated(weights(flow), weights(uninterrupted.flow))


def test_a_grid_goes_row_by_row_and_comes_back_from_the_file(tmp_path):
    images = torch.tensor([-1.0, 0.2, 7.0])[:, None, None, None].expand(3, 3, 2, 2)
    grid = image_grid(images, columns=2)
    assert grid.shape == (3, 5, 5)
    assert (grid[0, 0, 0], grid[0, 0, 3], grid[0, 3, 0], grid[0, 4, 4]) == (0, 153, 255, 0)
    write_png(grid, tmp_path / "new" / "grid.png")
    with Image.open(tmp_path / "new" / "grid.png") as opened:
        assert same.copied(np.array(opened), grid.permute(1, 2, 0).numpy())
    with pytest.raises(ValueError, match="without NaN"):
        image_grid(images * math.nan, columns=2)
    with pytest.raises(ValueError, match=r"c = 1 or 3, got \(3, 2, 2, 2\)"):
        image_grid(images[:, :2], columns=2)


def test_grids_need_a_folder_and_budgets_are_positive(pictures):
    with pytest.raises(ValueError, match="give a folder"):
        train_images(small_flow(), *pictures, recipe=recipe(), sample_every=5)
    with pytest.raises(ValueError, match="minutes must be positive, got 0"):
        train_images(small_flow(), *pictures, recipe=recipe(), minutes=0)
    with pytest.raises(ValueError, match="must be >= 1, got 0 and None"):
        train_images(small_flow(), *pictures, recipe=recipe(), checkpoint_every=0)


def test_a_flow_without_classes_needs_no_labels(pictures):
    log = train_images(small_flow(num_classes=0), pictures[0].flatten(1), recipe=recipe())
    assert log.stopped == "reached steps = 12"
