import pytest
import torch

from latentcal.flows import TarFlow
from latentcal.flows.tarflow import _Attention

CLASSES = 3


def woken() -> TarFlow:
    """A small flow in double precision in which every weight matters."""
    torch.manual_seed(0)
    flow = TarFlow((2, 4, 6), 2, 16, num_blocks=3, layers_per_block=2, num_classes=CLASSES, head_dim=8)
    with torch.no_grad():
        for block in flow.blocks:
            block.proj_out.weight.normal_(std=0.1)
    return flow.double()


@torch.no_grad()
def plainly_decoded(flow: TarFlow, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The inverse of encode from encode alone: two looks at a patch tell its scale and shift."""
    _, patches, label = flow._patches_of(z, x)
    for block in reversed(flow._blocks()):
        order = range(patches.shape[1])
        found = torch.zeros_like(patches)
        for t in reversed(order) if block.backwards else order:
            at_zero = block.encode(found, label)[0][:, t]
            found[:, t] = 1
            slope = block.encode(found, label)[0][:, t] - at_zero
            found[:, t] = (patches[:, t] - at_zero) / slope
        patches = found
    return flow._image_of(patches).flatten(1)


@pytest.fixture
def latents(generator):
    z = torch.randn(5, 48, generator=generator, dtype=torch.float64)
    return z, torch.randint(0, CLASSES, (5, 1), generator=generator)


def test_sampling_with_cached_keys_and_values_is_plain_sampling(latents):
    flow = woken()
    torch.testing.assert_close(flow.decode(*latents), plainly_decoded(flow, *latents))


def test_the_comparison_sees_a_cache_that_forgets(latents, monkeypatch):
    forward = _Attention.forward

    def forgetful(self, h, past):
        if past is not None:
            past = (past[0][:, :, -1:], past[1][:, :, -1:])
        return forward(self, h, past)

    flow = woken()
    plain = plainly_decoded(flow, *latents)
    monkeypatch.setattr(_Attention, "forward", forgetful)
    assert (flow.decode(*latents) - plain).abs().max() > 1e-3


def test_the_log_determinant_is_that_of_autograd(latents):
    flow = woken()
    y, x = latents
    for i in range(2):
        jacobian = torch.autograd.functional.jacobian(lambda v, i=i: flow.encode(v, x[i])[0], y[i])
        torch.testing.assert_close(flow.encode(y[i], x[i])[1], torch.linalg.slogdet(jacobian).logabsdet)


def test_no_block_looks_ahead_however_the_later_patches_change(latents):
    flow = woken()
    y, x = latents
    _, patches, label = flow._patches_of(y, x)
    for block in flow._blocks():
        for t in range(patches.shape[1]):
            changed = patches.clone()
            later = slice(0, t) if block.backwards else slice(t + 1, None)
            changed[:, later] = 7.0
            before, after = (block.encode(p, label)[0][:, t] for p in (patches, changed))
            torch.testing.assert_close(before, after)
