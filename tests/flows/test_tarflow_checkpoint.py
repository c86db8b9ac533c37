import math
import pickle

import pytest
import torch
from safetensors.torch import save_file

import latentcal as lc
import same
from latentcal.base import standard_normal
from latentcal.flows import TarFlow
from latentcal.flows.tarflow import AFHQ_256, read_weights

SMALL = {
    "image_shape": (2, 4, 6),
    "patch_size": 2,
    "channels": 16,
    "num_blocks": 3,
    "layers_per_block": 2,
    "num_classes": 3,
    "head_dim": 8,
}


def published_shapes(image_shape, patch_size, channels, num_blocks, layers_per_block, num_classes, **_):
    """Names and shapes of a published state dict, written down from the architecture, not from our code."""
    colours, height, width = image_shape
    t, d, c = height * width // patch_size**2, colours * patch_size**2, channels
    shapes = {"var": (t, d)}
    for b in range(num_blocks):
        block = {
            "proj_in.weight": (c, d),
            "proj_in.bias": (c,),
            "pos_embed": (t, c),
            "class_embed": (num_classes, 1, c),
            "proj_out.weight": (2 * d, c),
            "proj_out.bias": (2 * d,),
            "attn_mask": (t, t),
        }
        for layer in range(layers_per_block):
            inner = {
                "attention.norm": ((c,), (c,)),
                "attention.qkv": ((3 * c, c), (3 * c,)),
                "attention.proj": ((c, c), (c,)),
                "mlp.norm": ((c,), (c,)),
                "mlp.main.0": ((4 * c, c), (4 * c,)),
                "mlp.main.2": ((c, 4 * c), (c,)),
            }
            for name, (weight, bias) in inner.items():
                block[f"attn_blocks.{layer}.{name}.weight"] = weight
                block[f"attn_blocks.{layer}.{name}.bias"] = bias
        shapes |= {f"blocks.{b}.{name}": shape for name, shape in block.items()}
    return shapes


def random_state(seed=0, **architecture) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: 0.05 * torch.randn(shape, generator=generator)
        for name, shape in published_shapes(**(SMALL | architecture)).items()
    }
    return state | {"var": torch.ones(state["var"].shape)}


def test_the_afhq_256_flow_has_the_published_names_and_shapes():
    with torch.device("meta"):
        flow = TarFlow(**AFHQ_256, base=standard_normal(3 * 256 * 256))
    ours = {
        name: tuple(tensor.shape)
        for name, tensor in flow.state_dict().items()
        if not name.startswith("base.")
    }
    published = published_shapes(**AFHQ_256)
    masks = {name for name in published if name.endswith(".attn_mask")}  # is_causal does their work
    assert len(masks) == 8
    assert ours == {name: shape for name, shape in published.items() if name not in masks}
    assert all(tensor.is_meta for name, tensor in flow.named_parameters())
    assert sum(math.prod(shape) for shape in ours.values()) == 463_678_464


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_checkpoint_gives_the_flow_with_its_weights(suffix, tmp_path, generator):
    state, path = random_state(), tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    flow = TarFlow.from_checkpoint(path, **SMALL)
    assert not flow.training
    for name, tensor in flow.state_dict().items():
        assert not tensor.is_meta
        if not name.startswith("base."):
            assert same.copied(tensor, state[name])
    reference = TarFlow(**SMALL)
    reference.load_published(state)
    x = torch.randint(0, 3, (5, 1), generator=generator)
    y = torch.randn(5, 48, generator=generator)
    torch.testing.assert_close(flow(x).log_prob(y), reference(x).log_prob(y))
    lc.testing.check_flow_contract(flow, x, y)
    assert all(weight.requires_grad for weight in flow.parameters())


def test_a_loaded_flow_can_be_saved_and_recalibrated(tmp_path, generator):
    torch.save(random_state(), tmp_path / "weights.pth")
    flow = TarFlow.from_checkpoint(tmp_path / "weights.pth", **SMALL)
    x = torch.randint(0, 3, (60, 1), generator=generator)
    y = torch.randn(60, 48, generator=generator)
    model = lc.recalibrate(flow, x, y)
    lc.save(model, tmp_path / "model")
    loaded = lc.load(tmp_path / "model")
    for name, tensor in model.state_dict().items():
        assert same.copied(loaded.state_dict()[name], tensor), name
    torch.testing.assert_close(loaded(x).log_prob(y), model(x).log_prob(y))


def test_the_default_architecture_is_that_of_afhq_256(tmp_path):
    torch.save({"var": torch.ones(1024, 192)}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"blocks.0.pos_embed is missing; .* and \d+ more\. Compare image"):
        TarFlow.from_checkpoint(tmp_path / "weights.pth")


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path):
    state = random_state()
    del state["blocks.1.class_embed"]
    state["blocks.0.extra"] = torch.zeros(1)
    state["blocks.2.pos_embed"] = torch.zeros(5, 16)
    torch.save(state, tmp_path / "weights.pth")
    message = (
        r"blocks.1.class_embed is missing; blocks.0.extra is not expected; "
        r"blocks.2.pos_embed is \(5, 16\) instead of \(6, 16\)"
    )
    with pytest.raises(ValueError, match=message):
        TarFlow.from_checkpoint(tmp_path / "weights.pth", **SMALL)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    state = random_state()
    state["blocks.1.proj_in.bias"][3] = math.nan
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"NaN or infinite values in blocks.1.proj_in.bias"):
        TarFlow.from_checkpoint(tmp_path / "weights.pth", **SMALL)


def test_half_precision_weights_become_the_dtype_of_the_flow(tmp_path):
    state = {name: tensor.half() for name, tensor in random_state().items()}
    torch.save(state, tmp_path / "weights.pth")
    flow = TarFlow.from_checkpoint(tmp_path / "weights.pth", **SMALL)
    assert {weight.dtype for weight in flow.parameters()} == {torch.float32}


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path):
    sprung = tmp_path / "sprung"
    torch.save(random_state() | {"trap": Trap(sprung)}, tmp_path / "weights.pth")
    with pytest.raises(
        ValueError, match="contains objects other than tensors, which could run code and are refused"
    ):
        TarFlow.from_checkpoint(tmp_path / "weights.pth", **SMALL)
    assert not sprung.exists()
    with pytest.warns(ResourceWarning):  # control: an unsafe reader springs the trap
        pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No checkpoint at .*nowhere.pth"):
        read_weights(tmp_path / "nowhere.pth")
    for name in ("broken.pth", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"no weights at all")
        with pytest.raises(ValueError, match=rf"{name} (is damaged|cannot be read)"):
            read_weights(tmp_path / name)
    whole = tmp_path / "whole.pth"
    torch.save(random_state(), whole)
    (tmp_path / "half.pth").write_bytes(whole.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"half.pth (is damaged|cannot be read)"):
        read_weights(tmp_path / "half.pth")
    torch.save({"model": random_state(), "epoch": 3}, whole)
    with pytest.raises(ValueError, match=r"got \['epoch', 'model'\]. Save only the state dict"):
        read_weights(whole)
