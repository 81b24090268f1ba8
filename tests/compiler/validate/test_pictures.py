import base64
import io

import numpy as np
import pytest
from PIL import Image

from vidc.compiler.validate.pictures import ERROR_RAMP, error_map, frame_error, png_uri


def test_the_error_is_the_largest_channel_difference_without_wrapping():
    engine = np.array([[[0, 10, 255], [7, 7, 7]]], np.uint8)
    reference = np.array([[[255, 10, 250], [7, 9, 6]]], np.uint8)
    assert frame_error(engine, reference).tolist() == [[255, 2]]


def test_the_ramp_spans_the_stated_scale():
    colors = error_map(np.array([[0, 4, 8, 12, 16, 200]], np.int16), full_scale=16)
    assert [tuple(c) for c in colors[0].tolist()] == [*ERROR_RAMP, ERROR_RAMP[-1]]


def test_the_uri_holds_the_picture_exactly():
    picture = np.random.default_rng(0).integers(0, 256, (9, 14, 3), dtype=np.uint8)
    prefix, data = png_uri(picture).split(",")
    assert prefix == "data:image/png;base64"
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))), picture)


@pytest.mark.parametrize(
    "other",
    [np.zeros((4, 5, 3), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)],
    ids=["size", "dtype", "gray"],
)
def test_frames_that_do_not_compare_are_refused(other):
    frame = np.zeros((4, 4, 3), np.uint8)
    with pytest.raises(ValueError, match="one size"):
        frame_error(frame, other)
    with pytest.raises(ValueError, match="one size"):
        frame_error(other, frame)
