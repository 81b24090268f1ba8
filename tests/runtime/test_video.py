import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from vidc.plugins.errors import UnavailableError, UsageError
from vidc.runtime import video
from vidc.runtime.video import check_format, open_writer


def smooth_clip(frames: int = 24, height: int = 48, width: int = 64) -> np.ndarray:
    """Saturated gradients that drift, so that a wrong color matrix costs decibels."""
    t = np.linspace(0, 1, frames)[:, None, None]
    y = np.linspace(0, 1, height)[None, :, None]
    x = np.linspace(0, 1, width)[None, None, :]
    red = 0.5 + 0.5 * np.sin(2 * (x + t)) + 0 * y
    green = y * (1 - 0.5 * t) + 0 * x
    blue = 0.5 + 0.5 * np.cos(3 * (x - y + t))
    return (np.stack([red, green, blue], -1) * 255).astype(np.uint8)


def noise_clip(frames: int = 8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (frames, 64, 64, 3), dtype=np.uint8)


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a.astype(float) - b) ** 2)))


def write(path: Path, clip: np.ndarray, fps: int = 16) -> video.VideoWriter:
    with open_writer(path, fps) as writer:
        writer.write(clip)
    return writer


def read_mp4(path: Path) -> tuple[np.ndarray, Fraction, str]:
    import av

    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
        return np.stack(frames), stream.average_rate, stream.codec_context.name


def read_animation(path: Path) -> tuple[np.ndarray, list[int]]:
    from PIL import Image, ImageSequence

    with Image.open(path) as image:
        frames, durations = [], []
        for frame in ImageSequence.Iterator(image):
            frames.append(np.asarray(frame.convert("RGB")))
            durations.append(frame.info["duration"])
        return np.stack(frames), durations


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """Makes the kernel refuse to let any file grow beyond ``limit`` bytes."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("fps", [16, 25])
def test_mp4_reads_back(tmp_path, fps):
    clip = smooth_clip()
    with open_writer(tmp_path / "out.mp4", fps) as writer:
        for chunk in (clip[:5], torch.from_numpy(clip[5:6]), clip[6:]):
            writer.write(chunk)
    frames, rate, codec = read_mp4(tmp_path / "out.mp4")
    assert frames.shape == clip.shape
    assert rate == fps
    assert (writer.count, writer.encoder, codec) == (24, "libx264", "h264")
    assert psnr(frames, clip) > 35


def test_mp4_is_labeled_bt709(tmp_path):
    import av

    write(tmp_path / "out.mp4", smooth_clip())
    with av.open(str(tmp_path / "out.mp4")) as container:
        context = container.streams.video[0].codec_context
        assert (context.colorspace, context.color_primaries, context.color_trc) == (1, 1, 1)
        assert context.color_range == 1
        assert context.pix_fmt == "yuv420p"


def test_mp4_falls_back_to_mpeg4(tmp_path, monkeypatch):
    encoders = {"not_in_any_build": {}, "mpeg4": video.MP4_ENCODERS["mpeg4"]}
    monkeypatch.setattr(video, "MP4_ENCODERS", encoders)
    clip = smooth_clip()
    assert write(tmp_path / "out.mp4", clip).encoder == "mpeg4"
    frames, rate, codec = read_mp4(tmp_path / "out.mp4")
    assert (frames.shape, rate, codec) == (clip.shape, 16, "mpeg4")
    assert psnr(frames, clip) > 30


def test_mp4_without_any_encoder(tmp_path, monkeypatch):
    monkeypatch.setattr(video, "MP4_ENCODERS", {"not_in_any_build": {}})
    with pytest.raises(UnavailableError, match="VIDC-VIDEO-ENCODER"):
        write(tmp_path / "out.mp4", smooth_clip())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("suffix", "floor"), [(".webp", 35), (".gif", 25), (".GIF", 25)])
@pytest.mark.parametrize("fps", [16, 25])
def test_animation_reads_back(tmp_path, suffix, floor, fps):
    clip = smooth_clip(height=47, width=63)
    path = tmp_path / f"out{suffix}"
    write(path, clip, fps)
    frames, durations = read_animation(path)
    assert frames.shape == clip.shape
    assert sum(durations) == pytest.approx(1000 * 24 / fps, abs=5)
    assert psnr(frames, clip) > floor


@pytest.mark.parametrize("suffix", [".mp4", ".webp", ".gif"])
def test_a_single_frame(tmp_path, suffix):
    write(tmp_path / f"out{suffix}", smooth_clip(frames=1))
    assert (tmp_path / f"out{suffix}").stat().st_size > 0


@pytest.mark.parametrize("suffix", [".mp4", ".webp", ".gif"])
def test_an_error_leaves_the_older_file_alone(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_bytes(b"older")

    def fail_half_way():
        with open_writer(path) as writer:
            writer.write(noise_clip())
            assert path.read_bytes() == b"older"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail_half_way()
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_caller_errors_pass_unchanged(tmp_path):
    def fail():
        with open_writer(tmp_path / "out.mp4"):
            raise FileNotFoundError("weights")

    with pytest.raises(FileNotFoundError, match="weights"):
        fail()


@pytest.mark.parametrize("suffix", [".mp4", ".webp", ".gif"])
@pytest.mark.parametrize("limit", [0, 20_000])
def test_a_full_disk_is_reported(tmp_path, suffix, limit):
    path = tmp_path / f"out{suffix}"
    path_written = noise_clip(frames=60)
    with file_size_limit(limit), pytest.raises(UnavailableError, match="VIDC-VIDEO-WRITE") as error:
        write(path, path_written)
    assert str(path) in error.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_reported_before_any_frame(tmp_path):
    entered = False

    def enter():
        nonlocal entered
        with open_writer(tmp_path / "nowhere" / "out.mp4"):
            entered = True

    with pytest.raises(UnavailableError, match="VIDC-VIDEO-WRITE"):
        enter()
    assert not entered


@pytest.mark.parametrize(
    "frames",
    [
        smooth_clip().astype(np.float32),
        smooth_clip()[0],
        smooth_clip()[..., :1],
        smooth_clip(height=47),
        smooth_clip(width=63),
        smooth_clip()[:, :0],
        torch.zeros(2, 3, 16, 16, dtype=torch.uint8),
    ],
    ids=["float", "one frame", "gray", "odd height", "odd width", "empty", "channels first"],
)
def test_frames_that_do_not_fit_are_refused(tmp_path, frames):
    with pytest.raises(UsageError, match="VIDC-VIDEO-FRAMES"):
        write(tmp_path / "out.mp4", frames)
    assert list(tmp_path.iterdir()) == []


def test_a_change_of_size_is_refused(tmp_path):
    def change():
        with open_writer(tmp_path / "out.mp4") as writer:
            writer.write(smooth_clip())
            writer.write(smooth_clip(height=64))

    with pytest.raises(UsageError, match=r"\(48, 64\), now come \(64, 64\)"):
        change()
    assert list(tmp_path.iterdir()) == []


def test_no_frames_are_refused(tmp_path):
    with pytest.raises(UsageError, match="VIDC-VIDEO-FRAMES"):
        write(tmp_path / "out.gif", smooth_clip()[:0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["out.avi", "out", "mp4"])
def test_an_unknown_suffix_lists_the_known_ones(tmp_path, name):
    with pytest.raises(UsageError, match="VIDC-VIDEO-SUFFIX") as error:
        write(tmp_path / name, smooth_clip())
    assert ".gif, .mp4, .webp" in error.value.hint


@pytest.mark.parametrize(("name", "fps"), [("out.mp4", 0), ("out.gif", 51), ("out.webp", -1)])
def test_a_rate_that_does_not_fit_is_refused(tmp_path, name, fps):
    with pytest.raises(UsageError, match="VIDC-VIDEO-FPS"):
        write(tmp_path / name, smooth_clip(), fps)


def test_the_file_gets_the_permissions_of_the_umask(tmp_path):
    write(tmp_path / "out.mp4", smooth_clip())
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "out.mp4").stat().st_mode & 0o777 == 0o666 & ~umask


def test_importing_loads_neither_pyav_nor_pillow():
    code = "import sys, vidc.runtime.video; print({'av', 'PIL'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_a_name_is_checked_without_touching_the_disk(tmp_path):
    check_format(tmp_path / "nowhere" / "v.MP4")
    with pytest.raises(UsageError, match="VIDC-VIDEO-SUFFIX"):
        check_format(tmp_path / "v.avi")
    with pytest.raises(UsageError, match="VIDC-VIDEO-FPS"):
        check_format(tmp_path / "v.gif", 60)
    assert list(tmp_path.iterdir()) == []
