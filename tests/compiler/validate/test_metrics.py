import math

import numpy as np
import pytest
import torch
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from vidc.compiler.validate.metrics import (
    compare,
    compare_pixels,
    psnr,
    sqnr_db,
    ssim,
)

WORST = (False, math.inf, -1.0, math.inf, -math.inf)

vectors = npst.arrays(
    np.float32,
    npst.array_shapes(max_dims=3, max_side=5),
    # Below this, float32 squares that a caller takes himself underflow; not the subject here.
    elements=st.floats(-1e6, 1e6, width=32).map(lambda x: 0.0 if abs(x) < 1e-6 else x),
).map(torch.from_numpy)


def frames(seed: int, count: int = 2, height: int = 24, width: int = 31) -> torch.Tensor:
    """Random pictures with structure at several scales, 0 to 255."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    fine = torch.rand(count, 3, height, width, generator=generator)
    grown = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (255 * (0.8 * grown + 0.2 * fine)).round()


@given(vectors)
@settings(deadline=None)
def test_equal_tensors_are_perfect(x):
    metrics = compare(x, x.clone())
    assert (metrics.finite, metrics.relative_l2, metrics.cosine, metrics.max_error) == (
        True,
        0,
        1,
        0,
    )
    assert metrics.sqnr_db == math.inf


@given(vectors, st.floats(1e-3, 0.9))
@settings(deadline=None)
def test_a_scaled_tensor_has_known_metrics(x, eps):
    if not x.any():
        return
    metrics = compare(x.double() * (1 + eps), x)
    assert metrics.relative_l2 == pytest.approx(eps, rel=1e-9)
    assert metrics.cosine == pytest.approx(1)
    assert metrics.max_error == pytest.approx(eps * x.abs().max().item(), rel=1e-9)
    assert metrics.sqnr_db == pytest.approx(-20 * math.log10(eps), rel=1e-9)


@given(vectors, vectors)
@settings(deadline=None)
def test_sqnr_is_the_relative_error_in_decibels(x, y):
    if x.shape != y.shape:
        return
    metrics = compare(x, y)
    assert metrics.sqnr_db == sqnr_db(metrics.relative_l2)
    signal, noise = y.double().norm().item(), (x.double() - y.double()).norm().item()
    if signal and noise:
        assert metrics.sqnr_db == pytest.approx(20 * math.log10(signal / noise), abs=1e-9)


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_sqnr_falls_as_the_error_grows(one, other):
    less, more = sorted((one, other))
    assert sqnr_db(less) >= sqnr_db(more)
    assert sqnr_db(less / 2) == pytest.approx(sqnr_db(less) + 6.0206, abs=1e-3)


@pytest.mark.parametrize(
    ("error", "decibels"), [(1.0, 0.0), (0.1, 20.0), (10.0, -20.0), (0.0, math.inf)]
)
def test_known_values_of_sqnr(error, decibels):
    assert sqnr_db(error) == pytest.approx(decibels)
    assert sqnr_db(math.inf) == -math.inf


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 60), st.integers(1, 4))
@settings(max_examples=examples(20))
def test_pictures_compare_the_same_either_way_and_within_bounds(seed, sigma, count):
    x = frames(seed, count)
    noise = sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    y = (x + noise).clamp(0, 255).round()
    one, other = compare_pixels(x, y), compare_pixels(y, x)
    assert one.psnr_db == other.psnr_db
    assert one.ssim == pytest.approx(other.ssim, abs=1e-12)
    assert -1 <= one.ssim <= 1
    assert one.psnr_db >= 0


@given(st.integers(1, 254), st.integers(0, 255))
def test_known_values_of_pictures_of_one_color(levels, other):
    x = torch.full((1, 3, 16, 16), levels, dtype=torch.uint8)
    y = torch.full((1, 3, 16, 16), other, dtype=torch.uint8)
    metrics = compare_pixels(x, y)
    distance = abs(levels - other)
    expected = 20 * math.log10(255 / distance) if distance else math.inf
    assert metrics.psnr_db == pytest.approx(expected)
    # Without structure there is luminance alone.
    c1 = (0.01 * 255) ** 2
    luminance = (2 * levels * other + c1) / (levels**2 + other**2 + c1)
    assert metrics.ssim == pytest.approx(luminance, abs=1e-9)


@given(vectors, st.integers(0, 2**32 - 1), st.floats(1e-2, 1e2))
@settings(deadline=None)
def test_the_scale_of_both_does_not_matter(x, seed, scale):
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    one, other = compare(x + noise, x), compare((x + noise).double() * scale, x.double() * scale)
    assert other.relative_l2 == pytest.approx(one.relative_l2, rel=1e-6)
    assert other.cosine == pytest.approx(one.cosine, abs=1e-9)
    assert other.max_error == pytest.approx(one.max_error * scale, rel=1e-6)


@given(vectors, vectors)
@settings(deadline=None)
def test_metrics_stay_in_their_ranges(x, y):
    if x.shape != y.shape:
        with pytest.raises(ValueError, match="cannot compare"):
            compare(x, y)
        return
    metrics = compare(x, y)
    assert metrics.relative_l2 >= 0
    assert metrics.max_error >= 0
    assert -1 <= metrics.cosine <= 1
    assert not any(math.isnan(value) for value in (metrics.relative_l2, metrics.sqnr_db))


@given(
    vectors,
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.booleans(),
    st.data(),
)
@settings(deadline=None)
def test_one_bad_value_anywhere_gives_the_worst_figures(x, bad, dtype, swapped, data):
    x = x.clamp(-1e4, 1e4).to(dtype)
    broken = x.clone()
    broken.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = bad
    metrics = compare(x, broken) if swapped else compare(broken, x)
    assert (
        metrics.finite,
        metrics.relative_l2,
        metrics.cosine,
        metrics.max_error,
        metrics.sqnr_db,
    ) == WORST


def test_an_unwritten_output_is_not_close_to_anything():
    metrics = compare(torch.zeros(8), torch.ones(8))
    assert (metrics.relative_l2, metrics.cosine, metrics.sqnr_db) == (1, 0, 0)
    metrics = compare(torch.ones(8), torch.zeros(8))
    assert (metrics.relative_l2, metrics.cosine, metrics.sqnr_db) == (math.inf, 0, -math.inf)


def test_sums_are_taken_in_float64():
    reference = torch.full((1 << 20,), 1e-3, dtype=torch.float16)
    reference[0] = 6e4
    actual = reference.clone()
    actual[1:] *= 2
    error = reference[1:].double().norm().item()
    assert compare(actual, reference).relative_l2 == pytest.approx(
        error / reference.double().norm().item(), rel=1e-12
    )


def test_bytes_do_not_wrap():
    dark, bright = torch.zeros(1, 3, 16, 16, dtype=torch.uint8), torch.full((1, 3, 16, 16), 255)
    assert psnr(dark, bright.to(torch.uint8)) == 0
    assert compare(dark, bright.to(torch.uint8)).max_error == 255


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 60))
@settings(max_examples=examples(20))
def test_psnr_agrees_with_scikit_image(seed, sigma):
    x = frames(seed)
    y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    expected = peak_signal_noise_ratio(x.double().numpy(), y.double().numpy(), data_range=255)
    assert psnr(y, x) == pytest.approx(expected, abs=1e-9)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 60),
    st.integers(11, 30),
    st.integers(11, 30),
    st.sampled_from([1.0, 255.0]),
)
@settings(max_examples=examples(30))
def test_ssim_agrees_with_scikit_image(seed, sigma, height, width, peak):
    x = frames(seed, 2, height, width)
    y = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    x, y = x * peak / 255, y * peak / 255
    expected = np.mean(
        [
            structural_similarity(
                a.double().numpy(),
                b.double().numpy(),
                data_range=peak,
                channel_axis=0,
                gaussian_weights=True,
                sigma=1.5,
                use_sample_covariance=False,
            )
            for a, b in zip(x, y, strict=True)
        ]
    )
    assert ssim(y, x, peak) == pytest.approx(expected, abs=1e-9)
    assert ssim(x, y, peak) == pytest.approx(ssim(y, x, peak), abs=1e-12)


def test_pixels_in_one_call():
    x, y = frames(0), frames(1)
    metrics = compare_pixels(x, y)
    assert (metrics.finite, metrics.psnr_db, metrics.ssim) == (True, psnr(x, y), ssim(x, y))
    same = compare_pixels(x, x.clone())
    assert same.psnr_db == math.inf
    assert same.ssim == pytest.approx(1, abs=1e-12)


def test_a_bad_pixel_gives_the_worst_figures():
    x = frames(0)
    broken = x.clone()
    broken[0, 0, 0, 0] = math.nan
    metrics = compare_pixels(broken, x)
    assert (metrics.finite, metrics.psnr_db, metrics.ssim) == (False, -math.inf, -1)


@pytest.mark.parametrize("shape", [(1, 3, 10, 64), (3, 64, 64)])
def test_ssim_rejects_frames_below_window_size(shape):
    with pytest.raises(ValueError, match="at least 11 x 11"):
        ssim(torch.zeros(shape), torch.zeros(shape))


def test_rejects_empty_tensors():
    with pytest.raises(ValueError, match="at least one element"):
        compare(torch.zeros(0), torch.zeros(0))
