"""The streaming components against the published forward pass on the whole clip."""

import pytest
import taehv_oracle
import torch
from tensors import empty_tensors
from torch import Tensor

from vidc.exporters.component import Component
from vidc.exporters.models import with_weights
from vidc.exporters.parts.taehv.config import TaehvConfig
from vidc.exporters.parts.taehv.part import TaehvPart
from vidc.plugins.signature import Access

SMALL = TaehvConfig(latent_channels=4, widths=(16, 12, 8, 6), encoder_width=8)
PUBLISHED = [TaehvConfig(), TaehvConfig(latent_channels=48, patch=2)]
"""Sizes of ``taew2_1`` and ``taew2_2``."""
CLIPS = [(1, 5, 1), (2, 3, 1), (3, 2, 2), (6, 1, 1)]
"""Latent frames in a block, blocks, batch."""
LIMIT = 1e-5


def part_of(config: TaehvConfig, block: int, batch: int = 1) -> TaehvPart:
    stride = config.spatial_stride
    return TaehvPart(config, batch, block, 2 * stride, 3 * stride)


def weights_of(part: TaehvPart) -> dict[str, Tensor]:
    return {name: tensor.load() for name, tensor in part.random_weights(0).items()}


def components(part: TaehvPart, dtype: torch.dtype = torch.float32) -> dict[str, Component]:
    precision = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    weights = {name: tensor.to(dtype) for name, tensor in weights_of(part).items()}
    return part.components(with_weights(part.network(precision), weights))


def replay(found: dict[str, Component], name: str, clip: Tensor) -> Tensor:
    """Feeds a clip ``[B, frames, ...]`` block by block through ``<name>_first`` and ``<name>``."""
    first, steady = found[f"{name}_first"], found[name]
    states = empty_tensors(steady.signature.states)
    for state in states:
        state.fill_(float("nan"))  # The first block must not read what a state held before.
    size, outputs = steady.signature.inputs[0].shape[1], []
    for index, chunk in enumerate(clip.split(size, dim=1)):
        component = steady if index else first
        (output,) = component.module(chunk, *states)
        (spec,) = component.signature.outputs
        assert (output.shape, output.dtype) == (spec.shape, spec.torch_dtype)
        assert output.is_contiguous()
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def unit_normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def latents_of(part: TaehvPart, frames: int) -> Tensor:
    batch, _, *latent = part.latent_shape
    return unit_normal(batch, frames, *latent)


def frames_of(part: TaehvPart, count: int) -> Tensor:
    return unit_normal(part.batch, count, 3, part.height, part.width).tanh()


def relative_l2(value: Tensor, reference: Tensor) -> float:
    return float((value - reference).norm() / reference.norm())


def decoding_error(part: TaehvPart, blocks: int) -> float:
    latents = latents_of(part, blocks * part.block)
    frames = replay(components(part), "taehv_decode", latents)
    reference = taehv_oracle.decode(weights_of(part), latents, part.config.patch) * 2 - 1
    assert frames.shape == reference.shape
    return relative_l2(frames, reference)


def encoding_error(part: TaehvPart, blocks: int) -> float:
    clip = frames_of(part, 4 * blocks * part.block - 3)
    repeated = torch.cat([clip, *[clip[:, -1:]] * 3], 1)
    latents = replay(components(part), "taehv_encode", repeated)
    reference = taehv_oracle.encode(weights_of(part), (clip + 1) / 2, part.config.patch)
    assert latents.shape == reference.shape
    return relative_l2(latents, reference)


@pytest.mark.parametrize(("block", "blocks", "batch"), CLIPS)
@pytest.mark.parametrize("patch", [1, 2])
def test_blocks_decode_and_encode_as_the_whole_clip(block, blocks, batch, patch):
    config = TaehvConfig(**{**SMALL.to_json(), "widths": SMALL.widths, "patch": patch})
    part = part_of(config, block, batch)
    assert decoding_error(part, blocks) < LIMIT
    assert encoding_error(part, blocks) < LIMIT


@pytest.mark.parametrize("config", PUBLISHED, ids=["taew2_1", "taew2_2"])
def test_published_sizes_compute_the_published_forward_pass(config):
    part = part_of(config, block=2)
    assert decoding_error(part, blocks=2) < LIMIT
    assert encoding_error(part, blocks=2) < LIMIT


def test_the_oracle_uses_the_frame_before(monkeypatch):
    part = part_of(SMALL, block=2)
    true = taehv_oracle._remembering

    def forgetful(weights, name, x):
        forgotten = torch.cat(
            [true(weights, name, x[:, at : at + 1]) for at in range(x.shape[1])], 1
        )
        return forgotten if name == "decoder.9" else true(weights, name, x)

    monkeypatch.setattr(taehv_oracle, "_remembering", forgetful)
    assert decoding_error(part, blocks=2) > 100 * LIMIT


@pytest.mark.parametrize("direction", ["decode", "encode"])
def test_every_memory_affects_the_next_block(direction):
    part = part_of(SMALL, block=2)
    found = components(part)
    first, steady = found[f"taehv_{direction}_first"], found[f"taehv_{direction}"]
    clip = latents_of(part, 4) if direction == "decode" else frames_of(part, 16)
    states = empty_tensors(steady.signature.states)
    chunks = clip.chunk(2, 1)
    first.module(chunks[0], *states)
    (expected,) = steady.module(chunks[1], *(state.clone() for state in states))
    for index in range(len(states)):
        changed = [s.clone().zero_() if i == index else s.clone() for i, s in enumerate(states)]
        (output,) = steady.module(chunks[1], *changed)
        assert relative_l2(output, expected) > 1e-3, f"memory {index}"


def test_signatures_are_those_of_a_streaming_autoencoder():
    part = part_of(SMALL, block=3, batch=2)
    found = components(part, torch.float16)
    assert tuple(found) == (
        "taehv_decode_first", "taehv_encode_first", "taehv_decode", "taehv_encode",
    )  # fmt: skip
    assert set(found) == set(part.component_names)
    for direction, network in (("decode", "decoder"), ("encode", "encoder")):
        first, steady = (found[f"taehv_{direction}{end}"].signature for end in ("_first", ""))
        assert [s.name for s in steady.states] == [f"taehv.{network}.cache.{i}" for i in range(9)]
        assert [(s.name, s.shape) for s in first.states] == [
            (s.name, s.shape) for s in steady.states
        ]
        assert {s.access for s in first.states} == {Access.WRITE}
        assert {s.access for s in steady.states} == {Access.READ_WRITE}
        assert {s.dtype for s in steady.states} == {"float16"}
    assert found["taehv_decode_first"].signature["frames"].shape == (2, 9, 3, 16, 24)
    assert found["taehv_decode"].signature["frames"].shape == (2, 12, 3, 16, 24)
    assert found["taehv_encode_first"].signature["frames"].shape == (2, 12, 3, 16, 24)
    assert found["taehv_encode"].signature["latent"].shape == (2, 3, 4, 2, 3)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 3e-3), (torch.bfloat16, 4e-2)])
def test_half_precision_stays_near_float32(dtype, limit):
    part = part_of(TaehvConfig(), block=2)
    latents = latents_of(part, 4)
    exact = replay(components(part), "taehv_decode", latents)
    error = relative_l2(replay(components(part, dtype), "taehv_decode", latents), exact)
    assert 0 < error < limit


def test_decoded_noise_fills_the_range_of_pixels():
    part = part_of(TaehvConfig(), block=2)
    frames = replay(components(part), "taehv_decode", latents_of(part, 4))
    assert 0.1 < frames.std() < 0.8
    assert (frames.abs() == 1).float().mean() < 0.05
    assert frames.diff(dim=1).abs().mean() > 0.05


def test_flops_are_those_that_torch_counts():
    from torch.utils.flop_counter import FlopCounterMode

    part = TaehvPart(TaehvConfig(), 1, 3, 480, 832)
    component = part.components(part.network("fp16"))["taehv_decode"]
    arguments = empty_tensors(component.signature.arguments, "meta")
    with FlopCounterMode(display=False) as counter:
        component.module(*arguments)
    counted = counter.get_total_flops()
    # The estimate leaves out the convolutions of one pixel.
    assert 0.97 < part.block_flops() / counted < 1


@pytest.mark.parametrize("name", ["taehv_encode", "taehv_decode"])
def test_views_allow_convolutions_channels_last(name):
    """As on a GPU: views are those of contiguous tensors, convolutions then give another layout."""
    component = components(part_of(SMALL, block=2))[name]
    inputs = [unit_normal(*component.signature.inputs[0].shape)]
    inputs += [unit_normal(*state.shape) for state in component.signature.states]
    expected = component.module(*(each.clone() for each in inputs))
    exported = torch.export.export(component.module, tuple(inputs)).run_decompositions()
    converted = exported.module().to(memory_format=torch.channels_last)
    for found, wanted in zip(converted(*inputs), expected, strict=True):
        torch.testing.assert_close(found, wanted)
