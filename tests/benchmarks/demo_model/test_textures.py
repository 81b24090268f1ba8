import pytest
import torch
from demo_model.attributes import Background, Light
from demo_model.light import PERIOD, gains
from demo_model.palette import GROUNDS, OBJECTS
from demo_model.textures import grounds


def fine_deviation(pictures: torch.Tensor) -> torch.Tensor:
    """Standard deviation ``[B, 3]`` of wavelengths of 8 pixels or less in ``[B, H, W, 3]``."""
    height, width = pictures.shape[1:3]
    spectrum = torch.fft.fft2(pictures, dim=(1, 2))
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.fftfreq(width)[None, :]
    fine = (fy**2 + fx**2).sqrt() >= 1 / 8
    power = (spectrum.abs() ** 2 * fine[None, :, :, None]).sum((1, 2))
    return power.sqrt() / (height * width)


def pictures(background: Background, seeds, height=128, width=128) -> torch.Tensor:
    drawn = grounds([background] * len(seeds), seeds, height, width, torch.device("cpu"))
    return drawn * 2 - 1


def test_the_measure_counts_waves_of_eight_pixels_and_no_longer_ones():
    x = torch.arange(128.0).expand(128, -1)
    for wavelength, deviation in ((4, 0.5**0.5), (8, 0.5**0.5), (16, 0.0)):
        wave = torch.sin(2 * torch.pi * x / wavelength)[None, :, :, None].expand(-1, -1, -1, 3)
        assert fine_deviation(wave).numpy() == pytest.approx(deviation, abs=1e-3)


@pytest.mark.parametrize("background", Background)
@pytest.mark.parametrize(("height", "width"), [(128, 128), (96, 160)])
def test_textures_are_real_detail(background, height, width):
    found = pictures(background, range(8), height, width)
    assert found.abs().max() <= 1
    # Each channel, even where the light is dimmest.
    assert fine_deviation(found).min() * 0.92 >= 0.1
    assert fine_deviation(found).max() < 0.2


@pytest.mark.parametrize("background", Background)
def test_seeds_draw_different_grounds_of_one_color(background):
    first, second, again = pictures(background, (1, 2, 1))
    assert torch.equal(first, again)
    assert (first - second).std() > 0.1
    for picture in (first, second):
        mean = (picture.mean((0, 1)) + 1) / 2
        assert mean.numpy() == pytest.approx(GROUNDS[background], abs=0.01)


def test_a_ground_does_not_depend_on_its_batch():
    together = grounds(list(Background), list(range(6)), 128, 128, torch.device("cpu"))
    for index, background in enumerate(Background):
        alone = grounds([background], [index], 128, 128, torch.device("cpu"))[0]
        assert torch.allclose(together[index], alone, atol=1e-5)


def test_objects_are_strongly_colored_and_grounds_are_not():
    assert max(min(rgb) / max(rgb) for rgb in OBJECTS.values()) <= 0.2
    assert min(min(rgb) / max(rgb) for rgb in GROUNDS.values()) >= 0.75


@pytest.mark.parametrize("light", Light)
def test_light_is_bounded_and_comes_back(light):
    found = gains([light], [4], 0, 1300, 128)
    assert found.shape == (1, 1300, 1, 128, 3)
    assert found.min() >= 0.92 - 1e-6
    assert found.max() <= 1.08 + 1e-6
    assert torch.equal(found[:, PERIOD:], found[:, :-PERIOD])
    assert torch.equal(found[:, 700:720], gains([light], [4], 700, 20, 128))
    varies = found.std(1).max() > 0.02
    assert varies == (light is not Light.STEADY)


def test_light_sweeps_over_the_frame():
    sweep = gains([Light.SWEEPING], [4], 0, 60, 128)[0, :, 0, :, 0]
    assert sweep.std(1).min() > 0.02
    brightest = sweep.argmax(1)
    steps = (brightest[1:] - brightest[:-1] + 64) % 128 - 64
    assert ((steps >= 1) & (steps <= 4)).all()
