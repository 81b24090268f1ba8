"""The forms of the baseline, and the baseline of a bundle."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from vidc.compiler.bench.baseline.baseline import FORMS, Baseline
from vidc.compiler.config.resolve import resolve
from vidc.exporters.causal_wan.random_weights import random_weights
from vidc.exporters.wan_vae.random_weights import random_state_dict
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import Weights, read_manifest


@pytest.fixture
def dynamo():
    """A compiler without memory of other tests, for which falling back to eager is an error."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        yield
    torch.compiler.reset()


def test_compiled_like_eager(make_model, dynamo):
    model = make_model(window=6)
    baseline = model.baseline
    eager, compiled = baseline.session(), baseline.session(backend="aot_eager")
    for session in (eager, compiled):
        session.prompt(model.embeds(1))
    for block, noise in enumerate(model.noises(4)):
        if block == 3:
            for session in (eager, compiled):
                session.switch_prompt(model.embeds(2))
        expected, actual = eager.denoise(noise), compiled.denoise(noise)
        assert (actual - expected).norm() / expected.norm() < 1e-5
        for session in (eager, compiled):
            session.remember(expected)


def test_the_backend_compiles_each_layer_and_the_decoder(make_model, dynamo):
    model = make_model()
    operators = []

    def backend(graph, inputs):
        operators.append({node.target for node in graph.graph.nodes})
        return graph.forward

    baseline = model.baseline
    session = baseline.session(backend=backend)
    session.prompt(model.embeds(1))
    clean = session.denoise(model.noises(1)[0])
    attention = torch.nn.functional.scaled_dot_product_attention
    # Reading the cache's indices divides a layer: the self-attention is in the part that copies the
    # cache, the cross-attention in that of the feed-forward, and the rotation is in neither.
    for part in ({attention, torch.cat}, {attention, torch._C._nn.gelu}, {torch.view_as_complex}):
        assert any(part <= graph for graph in operators), part
    assert not any({attention, torch.view_as_complex} <= graph for graph in operators)
    operators.clear()
    session.decode(clean)
    # The first frame of a clip, the one after it, and all others: each decoded in one graph.
    assert len(operators) == 3
    assert all(attention in graph for graph in operators)

    operators.clear()
    eager = baseline.session()
    eager.prompt(model.embeds(1))
    eager.step(model.noises(1)[0])
    assert not operators


def test_the_forms_that_are_offered():
    assert FORMS["eager"] is None
    assert FORMS["compile"] in torch.compiler.list_backends()


def test_of_a_bundle(make_bundle):
    settings = resolve("tiny", gpu="cpu", environ={})
    config = settings.model
    weights = {
        "transformer": dict(random_weights(config.transformer, 7)),
        "vae": random_state_dict(config.vae, 7, torch.float32),
    }
    folder = make_bundle()
    manifest = read_manifest(folder)
    paths = {group: f"weights/{group}.safetensors" for group in weights}
    for group, tensors in weights.items():
        save_file(tensors, folder / paths[group])
    manifest = replace(
        manifest,
        config=settings.to_json(),
        weights={group: Weights(path, {}) for group, path in paths.items()},
        files=manifest.files | {path: file_entry(folder / path) for path in paths.values()},
    )
    device = torch.device(manifest.target.device_type)
    frames = []
    for baseline in (
        Baseline.from_bundle(folder, manifest, device),
        Baseline(config, weights["transformer"], weights["vae"]),
    ):
        session = baseline.session(seed=4)
        session.prompt(torch.ones(1, config.transformer.text_len, config.transformer.text_dim))
        frames.append(session.step())
    assert torch.equal(*frames)
    assert frames[0].shape == (9, config.stream.height, config.stream.width, 3)
    assert frames[0].float().std() > 5
