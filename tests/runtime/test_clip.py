"""Program `clip`: its steps and whole clips beside diffusers', and what it refuses."""

from functools import cache

import diffusers_svd
import numpy as np
import pytest
import tiny_svd
import torch
from PIL import Image
from tiny_svd import drawn, picture, relative_l2

from vidc.plugins.errors import UsageError
from vidc.runtime.programs.sampler import step_table

STEPS = 10

pytestmark = pytest.mark.usefixtures("without_gradients")


@cache
def svd(*assignments, steps=STEPS):
    return tiny_svd.model(f"sampler.steps={steps}", "image_encoder.image=224", *assignments)


@pytest.mark.parametrize("steps", [10, 25])
def test_steps_are_those_of_the_scheduler(steps):
    model = tiny_svd.model(f"sampler.steps={steps}")
    scheduler = diffusers_svd.scheduler()
    scheduler.set_timesteps(steps)
    assert relative_l2(torch.tensor(model.sampler.sigmas), scheduler.sigmas) < 1e-6
    assert torch.allclose(torch.tensor(model.sampler.timesteps), scheduler.timesteps, atol=1e-6)
    latent = drawn(1, 4, 4, 8, 8) * scheduler.init_noise_sigma
    rows = step_table(model.sampler.sigmas, False, torch.device("cpu"))
    for step, (time, row) in enumerate(zip(scheduler.timesteps, rows, strict=True)):
        scheduler.scale_model_input(latent, time)
        prediction = drawn(*latent.shape, seed=step)
        _, keep, change, fresh, scale = row
        assert fresh == 0
        found = latent * keep + prediction * change
        latent = scheduler.step(prediction, time, latent).prev_sample
        assert relative_l2(found, latent) < 1e-5
        if step + 1 < steps:
            scaled = scheduler.scale_model_input(latent, scheduler.timesteps[step + 1])
            assert relative_l2(found * scale, scaled) < 1e-5


@cache
def reference():
    """Latents of every step and frames of a clip from diffusers' pipeline."""
    model, latents = svd(), []

    def keep(pipeline, step, time, tensors):
        latents.append(tensors["latents"].clone())
        return tensors

    result = tiny_svd.pipeline(model)(
        picture(), height=128, width=128, num_frames=model.clip.frames, num_inference_steps=STEPS,
        decode_chunk_size=model.clip.chunk, generator=torch.Generator().manual_seed(5),
        latents=drawn(1, 4, 4, 16, 16), output_type="pt", callback_on_step_end=keep,
        fps=9, motion_bucket_id=64, noise_aug_strength=0.1,
    )  # fmt: skip
    return latents, result.frames[0]


def generated(model, **given):
    """Latents of every step of a clip, and its session."""
    session, latents = tiny_svd.session(model), []
    arguments = {
        "noise": drawn(1, 1, 4, 4, 16, 16), "image_noise": drawn(1, 3, 128, 128, seed=5),
        "fps": 9, "motion": 64, "noise_aug": 0.1,
    }  # fmt: skip
    session.generate(
        picture(), **(arguments | given), progress=lambda step, x: latents.append(x.clone())
    )
    return latents, session


@cache
def guided():
    """Latents of the clip that ``reference`` makes, and its session."""
    return generated(svd())


def test_a_clip_is_diffusers_step_by_step():
    latents, session = guided()
    wanted, frames = reference()
    assert len(latents) == len(wanted) == STEPS
    for found, step in zip(latents, wanted, strict=True):
        assert relative_l2(found, step) < 1e-4
    found = session.decode(latents[-1]).float() / 255
    assert float((found.permute(0, 3, 1, 2) - frames).abs().max()) < 1 / 255


def test_two_passes_give_the_numbers_of_a_batch():
    both, _ = guided()
    one_by_one, _ = generated(svd("clip.low_memory=true"))
    assert all(relative_l2(a, b) < 1e-5 for a, b in zip(one_by_one, both, strict=True))


def test_guidance_changes_the_clip_and_can_be_left_out():
    with_guidance, _ = guided()
    plain, _ = generated(svd("sampler.guidance=[1.0, 1.0]"))
    assert relative_l2(plain[-1], with_guidance[-1]) > 0.01


def test_embeddings_stand_for_the_image_encoder():
    with_encoder, _ = guided()
    part = svd().parts["image_encoder"]
    pixels = torch.from_numpy(np.array(picture())).permute(2, 0, 1)[None] / 127.5 - 1
    (embeds,) = part.components(tiny_svd.network(part))["image_encoder"].module(pixels)
    without, _ = generated(svd("clip.image_encoder=false"), embeds=embeds)
    assert relative_l2(without[-1], with_encoder[-1]) < 1e-5


def test_progress_changes_nothing_and_clips_differ_by_their_noise():
    session = tiny_svd.session(svd(), seed=7)
    counted = []
    first = session.generate(picture(), progress=lambda step, _: counted.append(step))
    second = session.generate()
    assert counted == list(range(1, STEPS + 1))
    assert relative_l2(second, first) > 0.1
    session.reset(7)
    assert torch.equal(session.generate(picture()), first)
    assert session.step().shape == (4, 128, 128, 3)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"image": Image.new("L", (128, 128))}, "VIDC-CLIP-IMAGE"),
        ({"image": Image.new("RGBA", (128, 128))}, "VIDC-CLIP-IMAGE"),
        ({"image": Image.new("RGB", (64, 128))}, "VIDC-CLIP-IMAGE"),
        ({"image": "fox.png"}, "VIDC-CLIP-IMAGE"),
        ({"image": torch.zeros(3, 128, 128)}, "VIDC-CLIP-IMAGE"),
        ({"image": torch.full((1, 3, 128, 128), torch.nan)}, "VIDC-SESSION-FINITE"),
        ({"image_noise": torch.zeros(1, 3, 8, 8)}, "VIDC-SESSION-NOISE"),
        ({"noise": torch.zeros(1, 4, 4, 16, 16)}, "VIDC-SESSION-NOISE"),
        ({"embeds": torch.zeros(1, 8)}, "VIDC-CLIP-EMBEDS"),
        ({"fps": 0}, "VIDC-CLIP-NUMBER"),
        ({"motion": float("nan")}, "VIDC-CLIP-NUMBER"),
        ({"noise_aug": True}, "VIDC-CLIP-NUMBER"),
    ],
)
def test_refuses(given, code):
    session = tiny_svd.session(svd(steps=2))
    with pytest.raises(UsageError) as caught:
        session.generate(**({"image": picture()} | given))
    assert caught.value.code == code
    assert session.generate(picture()).isfinite().all()


def test_refuses_a_clip_without_an_image_or_an_encoder():
    with pytest.raises(UsageError, match="VIDC-CLIP-NO-IMAGE"):
        tiny_svd.session(svd()).generate()
    with pytest.raises(UsageError, match="VIDC-CLIP-NO-ENCODER"):
        tiny_svd.session(svd("clip.image_encoder=false")).generate(picture())
