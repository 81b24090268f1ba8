"""Where objects are, against the pixels that they change."""

from dataclasses import replace

import torch
from demo_model.attributes import Light
from demo_model.clip import Clip, frames_of
from demo_model.presence import presence
from demo_model.render import render
from demo_model.split import Split, sample
from demo_model.textures import grounds

LATENTS = 4
SIDE = {"height": 128, "width": 128}


def changed(clip: Clip, first: int) -> torch.Tensor:
    """Cells in which a frame of the clip differs from one without objects."""
    frames = frames_of(LATENTS)
    scene = replace(clip.scenes[0][1], light=Light.STEADY)
    shown = render([Clip.of(scene, clip.seed)], frames, first=first)[0]
    ground = grounds([scene.background], [clip.seed], 128, 128, torch.device("cpu"))[0]
    empty = (2 * ground - 1).permute(2, 0, 1)[:, None]
    differs = (shown - empty).abs().amax(0) > 0.6  # A shadow changes less.
    cells = differs.unflatten(1, (16, 8)).unflatten(3, (16, 8)).any(4).any(2)
    return torch.stack([group.any(0) for group in cells.split([1, *[4] * (LATENTS - 1)])])


def test_every_cell_that_an_object_changes_is_its_own():
    clips = [sample(Split.TRAIN, index).clip for index in range(24)]
    for first in (0, 48):
        found = presence(clips, LATENTS, first=first, **SIDE)
        assert found.shape == (24, LATENTS, 16, 16)
        for clip, own in zip(clips, found, strict=True):
            assert not (changed(clip, first) & ~own).any()


def test_most_of_a_picture_is_nobody_s():
    clips = [sample(Split.TRAIN, index).clip for index in range(64)]
    share = presence(clips, LATENTS, first=0, **SIDE).float().mean()
    assert 0.05 < float(share) < 0.3


def test_a_later_start_is_a_later_part_of_the_same():
    clips = [sample(Split.TRAIN, 3).clip]
    whole = presence(clips, 6, first=0, **SIDE)
    # A first latent frame is one frame, a later one four.
    assert torch.equal(presence(clips, 3, first=12, **SIDE)[:, 1:], whole[:, 4:])
