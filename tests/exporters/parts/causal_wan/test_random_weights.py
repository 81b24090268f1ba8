"""Random weights make every part matter, so that a planted fault shows."""

import pytest
import torch
from random_transformer import random_weights
from tensors import empty_tensors

from vidc.compiler.config.program import program_spec
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.rope import Rope


def test_depend_on_seed_and_name_alone(configure):
    sizes = configure().transformer
    first, again = random_weights(sizes, 1), random_weights(sizes, 1)
    other = random_weights(sizes, 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


@pytest.fixture
def full_window(configure):
    """The denoise component of a stream whose window is full, and its arguments by name."""
    config = configure()
    model = CausalWan(config.transformer).requires_grad_(False)
    model.load_state_dict(random_weights(config.transformer, seed=1))
    made = config.transformer_part.components(model)
    denoise = made["denoise"]
    arguments = dict(
        zip(
            (spec.name for spec in denoise.signature.arguments),
            empty_tensors(denoise.signature.arguments),
            strict=True,
        )
    )
    torch.manual_seed(0)
    text_kv = made["text_kv"]
    sizes = config.transformer
    text = torch.randn(1, sizes.text_len, sizes.text_dim)
    text_kv.module(text, *(arguments[s.name] for s in text_kv.signature.states))
    rope = Rope(program_spec(config), torch.device("cpu"))
    for block in range(5):
        first = torch.tensor([3 * block])
        rope.fill(arguments["rope_cos"], arguments["rope_sin"], first)
        arguments["latent"].normal_()
        arguments["timestep"].fill_(0 if block < 4 else 625)
        arguments["position"].fill_(3 * block * config.frame_tokens)
        end = min(3 * block + 3, config.stream.window)
        arguments["valid_length"].fill_(end * config.frame_tokens)
        if block < 4:
            denoise.module(*arguments.values())
    return config, denoise, arguments


def change(denoise, arguments, **changed) -> float:
    def run(values):
        copies = [v.clone() for v in values.values()]
        return denoise.module(*copies)[0]

    expected = run(arguments)
    return float((run(arguments | changed) - expected).norm() / expected.norm())


def test_dropping_the_sink_changes_the_output(full_window):
    config, denoise, arguments = full_window
    sink = config.stream.sink * config.frame_tokens
    without = {
        name: torch.cat([value[:, sink:], value[:, sink : 2 * sink]], 1)
        for name, value in arguments.items()
        if name.startswith("ring")
    }
    assert change(denoise, arguments, **without) > 0.05


@pytest.mark.parametrize(
    ("name", "value"),
    [("timestep", 0.0), ("position", 0), ("valid_length", 36), ("rope_cos", 1.0)],
)
def test_every_input_matters(full_window, name, value):
    _, denoise, arguments = full_window
    assert change(denoise, arguments, **{name: torch.full_like(arguments[name], value)}) > 0.01


@pytest.mark.parametrize("prefix", ["text.k", "text.v", "ring.k", "ring.v"])
def test_every_state_matters(full_window, prefix):
    _, denoise, arguments = full_window
    zeroed = {n: torch.zeros_like(v) for n, v in arguments.items() if n.startswith(prefix)}
    assert len(zeroed) == 2
    assert change(denoise, arguments, **zeroed) > 0.05
