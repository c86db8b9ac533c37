import pytest
import torch

import latentcal as lc
import same
from latentcal.flows import TarFlow, train_flow

SIZES = {"patch_size": 2, "channels": 16, "num_blocks": 3, "layers_per_block": 2, "head_dim": 8}


def woken(shape=(2, 4, 6), dtype=torch.float64, **options) -> TarFlow:
    """A flow whose output layers are not zero any more, so that every weight matters."""
    torch.manual_seed(0)
    flow = TarFlow(shape, **(SIZES | options))
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.normal_(std=0.1)
    return flow.to(dtype)


def images(n: int, flow: TarFlow, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(n, flow.base.dim, generator=generator, dtype=flow.var.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_classes", [0, 3])
def test_the_flow_keeps_its_promises(num_classes, dtype, generator):
    flow = woken(dtype=dtype, num_classes=num_classes)
    x = torch.randint(0, 3, (10, 1), generator=generator) if num_classes else None
    lc.testing.check_flow_contract(flow, x, images(10, flow, generator), points=3)


def test_each_block_sees_only_the_patches_before():
    flow = woken()
    patches = torch.zeros(1, 6, 8, dtype=torch.float64)
    for block in flow.blocks:
        jacobian = torch.autograd.functional.jacobian(
            lambda p, block=block: block.encode(p, None)[0], patches
        )
        influence = jacobian[0, :, :, 0].abs().amax((1, 3))  # (output patch, input patch)
        unseen = influence.tril(-1) if block.backwards else influence.triu(1)
        seen = influence.triu(1) if block.backwards else influence.tril(-1)
        assert unseen.max() < 1e-12
        assert seen.max() > 1e-6


def test_patches_hold_channel_row_and_column_in_this_order():
    flow = woken(shape=(2, 4, 4))
    image = torch.arange(32.0, dtype=torch.float64)
    _, patches, _ = flow._patches_of(image[None], None)
    assert patches[0, 1].tolist() == [2.0, 3.0, 6.0, 7.0, 18.0, 19.0, 22.0, 23.0]
    assert same.copied(flow._image_of(patches).reshape(-1), image)


def test_the_log_determinant_is_a_sum_over_all_values(generator):
    flow = woken()
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.zero_()
            block.proj_out.bias.zero_()
            block.proj_out.bias[:8] = 0.5  # log-scales; patch 0 has none
    y = images(2, flow, generator)
    torch.testing.assert_close(flow.encode(y)[1], torch.full((2,), -3 * 5 * 8 * 0.5, dtype=torch.float64))


def test_a_class_that_is_not_known_is_the_mean_of_all(generator):
    flow = woken(num_classes=3)
    y = images(1, flow, generator)
    unknown = flow.encode(y, torch.tensor([[-1]]))[0]
    with torch.no_grad():
        for block in flow.blocks:
            block.class_embed.copy_(block.class_embed.mean(0, keepdim=True).expand(3, 1, -1).clone())
    torch.testing.assert_close(unknown, flow.encode(y, torch.tensor([[2]]))[0])


def test_an_untrained_flow_is_the_identity_up_to_its_bias(generator):
    torch.manual_seed(0)
    flow = TarFlow((1, 4, 4), **SIZES)
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.bias.zero_()
    y = torch.randn(3, 16, generator=generator)
    torch.testing.assert_close(flow.encode(y)[0], y)


def published(flow: TarFlow) -> dict[str, torch.Tensor]:
    """A state dict with the published names: the flow's own, without its base, with masks."""
    state = {
        name: tensor.clone() for name, tensor in flow.state_dict().items() if not name.startswith("base.")
    }
    return state | {f"blocks.{b}.attn_mask": torch.ones(6, 6).tril() for b in range(len(flow.blocks))}


def test_published_names_are_those_of_the_checkpoints():
    names = set(published(woken(num_classes=3)))
    for expected in (
        "var",
        "blocks.0.proj_in.weight",
        "blocks.1.pos_embed",
        "blocks.1.class_embed",
        "blocks.2.attn_blocks.1.attention.norm.weight",
        "blocks.2.attn_blocks.1.attention.qkv.bias",
        "blocks.0.attn_blocks.0.attention.proj.weight",
        "blocks.0.attn_blocks.0.mlp.norm.bias",
        "blocks.0.attn_blocks.0.mlp.main.0.weight",
        "blocks.0.attn_blocks.0.mlp.main.2.bias",
        "blocks.2.proj_out.bias",
    ):
        assert expected in names


def test_published_weights_load_and_a_scaled_latent_is_taken_into_the_map(generator):
    source = woken()
    with torch.no_grad():
        source.var.uniform_(0.5, 2.0)
    flow = woken()
    flow.load_published(published(source))
    y = images(4, flow, generator)
    torch.testing.assert_close(flow().log_prob(y), source().log_prob(y))
    lc.testing.check_flow_contract(flow, None, y)


def test_a_checkpoint_of_another_architecture_is_refused():
    state = published(woken())
    del state["blocks.0.proj_in.bias"]
    state["blocks.7.proj_in.bias"] = torch.zeros(16)
    state["var"] = torch.ones(3, 3)
    with pytest.raises(ValueError, match=r"proj_in.bias is missing; blocks.7.*not expected; var is \(3, 3\)"):
        woken().load_published(state)


def test_training_raises_the_likelihood_of_images(generator):
    brightness = torch.randn(300, 1, generator=generator)
    y = brightness + 0.3 * torch.randn(300, 16, generator=generator)  # all pixels alike: neighbours tell
    flow = TarFlow((1, 4, 4), **SIZES)
    log = train_flow(flow, None, y[:200], validation=(None, y[200:]), max_epochs=15, learning_rate=3e-3)
    assert log.best_loss < log.validation_loss[0] - 2


@pytest.mark.parametrize(
    ("options", "message"),
    [({"patch_size": 3}, "do not tile an image of 4 x 6"), ({"channels": 12}, "multiple of head_dim")],
)
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TarFlow((2, 4, 6), **(SIZES | options))


def test_classes_are_checked(generator):
    flow = woken(num_classes=3)
    with pytest.raises(ValueError, match="There are 3 classes, but x contains 3"):
        flow.encode(images(1, flow, generator), torch.tensor([[3]]))
    with pytest.raises(ValueError, match=r"x must be \(..., 1\), got None"):
        flow.encode(images(1, flow, generator))
