import pytest
import torch
from vae_decode import errors_of


def test_psnr_has_the_range_of_frames_as_its_peak():
    """An error of 0.02 everywhere is 1 % of the range from -1 to 1: 40 dB."""
    wanted = torch.linspace(-0.9, 0.9, 3 * 16 * 16).view(1, 1, 3, 16, 16)
    found = errors_of([wanted + 0.02, wanted], [wanted, wanted + 0.002])
    assert found["psnr_db"] == pytest.approx([40, 60], abs=1e-3)
    signal = wanted.square().mean().sqrt().item()
    assert found["relative_l2"][0] == pytest.approx(0.02 / signal, rel=1e-4)
