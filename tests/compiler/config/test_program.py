import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vidc.compiler.config.program import program_spec, run_words
from vidc.compiler.config.resolve import resolve
from vidc.exporters.families.causal_video import MAX_SHIFT, SamplerConfig
from vidc.exporters.table import MAX_SIZE
from vidc.plugins.errors import UsageError

ODD = (-1, 0, 1, 2, 3, 5, 12, MAX_SIZE, MAX_SIZE + 1)
SIZES = st.sampled_from(ODD) | st.integers(-3, 40)
SHARES = st.sampled_from((math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-320, 1e-17, 1e308))
STREAM = st.fixed_dictionaries(
    {},
    optional={
        "stream.batch": SIZES,
        "stream.block": SIZES,
        "stream.window": SIZES,
        "stream.sink": SIZES,
        "stream.height": SIZES.map(lambda size: 16 * size),
        "stream.width": SIZES.map(lambda size: 16 * size),
        "model.text_len": SIZES,
        "model.text_dim": SIZES,
        "sampler.shift": SHARES | st.floats(),
        "sampler.context_timestep": SHARES | st.floats(),
        "sampler.steps": st.lists(st.integers(-1, 1001), max_size=4),
    },
)
PASSED_ON = {
    "stream.batch": "batch",
    "stream.block": "block",
    "stream.window": "window",
    "stream.sink": "sink",
}
"""Settings that a ``StreamSpec`` has as they are, and its names of them."""


def model(said):
    assignments = [f"{name}={value}" for name, value in said.items()]
    return resolve("tiny", gpu="cpu", assignments=assignments, environ={}).model


@settings(max_examples=examples(300))
@given(STREAM)
def test_settings_that_resolve_make_a_stream(said):
    try:
        found = model(said)
    except UsageError:
        return
    program_spec(found)


@settings(max_examples=examples(200))
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(PASSED_ON, SIZES)))
def test_sizes_that_make_a_stream_resolve(said):
    try:
        expected = replace(
            program_spec(model({})), **{PASSED_ON[name]: value for name, value in said.items()}
        )
    except ValueError:
        with pytest.raises(UsageError, match=r"stream\."):
            model(said)
    else:
        assert program_spec(model(said)) == expected


@given(st.floats(1 / MAX_SHIFT, MAX_SHIFT))
def test_shares_of_noise_fall_at_every_shift(shift):
    shares = SamplerConfig((1000, 750, 500, 250, 1), shift).sigmas
    assert shares[0] == pytest.approx(1)
    assert list(shares) == sorted(set(shares), reverse=True)
    assert shares[-1] > 0


@pytest.mark.parametrize(
    ("files", "prompt", "conditions", "flag"),
    [
        ({"tokenizer.json": None}, (1, 8, 16), {}, "--prompt"),
        ({}, (1, 8, 16), {}, "--prompt-embeds"),
        ({}, (), {"action": (1, 4)}, "--actions"),
        ({}, (), {"embedding": (1, 4)}, "--image"),
    ],
)
def test_a_bundle_is_played_with_the_inputs_of_its_program(files, prompt, conditions, flag):
    spec = SimpleNamespace(prompt_shape=prompt, condition_shapes=conditions)
    words = run_words(SimpleNamespace(files=files, spec=spec), "out/x")
    assert words[:3] == ["vidc", "run", "out/x"]
    assert [word for word in words if word.startswith("--")] == [flag]
