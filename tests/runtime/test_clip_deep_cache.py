"""Clips with DeepCache: most steps run the UNet's first resolution over an earlier step's features.

The reference is diffusers' pipeline whose UNet keeps the result of its second last up block: a hook
replaces it between the steps that run the whole network.
"""

import pytest
import tiny_svd
import torch
from tiny_svd import CPU, drawn, picture, relative_l2

from vidc.compiler.config.program import program_spec
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden, make_inputs, record
from vidc.compiler.validate.reference import player
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import UsageError
from vidc.runtime.engines import Wrapper

STEPS, INTERVAL = 7, 3
SIZES = (f"sampler.steps={STEPS}", "image_encoder.image=224")
SHAPE = (1, 4, 4, 16, 16)

pytestmark = pytest.mark.usefixtures("without_gradients")


def cached(*assignments):
    return tiny_svd.model(f"sampler.cache_interval={INTERVAL}", *assignments)


def generated(svd):
    """Latents of every step."""
    found = []
    tiny_svd.session(svd).generate(
        picture(), noise=drawn(1, *SHAPE), image_noise=drawn(1, 3, 128, 128, seed=5),
        progress=lambda step, x: found.append(x.clone()),
    )  # fmt: skip
    return found


def diffusers_latents(svd):
    """Latents of every step from diffusers' pipeline with a hook."""
    found, kept = [], []
    pipe = tiny_svd.pipeline(svd)

    def keep(module, given, features):
        if len(found) % INTERVAL == 0:
            kept[:] = [features.clone()]
        return kept[0]

    hook = pipe.unet.up_blocks[-2].register_forward_hook(keep)
    try:
        pipe(
            picture(), height=128, width=128, num_frames=4, num_inference_steps=STEPS,
            decode_chunk_size=svd.clip.chunk, generator=torch.Generator().manual_seed(5),
            latents=drawn(*SHAPE), output_type="latent",
            callback_on_step_end=lambda pipe, step, time, x: found.append(x["latents"]) or x,
        )  # fmt: skip
    finally:
        hook.remove()
    return found


def test_a_clip_is_diffusers_with_kept_features_step_by_step():
    svd = cached(*SIZES)
    found, wanted = generated(svd), diffusers_latents(svd)
    assert len(found) == len(wanted) == STEPS
    assert all(relative_l2(ours, theirs) < 1e-4 for ours, theirs in zip(found, wanted, strict=True))
    without = generated(tiny_svd.model(*SIZES))
    assert relative_l2(found[0], without[0]) < 1e-6
    assert relative_l2(found[1], without[1]) > 1e-4
    assert relative_l2(found[-1], without[-1]) > 1e-2


def test_it_is_off_by_default():
    spec = program_spec(tiny_svd.model())
    assert "denoise_shallow" not in spec.components
    assert spec.calls["block"] == {"denoise": 4}
    assert not tiny_svd.model().unet_part.deep_cache


def test_both_components_count():
    svd = cached(*SIZES)
    assert program_spec(svd).calls["block"] == {"denoise": 3, "denoise_shallow": 4}
    layers = ("mid_block.attentions.0.proj_in", "up_blocks.3.attentions.0.proj_in")
    assert [svd.calls(layer) for layer in layers] == [3, 7]
    components = svd.unet_part.components(svd.unet_part.network("fp32"))
    shared = {
        state.name
        for name in ("denoise", "denoise_shallow")
        for state in components[name].signature.states
        if state.name == "deep.features"
    }
    assert shared == {"deep.features"}


class Scaled(Wrapper):
    """Engine whose outputs are a hundredth too large."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        for output in buffers.outputs.values():
            output.mul_(1.01)


class Forgetful(Wrapper):
    """Engine that leaves a state unwritten."""

    def run(self, buffers, states):
        before = states["deep.features"].clone()
        self._engine.run(buffers, states)
        states["deep.features"].copy_(before)


@pytest.mark.parametrize(
    ("component", "fault", "gate"),
    [
        ("denoise_shallow", Scaled, "denoise_shallow"),
        ("denoise", Scaled, "denoise"),
        ("denoise", Forgetful, "denoise_shallow"),
    ],
)
def test_each_component_has_a_gate_of_its_own(component, fault, gate):
    svd = cached("sampler.steps=3", "clip.height=64", "clip.width=64")
    engines = tiny_svd.engines(svd)
    scenario = Scenario(blocks=2, switch_after=1, rollout=True)
    eager = player(svd, engines, CPU)
    inputs = make_inputs(scenario, eager.resources.spec)
    golden = Golden(scenario, inputs, record(eager, scenario, inputs), None, None)
    assert all(each.passed for each in compare_with_golden(golden, eager, {}).gates)
    assert eager.decode(golden.reference.played.latents)  # By the decoders alone.
    faulty = eager.with_engines({**engines, component: fault(engines[component])})
    gates = compare_with_golden(golden, faulty, {}).gates
    assert gate in {each.component for each in gates if not each.passed}


@pytest.mark.parametrize(
    ("assignments", "match"),
    [
        (("sampler.cache_interval=0",), r"sampler\.cache_interval = 0 is not between 1"),
        (("sampler.cache_interval=5",), r"sampler\.cache_interval = 5 .*4 steps"),
        (("sampler.cache_interval=2", "clip.low_memory=true"), r"clip\.low_memory = true"),
    ],
)
def test_refuses(assignments, match):
    with pytest.raises(UsageError, match=rf"VIDC-CONFIG-SIZES[\s\S]*{match}"):
        tiny_svd.model(*assignments)
