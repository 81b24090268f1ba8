"""Clips of a consistency model (AnimateLCM-SVD) beside diffusers' scheduler and pipeline."""

import diffusers_svd
import pytest
import tiny_svd
import torch
from tiny_svd import drawn, picture, relative_l2

from vidc.compiler.config.resolve import resolve
from vidc.plugins.errors import UsageError
from vidc.runtime.programs.sampler import step_table

STEPS = 4
SIZES = ("image_encoder.image=224", "sampler.guidance=[1.0, 1.0]")
KIND = "sampler.kind=consistency"
CPU = torch.device("cpu")
SHAPE = (1, 4, 4, 16, 16)

pytestmark = pytest.mark.usefixtures("without_gradients")


@pytest.fixture(scope="module")
def svd():
    return tiny_svd.model(*SIZES, KIND, f"sampler.steps={STEPS}")


def test_preset():
    lcm = resolve("svd-lcm", gpu="t4", environ={}).model
    assert (lcm.sampler.kind, lcm.sampler.steps, lcm.clip.frames) == ("consistency", STEPS, 25)
    assert (lcm.unet_part.halves, lcm.unet_part.batch) == (1, 1)


@pytest.mark.parametrize("steps", [1, 2, STEPS, 8, 40])
def test_noise_levels_are_those_of_the_scheduler(steps):
    sampler = tiny_svd.model(KIND, f"sampler.steps={steps}").sampler
    scheduler = diffusers_svd.consistency_scheduler()
    scheduler.set_timesteps(steps)
    assert relative_l2(torch.tensor(sampler.sigmas[:-1]), scheduler.sigmas[:-1]) < 1e-6
    assert torch.allclose(torch.tensor(sampler.timesteps), scheduler.timesteps.float(), atol=1e-6)


def test_a_step_denoises_as_diffusers_does_and_adds_noise(svd):
    """The other scheduler, which is Stable Video Diffusion's own, has the same denoised latent."""
    sigmas = svd.sampler.sigmas
    consistency, euler = diffusers_svd.consistency_scheduler(), diffusers_svd.scheduler()
    consistency.set_timesteps(STEPS)
    rows = step_table(sigmas, True, CPU)
    for step, row in enumerate(rows):
        time = consistency.timesteps[step]
        latent, prediction = drawn(*SHAPE, seed=step) * sigmas[step], drawn(*SHAPE, seed=9 + step)
        consistency.scale_model_input(latent, time)
        wanted = consistency.step(
            prediction, time, latent, generator=torch.Generator().manual_seed(step)
        ).prev_sample
        _, keep, change, fresh, scale = row
        denoised = latent * keep + prediction * change
        assert relative_l2(denoised + fresh * drawn(*SHAPE, seed=step), wanted) < 2e-5
        assert scale == pytest.approx((sigmas[step + 1] ** 2 + 1) ** -0.5)
        euler.sigmas, euler.timesteps = torch.tensor([sigmas[step], 0.0]), time[None].float()
        euler._step_index = euler._begin_index = 0
        euler.is_scale_input_called = True
        other = euler.step(prediction, euler.timesteps[0], latent).pred_original_sample
        assert relative_l2(denoised, other) < 1e-5


def test_a_clip_is_diffusers_step_by_step(svd):
    wanted, found = [], []
    pipe = tiny_svd.pipeline(svd)
    pipe.scheduler = diffusers_svd.consistency_scheduler()
    torch.manual_seed(11)  # The pipeline's scheduler draws from torch's own generator.
    result = pipe(
        picture(), height=128, width=128, num_frames=4, num_inference_steps=STEPS,
        decode_chunk_size=svd.clip.chunk, generator=torch.Generator().manual_seed(5),
        latents=drawn(*SHAPE), output_type="pt", max_guidance_scale=1.0,
        callback_on_step_end=lambda pipe, step, time, x: wanted.append(x["latents"].clone()) or x,
    )  # fmt: skip
    torch.manual_seed(11)
    noise = torch.stack([drawn(*SHAPE), *(torch.randn(SHAPE) for _ in range(STEPS - 1))])
    session = tiny_svd.session(svd)
    latent = session.generate(
        picture(), noise=noise, image_noise=drawn(1, 3, 128, 128, seed=5),
        progress=lambda step, x: found.append(x.clone()),
    )  # fmt: skip
    assert len(found) == len(wanted) == STEPS
    for ours, theirs in zip(found, wanted, strict=True):
        assert relative_l2(ours, theirs) < 1e-4
    frames = session.decode(latent).float() / 255
    assert float((frames.permute(0, 3, 1, 2) - result.frames[0]).abs().max()) < 1 / 255


def test_each_step_s_noise_counts(svd):
    session = tiny_svd.session(svd, seed=7)
    first = session.generate(picture())
    session.reset(7)
    assert torch.equal(session.generate(picture(), progress=lambda *_: None), first)
    noise = drawn(STEPS, *SHAPE)
    before = session.generate(noise=noise)
    for step in range(STEPS):
        changed = noise.clone()
        changed[step] = drawn(*SHAPE, seed=step + 1)
        assert relative_l2(session.generate(noise=changed), before) > 1e-4


def test_refuses_noise_of_one_step(svd):
    session = tiny_svd.session(svd)
    with pytest.raises(UsageError, match="VIDC-SESSION-NOISE"):
        session.generate(picture(), noise=drawn(1, *SHAPE))


@pytest.mark.parametrize(
    ("assignments", "match"),
    [
        (("sampler.kind=lcm",), r"sampler\.kind = 'lcm'"),
        ((KIND, "sampler.steps=41"), r"sampler\.steps = 41 is not between 1 and 40"),
    ],
)
def test_refuses(assignments, match):
    with pytest.raises(UsageError, match=rf"VIDC-CONFIG-SIZES[\s\S]*{match}"):
        tiny_svd.model(*assignments)
