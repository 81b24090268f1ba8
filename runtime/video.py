"""Video files written frame by frame: mp4 with PyAV, WebP and GIF with Pillow."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from vidc.plugins.errors import UnavailableError, UsageError, nearest

Frames = npt.NDArray[np.uint8]

MP4_ENCODERS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "libx264": {"crf": "16", "preset": "fast"},
        # For PyAV builds without GPL parts; 118 is FFmpeg's unit of the quantizer scale.
        "mpeg4": {"flags": "+qscale", "global_quality": str(2 * 118)},
    }
)
"""mp4 encoders in order of preference, with options for visually lossless output."""


class _Format(ABC):
    """A file being written: ``add`` for each frame, then ``finish`` or ``discard``."""

    max_fps: ClassVar[int]
    even_size: ClassVar[bool] = False
    encoder: str

    @abstractmethod
    def __init__(self, file: IO[bytes], fps: int) -> None: ...

    @abstractmethod
    def add(self, frame: Frames) -> None:
        """Adds one frame, uint8 [H, W, 3]."""

    @abstractmethod
    def finish(self) -> None:
        """Completes the file; requires at least one frame."""

    @abstractmethod
    def discard(self) -> None:
        """Releases the file without raising."""


class _Mp4(_Format):
    """Encodes frames as they arrive, tagged as BT.709 in limited range."""

    max_fps = 240
    even_size = True

    def __init__(self, file: IO[bytes], fps: int) -> None:
        import av

        self.encoder = _mp4_encoder()
        self._container = av.open(file, "w", format="mp4")
        self._stream: Any = self._container.add_stream(
            self.encoder, rate=fps, options=dict(MP4_ENCODERS[self.encoder])
        )

    def add(self, frame: Frames) -> None:
        import av

        if not self._stream.codec_context.is_open:
            self._configure(*frame.shape[:2])
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24").reformat(
            format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
        )
        self._container.mux(self._stream.encode(picture))

    def _configure(self, height: int, width: int) -> None:
        context = self._stream.codec_context
        context.height, context.width, context.pix_fmt = height, width, "yuv420p"
        # FFmpeg's enum values: BT.709 for all three, MPEG (limited) range.
        context.colorspace = context.color_primaries = context.color_trc = 1
        context.color_range = 1

    def finish(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()

    def discard(self) -> None:
        # Closing writes the file's index, which fails again if a frame failed.
        with suppress(OSError):
            self._container.close()


def _mp4_encoder() -> str:
    import av
    from av.codec.codec import UnknownCodecError

    for name in MP4_ENCODERS:
        with suppress(UnknownCodecError):
            av.Codec(name, "w")
            return name
    raise UnavailableError(
        "VIDC-VIDEO-ENCODER",
        f"PyAV {av.__version__} was built with none of the encoders {', '.join(MP4_ENCODERS)}",
        "install PyAV's own wheel (pip install --force-reinstall av), or write .webp or .gif",
    )


class _Animation(_Format):
    """Collects all frames, because Pillow writes an animation in one call."""

    tick_ms: ClassVar[int]
    options: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def __init__(self, file: IO[bytes], fps: int) -> None:
        self.encoder = type(self).__name__.removeprefix("_")
        self._file = file
        self._ticks = 1000 / self.tick_ms / fps
        self._images: list[Any] = []

    def add(self, frame: Frames) -> None:
        from PIL import Image

        self._images.append(Image.fromarray(frame))

    def finish(self) -> None:
        # Rounds times, not durations, so that the clip keeps its frame rate.
        times = [round(i * self._ticks) * self.tick_ms for i in range(len(self._images) + 1)]
        self._images[0].save(
            self._file,
            format=self.encoder,
            save_all=True,
            append_images=self._images[1:],
            duration=[end - start for start, end in pairwise(times)],
            loop=0,
            **self.options,
        )

    def discard(self) -> None:
        self._images.clear()


class _WebP(_Animation):
    max_fps = 240
    tick_ms = 1
    options = MappingProxyType({"quality": 90, "method": 4})


class _Gif(_Animation):
    # Browsers play frames shorter than two ticks at 0.1 s each.
    max_fps = 50
    tick_ms = 10


_FORMATS: Mapping[str, type[_Format]] = MappingProxyType(
    {".mp4": _Mp4, ".webp": _WebP, ".gif": _Gif}
)


class VideoWriter:
    """A video being written; made by ``open_writer``.

    Attributes:
        path: of the finished file.
        encoder: such as ``libx264``.
        count: frames written so far.
    """

    def __init__(self, path: Path, target: _Format) -> None:
        self.path = path
        self.encoder = target.encoder
        self.count = 0
        self._target = target
        self._size: tuple[int, ...] | None = None

    def write(self, frames: Frames | torch.Tensor) -> None:
        """Appends ``frames``, uint8 RGB [N, H, W, 3], on any device.

        Raises:
            UsageError: ``VIDC-VIDEO-FRAMES`` for another dtype or shape, a size that differs from
                earlier frames, or an odd size in an mp4.
            UnavailableError: ``VIDC-VIDEO-WRITE`` when the disk is full or fails.
        """
        array = frames.numpy(force=True) if isinstance(frames, torch.Tensor) else frames
        self._check(array)
        with _write_errors(self.path):
            for frame in array:
                self._target.add(np.ascontiguousarray(frame))
                self.count += 1

    def _check(self, frames: npt.NDArray[Any]) -> None:
        if (
            frames.dtype != np.uint8
            or frames.ndim != 4
            or frames.shape[3] != 3
            or 0 in frames.shape[1:]
        ):
            raise UsageError(
                "VIDC-VIDEO-FRAMES",
                f"{self.path.name} takes frames as uint8 [N, H, W, 3], not as {frames.dtype} "
                f"{list(frames.shape)}",
                "convert the frames to RGB bytes, channels last",
            )
        height, width = size = frames.shape[1:3]
        if self._size not in (None, size):
            raise UsageError(
                "VIDC-VIDEO-FRAMES",
                f"{self.path.name} began with frames of {self._size}, now come {size}",
                "write frames of one size to one file",
            )
        if self._target.even_size and (height % 2 or width % 2):
            raise UsageError(
                "VIDC-VIDEO-FRAMES",
                f"{self.path.suffix} needs an even height and width, not {height} x {width}",
                "crop or pad the frames by a pixel, or write .webp or .gif",
            )
        self._size = size


@contextmanager
def open_writer(path: Path | str, fps: int = 16) -> Iterator[VideoWriter]:
    """Opens a video file; the suffix gives the format: ``.mp4``, ``.webp`` or ``.gif``.

    The file appears, or replaces an older one, when the block ends; if the block raises, no file
    is left. mp4 is encoded frame by frame; WebP and GIF keep all frames in memory and merge equal
    neighbors into one longer frame.

    Args:
        path: the file to write; its folder must exist.
        fps: frames a second, 1 to 240 (GIF: 50).

    Raises:
        UsageError: ``VIDC-VIDEO-SUFFIX`` for another suffix, ``VIDC-VIDEO-FPS``, and
            ``VIDC-VIDEO-FRAMES`` when no frame was written.
        UnavailableError: ``VIDC-VIDEO-ENCODER`` when PyAV has no encoder for mp4,
            ``VIDC-VIDEO-WRITE`` when the file cannot be written.
    """
    path = Path(path)
    kind = _format(path, fps)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with _write_errors(path):
        file = partial.open("xb")
    try:
        target = kind(file, fps)
        try:
            writer = VideoWriter(path, target)
            yield writer
            if writer.count == 0:
                raise UsageError(
                    "VIDC-VIDEO-FRAMES",
                    f"no frame was written to {path.name}",
                    "write at least one frame",
                )
            with _write_errors(path):
                target.finish()
                file.close()
                partial.replace(path)
        finally:
            target.discard()
    finally:
        # A failed flush is already reported.
        with suppress(OSError):
            file.close()
        partial.unlink(missing_ok=True)


def check_format(path: Path, fps: int = 16) -> None:
    """Checks a suffix and a frame rate as ``open_writer`` does, without disk access.

    Raises:
        UsageError: ``VIDC-VIDEO-SUFFIX``, ``VIDC-VIDEO-FPS``.
    """
    _format(path, fps)


def _format(path: Path, fps: int) -> type[_Format]:
    suffix = path.suffix.lower()
    if suffix not in _FORMATS:
        raise UsageError(
            "VIDC-VIDEO-SUFFIX",
            f"{path.name!r} does not end in a video format",
            nearest(suffix, _FORMATS),
        )
    kind = _FORMATS[suffix]
    if not 1 <= fps <= kind.max_fps:
        raise UsageError(
            "VIDC-VIDEO-FPS",
            f"{fps} frames a second do not fit {suffix}",
            f"choose 1 to {kind.max_fps}",
        )
    return kind


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    """Turns file system errors into coded errors."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            "VIDC-VIDEO-WRITE",
            f"cannot write {path}: {error.strerror or error}",
            "free space on the disk, or choose a folder that exists and may be written",
        ) from error
