"""Frames and error maps as data URIs."""

import base64
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.uint8]

ERROR_RAMP = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
"""RGB of errors from zero to full scale, evenly spaced: dark to bright, readable in gray too."""


def frame_error(engine: Picture, reference: Picture) -> npt.NDArray[np.int16]:
    """Returns the largest channel difference of two frames uint8 [H, W, 3]: [H, W], 0 to 255.

    Raises:
        ValueError: if either is not such a frame or the sizes differ.
    """
    for frame in (engine, reference):
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape != (*engine.shape[:2], 3):
            raise ValueError(
                f"frames must be uint8 [H, W, 3] of one size, not {engine.dtype} "
                f"{engine.shape} and {reference.dtype} {reference.shape}"
            )
    error = np.abs(engine.astype(np.int16) - reference.astype(np.int16))
    largest: npt.NDArray[np.int16] = error.max(axis=2)
    return largest


def error_map(error: npt.NDArray[np.int16], full_scale: int) -> Picture:
    """Maps errors [H, W] to colors uint8 [H, W, 3]; ``full_scale`` and above are brightest."""
    position = np.minimum(error / full_scale, 1.0)
    stops = np.linspace(0, 1, len(ERROR_RAMP))
    channels = [np.interp(position, stops, values) for values in zip(*ERROR_RAMP, strict=True)]
    return np.stack(channels, axis=2).round().astype(np.uint8)


def png_uri(picture: Picture) -> str:
    """Encodes ``picture``, uint8 [H, W, 3], as a PNG ``data:`` URI."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
