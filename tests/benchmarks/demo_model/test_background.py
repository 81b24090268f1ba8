import pytest
import torch
from demo_model.background import background_psnr, objects
from demo_model.clip import frames_of
from demo_model.damage import blurred, noisy
from demo_model.light import PERIOD
from demo_model.render import render
from demo_model.score import BLOCK
from demo_model.split import Split, sample

EARLY, LATE = (frames_of(3 * block) - BLOCK for block in (5, 100))


def test_blocks_5_and_100_are_under_the_same_light():
    assert frames_of(3) + 4 * BLOCK == EARLY + BLOCK
    assert (LATE - EARLY) % PERIOD == 0


@pytest.mark.parametrize("index", range(8))
def test_the_background_of_an_endless_clip_stays(index):
    clip = sample(Split.HELD_OUT, index).clip
    early, late = (render([clip], BLOCK, first=first)[0] for first in (EARLY, LATE))
    found = background_psnr(early, late)
    assert found.db > 40
    assert found.share > 0.4
    # Without the mask, objects that moved on would look like a background that did not stay.
    assert 10 * torch.log10(4 / ((early - late) ** 2).mean()) < found.db - 5


def test_any_two_phases_of_light_are_near():
    for index in range(8):
        clip = sample(Split.TRAIN, index).clip
        early, late = (render([clip], BLOCK, first=first)[0] for first in (EARLY, EARLY + 30))
        assert background_psnr(early, late).db > 20


def test_noise_is_measured_for_what_it_is():
    clip = render([sample(Split.TRAIN, 1).clip], BLOCK)[0]
    assert background_psnr(clip, clip).db == float("inf")
    assert background_psnr(clip, noisy(clip, 0.1, 1)).db == pytest.approx(26.02, abs=0.1)


def test_another_background_and_one_without_detail_are_below_25():
    for index in range(6):
        one, other = (render([sample(Split.TRAIN, i).clip], BLOCK)[0] for i in (index, index + 100))
        assert background_psnr(one, other).db < 22
        assert background_psnr(one, blurred(one, 6.0)).db < 25


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0])
def test_a_video_that_collapsed_has_no_background_left(value):
    clip = render([sample(Split.TRAIN, 1).clip], BLOCK)[0]
    red = torch.tensor([value, -1.0, -1.0])[:, None, None, None].expand_as(clip)
    found = background_psnr(clip, red)
    assert found.db < 15
    assert found.share > 0.5


def test_stretches_must_be_alike():
    clip = render([sample(Split.TRAIN, 1).clip], BLOCK)[0]
    with pytest.raises(ValueError, match="stretches differ"):
        background_psnr(clip, clip[:, 1:])


def test_the_mask_covers_objects_and_shadows():
    clip = sample(Split.TRAIN, 2).clip
    early, later = (render([clip], 3, first=first)[0] for first in (0, PERIOD))
    free = ~(objects(early) | objects(later))
    assert (early - later).abs().amax(0)[free].max() < 0.05
