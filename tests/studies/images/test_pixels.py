import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import same
from studies.images import pixels as module
from studies.images.pixels import (
    Compose,
    GaussianNoise,
    ImageFolder,
    RandomFlip,
    UniformDequantization,
    load_images,
    read_image,
    scale_pixels,
)

real_data = pytest.mark.skipif(
    not os.environ.get("LATENTCAL_DATA"), reason="LATENTCAL_DATA names no folder with the real data"
)


@real_data
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "part", "shape", "counts"),
    [
        ("mnist", "test", (10_000, 1, 28, 28), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        ("afhq", "test", (1_500, 3, 32, 32), [500, 500, 500]),
        ("AFHQ", "train", (14_630, 3, 32, 32), [5153, 4739, 4738]),
    ],
)
def test_the_standard_splits_have_their_published_sizes(name, part, shape, counts):
    found = load_images(name, part)
    assert tuple(found.pixels.shape) == shape
    assert found.labels.bincount().tolist() == counts
    assert found.x.shape == (shape[0], 1)
    assert len(found.classes) == len(counts)


@pytest.fixture
def tiny_sets(tmp_path, monkeypatch):
    """Archives of 4 x 5 images under the real names: 3 to train, 2 to test."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for name, shape, held_out in (("mnist", (4, 5), "test"), ("afhq", (4, 5, 3), "val")):
        entry = module._ARCHIVES[name]
        parts = {"train": ("train", 3), "test": (held_out, 2)}
        replaced = module._Archive(entry.file, parts, shape, entry.classes, entry.licence)
        monkeypatch.setitem(module._ARCHIVES, name, replaced)
        arrays = {}
        for key, count in parts.values():
            arrays[f"{key}_x"] = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
            arrays[f"{key}_y"] = np.arange(count, dtype=np.uint8)
        np.savez(tmp_path / entry.file, **arrays)
    return tmp_path


def test_channels_come_first_and_a_flat_image_is_channel_row_column(tiny_sets):
    found = load_images("afhq", "test", tiny_sets)
    with np.load(tiny_sets / "images/afhq_32.npz") as arrays:
        original = arrays["val_x"]
    assert found.images.shape == (2, 3, 4, 5)
    assert int(found.pixels[1, 2, 3, 4]) == original[1, 3, 4, 2]
    assert same.copied(found.y[1].reshape(3, 4, 5), found.images[1])
    assert repr(found) == "ImageSet('afhq', 'test': 2 images of 3 x 4 x 5)"


def test_grey_images_have_one_channel(tiny_sets):
    assert load_images("mnist", "train", tiny_sets).images.shape == (3, 1, 4, 5)


def test_pixels_become_numbers_from_minus_one_to_one():
    assert scale_pixels(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx(
        [-1, -0.6, 1]
    )
    with pytest.raises(TypeError, match=r"must be uint8, got torch.float32"):
        scale_pixels(torch.zeros(2))


def test_unknown_names_and_missing_files_are_named(tiny_sets):
    with pytest.raises(ValueError, match=r"mnist, afhq, got 'cifar'"):
        load_images("cifar", folder=tiny_sets)
    with pytest.raises(ValueError, match=r"part must be one of train, test, got 'val'"):
        load_images("afhq", "val", tiny_sets)
    (tiny_sets / "images/mnist.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"mnist needs the file .*mnist.npz, which is not there"):
        load_images("mnist", folder=tiny_sets)


def test_a_damaged_or_foreign_archive_is_refused(tiny_sets):
    path = tiny_sets / "images/mnist.npz"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"mnist.npz is damaged or not the archive of mnist"):
        load_images("mnist", folder=tiny_sets)
    np.savez(path, train_x=np.zeros((3, 4, 4), np.uint8), train_y=np.zeros(3, np.uint8))
    with pytest.raises(ValueError, match=r"train_x is uint8 \(3, 4, 4\).*expected uint8 \(3, 4, 5\)"):
        load_images("mnist", folder=tiny_sets)
    np.savez(path, train_x=np.zeros((3, 4, 5), np.uint8), train_y=np.full(3, 10, np.uint8))
    with pytest.raises(ValueError, match=r"has the class 10; mnist has 10 classes"):
        load_images("mnist", folder=tiny_sets)


def test_dequantised_pixels_fill_their_own_interval_and_no_other(generator):
    pixels = torch.arange(256, dtype=torch.uint8).repeat(1, 1, 40, 1)
    continuous = UniformDequantization()(scale_pixels(pixels), generator)
    inside = (continuous + 1) * 128 - pixels
    assert inside.min() >= 0
    assert inside.max() <= 1
    assert inside.mean() == pytest.approx(
        0.5, abs=5 / (12 * inside.numel()) ** 0.5
    )  # 5 standard errors: 6e-7
    assert inside.std() == pytest.approx(12**-0.5, abs=0.01)


def test_dequantisation_after_other_noise_is_refused(generator):
    with pytest.raises(ValueError, match="Apply it first"):
        Compose(GaussianNoise(), UniformDequantization())(torch.zeros(1, 1, 8, 8), generator)


def test_gaussian_noise_has_the_standard_deviation_that_it_says(generator):
    noise = GaussianNoise(0.07)(torch.zeros(10, 3, 32, 32), generator)
    assert noise.std() == pytest.approx(0.07, abs=5 * 0.07 / (2 * noise.numel()) ** 0.5)  # 5 standard errors


def test_flips_mirror_whole_images_left_to_right(generator):
    image = torch.arange(6.0).reshape(1, 1, 2, 3).repeat(200, 1, 1, 1)
    flipped = RandomFlip()(image, generator)
    mirrored = (flipped == image.flip(-1)).flatten(1).all(1)
    assert bool((mirrored | (flipped == image).flatten(1).all(1)).all())
    assert 60 < int(mirrored.sum()) < 140  # 100 +- 5.7 standard deviations: fails once in 8e7
    assert same.copied(RandomFlip(1.0)(image), image.flip(-1))
    assert same.copied(RandomFlip(0.0)(image), image)
    with pytest.raises(ValueError, match=r"takes images \(n, c, h, w\), got \(2, 6\)"):
        RandomFlip()(torch.zeros(2, 6))


def test_one_seed_gives_one_result_and_the_steps_follow_each_other():
    def draw(seed):
        steps = Compose(UniformDequantization(), RandomFlip(), GaussianNoise(0.1))
        return steps(torch.ones(5, 1, 3, 3), torch.Generator().manual_seed(seed))

    assert same.repeated(draw(0), draw(0))
    assert same.different(draw(0), draw(1))


@pytest.fixture
def folder(tmp_path):
    """Two classes of images of several sizes, modes and depths."""
    colours = np.zeros((20, 40, 3), np.uint8)
    colours[:, :10], colours[:, 10:30], colours[:, 30:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for name in ("cat/deep", "dog", "empty"):
        (tmp_path / name).mkdir(parents=True)
    Image.fromarray(colours).save(tmp_path / "cat/wide.png")
    Image.fromarray(colours.transpose(1, 0, 2).copy()).save(tmp_path / "cat/deep/tall.PNG")
    Image.fromarray(np.full((7, 7), 51, np.uint8)).save(tmp_path / "dog/grey.jpg", quality=100)
    Image.new("RGBA", (8, 8), (255, 255, 255, 255)).save(tmp_path / "dog/open.png")
    (tmp_path / "dog/notes.txt").write_text("not an image")
    return tmp_path


def test_images_of_any_size_are_cropped_around_their_centre(folder):
    found = ImageFolder(folder, size=10)
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [0, 0, 1, 1]
    for i in (0, 1):  # only the green middle of the wide and of the tall image is left
        image, label = found[i]
        assert image.shape == (3, 10, 10)
        assert label == 0
        inner = image[:, 1:-1, 1:-1]  # the filter mixes the colours at the border
        assert same.defined(inner, torch.tensor([-1.0, 1.0, -1.0])[:, None, None].expand_as(inner))
    assert found[2][0].mean() == pytest.approx(-0.6, abs=0.01)
    assert found[3][0].min() == 1


def test_size_is_height_and_width_and_grey_has_one_channel(folder):
    assert ImageFolder(folder, size=(6, 9), channels=1)[0][0].shape == (1, 6, 9)
    red, _, blue = read_image(folder / "cat/wide.png", (6, 12))
    assert red[:, 0].tolist() == blue[:, -1].tolist() == [1.0] * 6


def test_a_photograph_is_turned_upright(tmp_path):
    image = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 8)[:, None].repeat(16, 1))  # dark above
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    image.save(tmp_path / "a.png", exif=exif)
    upright = read_image(tmp_path / "a.png", (16, 16), 1)
    assert upright[0, 0].mean() == 1
    assert upright[0, -1].mean() == -1


def test_a_data_loader_reads_the_folder(folder):
    batches = list(DataLoader(ImageFolder(folder, size=4), batch_size=3))
    assert [tuple(images.shape) for images, _ in batches] == [(3, 3, 4, 4), (1, 3, 4, 4)]
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 0, 1, 1]


def test_images_are_read_only_when_asked_for(folder):
    (folder / "cat/broken.png").write_bytes(b"not a picture")
    found = ImageFolder(folder, size=4)
    assert found[1][0].shape == (3, 4, 4)
    with pytest.raises(ValueError, match=r"The image .*broken.png cannot be read .* Repair or remove"):
        found[0]


def test_a_truncated_image_is_refused(folder):
    path = folder / "cat/wide.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=r"wide.png cannot be read"):
        read_image(path, (4, 4))


def test_without_sub_folders_there_is_one_class(folder):
    found = ImageFolder(folder / "dog", size=4)
    assert found.classes == ("dog",)
    assert found.labels.tolist() == [0, 0]


def test_folders_that_cannot_be_read_as_classes_are_refused(folder):
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*nowhere"):
        ImageFolder(folder / "nowhere", size=4)
    with pytest.raises(FileNotFoundError, match=r"empty holds no images"):
        ImageFolder(folder / "empty", size=4)
    Image.new("L", (3, 3)).save(folder / "loose.png")
    with pytest.raises(ValueError, match=r"loose.png, whose class is not known"):
        ImageFolder(folder, size=4)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        ImageFolder(folder, size=0)
    with pytest.raises(ValueError, match=r"must be 1 .* or 3 .*, got 4"):
        ImageFolder(folder, size=4, channels=4)
