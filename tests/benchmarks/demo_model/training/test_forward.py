"""The training forward against what the runtime does on the same inputs."""

from dataclasses import replace

import pytest
import torch
from demo_model.training.forward import Angles, Sight, forward, text_keys_values
from demo_model.training.layout import Pass, clip_layout, in_ring, recached

from vidc.exporters.parts.causal_wan.network import CausalWan

BLOCKS = 8
LEVELS = (1.0, 0.9375, 0.5, 0.75, 0.2, 0.8, 0.6, 0.4)
"""Share of noise in each block, so that each has a timestep of its own."""


@pytest.fixture(scope="module")
def inputs(sizes):
    """Clean latents, noisy ones and two prompts."""
    generator = torch.Generator().manual_seed(1)
    spec = sizes.stream
    clean = torch.randn(1, BLOCKS, spec.block, *spec.latent, generator=generator)
    noise = torch.randn(clean.shape, generator=generator)
    level = torch.tensor(LEVELS).view(1, -1, 1, 1, 1, 1)
    embeds = torch.randn(1, 2, *spec.text, generator=generator)
    return clean, (1 - level) * clean + level * noise, embeds


def runtime_flow(
    open_session, sizes, model, inputs, block: int, switch: int | None
) -> torch.Tensor:
    """The flow of one block after a session has taken the clean blocks before it."""
    clean, noisy, embeds = inputs
    level = LEVELS[block]
    spec = replace(sizes.stream, timesteps=(1000 * level,), sigmas=(level,))
    session = open_session(model, spec)
    session.prompt(embeds[:, 0])
    for past in range(block):
        if past == switch:
            session.switch_prompt(embeds[:, 1])
        session.remember(clean[:, past])
    if block == switch:
        session.switch_prompt(embeds[:, 1])
    # One step takes the latent along the flow by the share of noise.
    return (noisy[:, block] - session.generate(noisy[None, :, block])) / level


def training_flows(sizes, model, inputs, positions, switch: int | None) -> torch.Tensor:
    """The flows of all noisy blocks in one forward."""
    clean, noisy, embeds = inputs
    layout = clip_layout(positions, sizes.stream, switch)
    groups = layout.tensors()
    is_noisy = torch.tensor([group.kind is Pass.NOISY for group in layout.groups])
    index = torch.tensor(positions)[groups.index]
    latents = torch.where(is_noisy.view(1, -1, 1, 1, 1, 1), noisy[:, index], clean[:, index])
    timesteps = torch.where(is_noisy, 1000 * torch.tensor(LEVELS)[index], 0.0)[None]
    flows, _ = forward(
        model,
        latents,
        timesteps,
        Angles(sizes.stream, BLOCKS, torch.device("cpu"))(groups.blocks),
        text_keys_values(model, embeds),
        Sight(groups.keys, groups.visible, groups.prompt),
        flow_of=torch.tensor(layout.of(Pass.NOISY)),
    )
    return flows


@pytest.mark.parametrize("switch", [None, 1, 3, 4, 5, 6])
def test_a_whole_clip_at_once_is_what_the_runtime_does_block_by_block(
    open_session, sizes, model, inputs, switch
):
    """Eight blocks wrap the ring of four, whose sink stays; a switch after five recaches three."""
    flows = training_flows(sizes, model, inputs, range(BLOCKS), switch)
    for block in range(BLOCKS):
        expected = runtime_flow(open_session, sizes, model, inputs, block, switch)
        torch.testing.assert_close(flows[:, block], expected, atol=1e-4, rtol=0)


def test_the_equality_would_notice_another_history(sizes, model, inputs):
    """The flow of the last block depends on the sink, the window and what prompt it was under."""
    whole = training_flows(sizes, model, inputs, range(BLOCKS), None)[:, -1]
    for positions in ([1, 2, 3, 4, 5, 6, 7], [0, 6, 7]):
        other = training_flows(sizes, model, inputs, positions, None)[:, -1]
        assert (whole - other).abs().max() > 1e-2
    before = training_flows(sizes, model, inputs, range(BLOCKS), 7)[:, -1]
    after = training_flows(sizes, model, inputs, range(BLOCKS), 6)[:, -1]
    assert (before - after).abs().max() > 1e-3


def test_a_clip_may_leave_out_what_has_left_the_ring(sizes, model, inputs):
    """In the first layer nothing else is seen; deeper ones saw it through keys that are kept."""
    shallow = CausalWan(replace(sizes.config.transformer, layers=1)).requires_grad_(False)
    shallow.load_state_dict(
        {n: w for n, w in model.state_dict().items() if not n.startswith("blocks.1")}
    )
    whole = training_flows(sizes, shallow, inputs, range(BLOCKS), None)[:, -1]
    cut = training_flows(sizes, shallow, inputs, [0, 5, 6, 7], None)[:, -1]
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=0)


def test_blocks_after_the_past_are_the_same_as_in_one_forward(sizes, model, inputs):
    """Keys and values that one forward returns are a history for the next."""
    clean, _, embeds = inputs
    layout = clip_layout([0, 1, 2], sizes.stream)
    angles = Angles(sizes.stream, BLOCKS, torch.device("cpu"))
    text = text_keys_values(model, embeds)
    expected = training_flows(sizes, model, inputs, [0, 1, 2], None)[:, 2]
    past = None
    for block in range(3):
        kind = Pass.CLEAN if block < 2 else Pass.NOISY
        latent = (clean if kind is Pass.CLEAN else inputs[1])[:, block : block + 1]
        level = 0.0 if kind is Pass.CLEAN else 1000 * LEVELS[block]
        keys = torch.arange(block + 1)[None]
        sight = Sight(keys, torch.ones_like(keys, dtype=torch.bool), torch.tensor([0]), full=True)
        flow, made = forward(
            model, latent, torch.full((1, 1), level), angles(torch.tensor([block])), text, sight,
            past,
        )  # fmt: skip
        past = made if past is None else [
            (torch.cat([k, new_k], 1), torch.cat([v, new_v], 1))
            for (k, v), (new_k, new_v) in zip(past, made, strict=True)
        ]  # fmt: skip
    assert layout.groups[-1].keys == (0, 1, 4)
    torch.testing.assert_close(flow[:, 0], expected, atol=1e-4, rtol=0)


def test_the_ring_is_what_the_stream_says(sizes):
    assert in_ring(0, sizes.stream) == [0]
    assert in_ring(3, sizes.stream) == [0, 1, 2, 3]
    assert in_ring(4, sizes.stream) == [0, 2, 3, 4]
    assert in_ring(50, sizes.stream) == [0, 48, 49, 50]
    assert recached(4, sizes.stream) == [0, 1, 2, 3]
    assert recached(5, sizes.stream) == [2, 3, 4]


def test_a_layout_refuses_what_is_no_clip(sizes):
    with pytest.raises(ValueError, match="ascend"):
        clip_layout([0, 2, 1], sizes.stream)
    with pytest.raises(ValueError, match="switch"):
        clip_layout([0, 1], sizes.stream, 2)
