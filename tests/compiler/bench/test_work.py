"""Work of components, against counts made another way."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanAttentionBlock

from vidc.compiler.bench.work import Kind, component_work
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import resolve


@pytest.fixture(scope="module", params=["tiny", "longlive-1.3b"])
def model(request):
    settings = resolve(request.param, gpu="cpu", environ={}, assignments=["stream.batch=2"])
    parts = {
        name: part
        for part in settings.model.parts.values()
        for name, part in part.components(part.network("fp32")).items()
    }
    manifest = SimpleNamespace(
        config=settings.to_json(),
        engines=parts,
        program="causal_video",
        spec=program_spec(settings.model),
    )
    return settings.model, parts, component_work(manifest)


def test_every_component_of_a_stream_is_counted(model):
    _, parts, work = model
    first = {"vae_decode_first", "vae_encode_first", "vae_encode"}
    assert work.keys() == parts.keys() - first


def test_flops_of_a_pass_match_formulas(model):
    config, _, work = model
    sizes, stream = config.transformer, config.stream
    tokens, slots = stream.block * config.frame_tokens, stream.window * config.frame_tokens
    ring = 4 * stream.batch * sizes.layers * tokens * slots * sizes.dim
    denoise = work["denoise"].flops
    assert set(denoise) == {Kind.PRODUCT, Kind.ATTENTION}
    text = 4 * stream.batch * sizes.layers * tokens * sizes.text_len * sizes.dim
    assert denoise[Kind.ATTENTION] == ring + text
    assert work["denoise"].total == pytest.approx(
        stream.block * config.transformer_part.frame_flops(), rel=0.06
    )
    # The clean pass ends with the keys and values of the last layer.
    assert work["kv_update"].flops[Kind.ATTENTION] == (ring + text) * (sizes.layers - 1) / (
        sizes.layers
    )


def test_recaching_computes_as_much_as_its_frames_do_in_blocks(model):
    config, _, work = model
    frames = config.stream.window - config.stream.sink
    blocks = frames / config.stream.block
    expected = blocks * work["kv_update"].total
    assert work[f"recache_{frames}"].total == pytest.approx(expected, rel=0.01)


def test_flops_of_decoding_match_its_layers(model):
    _, parts, work = model
    part, counted = parts["vae_decode"], Counter()

    def count(layer, _, output):
        # Of the weight, each output value takes what belongs to its own channel.
        counted[Kind.CONVOLUTION] += 2 * output.numel() * layer.weight[0].numel()

    def attend(layer, given, _):
        batch, channels, frames, height, width = given[0].shape
        counted[Kind.ATTENTION] += 4 * batch * frames * (height * width) ** 2 * channels

    for layer in part.module.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Conv3d):
            layer.register_forward_hook(count)
        if isinstance(layer, WanAttentionBlock):
            layer.register_forward_hook(attend)
    arguments = [torch.empty(s.shape, dtype=s.torch_dtype, device="meta")
                 for s in part.signature.arguments]  # fmt: skip
    with torch.no_grad():
        part.module(*arguments)
    assert work["vae_decode"].flops == counted


def test_bytes_cover_weights_inputs_and_states(model):
    config, parts, work = model
    sizes, stream = config.transformer, config.stream
    dim, text = sizes.dim, sizes.text_len
    embedder = sizes.text_dim * dim + dim + dim * dim + dim
    keys_values = sizes.layers * (2 * (dim * dim + dim) + dim)
    states = 2 * sizes.layers * stream.batch * text * dim
    inputs = stream.batch * (text * sizes.text_dim + 1)  # And the number of equal keys.
    assert work["text_kv"].bytes == 4 * (embedder + keys_values + states + inputs)
    ring = 4 * 2 * sizes.layers * stream.batch * stream.window * config.frame_tokens * dim
    weights = sum(t.nbytes for t in parts["denoise"].module.state_dict().values())
    # The ring is read whole and written for one block.
    least = ring * (1 + stream.block / stream.window)
    assert least < work["denoise"].bytes < least + weights + 4 * states + 1e9
