"""The video of a validation."""

from itertools import pairwise

import av
import numpy as np
import pytest
import torch

from vidc.compiler.validate.compare import BlockFrames
from vidc.compiler.validate.side_by_side import (
    CAPTION,
    GAP,
    LEAST_WIDTH,
    MAGNIFIED,
    side_by_side,
    write_video,
)
from vidc.plugins.errors import UnavailableError, UsageError

CAPTIONS = (("reference", "a"), ("engine", "b"), ("difference", "c"))


def panels(page, width):
    starts = [column * (width + GAP) for column in range(3)]
    return [page[CAPTION:, start : start + width] for start in starts]


def test_the_three_pictures_stand_side_by_side():
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 256, (24, LEAST_WIDTH, 3), dtype=np.uint8)
    engine = rng.integers(0, 256, (24, LEAST_WIDTH, 3), dtype=np.uint8)
    engine[0, 0] = reference[0, 0]
    page = side_by_side(reference, engine, CAPTIONS)
    assert page.shape == (CAPTION + 24, 3 * LEAST_WIDTH + 2 * GAP, 3)
    first, second, third = panels(page, LEAST_WIDTH)
    assert np.array_equal(first, reference)
    assert np.array_equal(second, engine)
    expected = np.abs(engine.astype(int) - reference.astype(int)) * MAGNIFIED
    assert np.array_equal(third, expected.clip(max=255))
    assert not third[0, 0].any()


def test_small_pictures_are_enlarged_by_a_whole_factor_to_an_even_size():
    reference = np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3)
    page = side_by_side(reference, reference, CAPTIONS)
    factor = -(-LEAST_WIDTH // 7)
    assert all(size % 2 == 0 for size in page.shape[:2])
    first, _, third = panels(page, 7 * factor)
    assert np.array_equal(first[: 5 * factor : factor, ::factor], reference)
    assert not third[: 5 * factor].any()


def test_captions_are_seen_above_each_picture():
    black = np.zeros((24, LEAST_WIDTH, 3), np.uint8)
    page = side_by_side(black, black, CAPTIONS)
    blank = side_by_side(black, black, (("", ""),) * 3)
    for start in (0, LEAST_WIDTH + GAP, 2 * (LEAST_WIDTH + GAP)):
        head = np.s_[:CAPTION, start : start + LEAST_WIDTH]
        assert (page[head] != blank[head]).any()


def block(number, count, decoded=False, batch=1, levels=(100, 110)):
    reference, engine = (
        torch.full((batch, count, 24, 32, 3), level, dtype=torch.uint8) for level in levels
    )
    return BlockFrames(number, engine, reference, decoded)


def read(path):
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def test_every_frame_of_every_block_is_written(tmp_path):
    path = tmp_path / "v.mp4"
    write_video(path, [block(0, 9), block(1, 12, decoded=True), block(2, 12)], [2])
    frames = read(path)
    assert len(frames) == 33
    assert {frame.shape for frame in frames} == {(CAPTION + 240, 3 * 320 + 2 * GAP, 3)}
    for frame in frames:
        means = [panel.mean() for panel in panels(frame, 320)]
        assert means == pytest.approx([100, 110, 10 * MAGNIFIED], abs=3)
    # The caption tells where a reference comes from, and which block it is.
    heads = [frame[:CAPTION].astype(int) for frame in (frames[0], frames[9], frames[21])]
    for one, other in pairwise(heads):
        assert np.abs(one[:, :320] - other[:, :320]).max() > 60
        assert np.abs(one[:, 324:644] - other[:, 324:644]).max() > 60
    assert [path.name for path in tmp_path.iterdir()] == ["v.mp4"]


def test_videos_of_a_batch_lie_below_each_other(tmp_path):
    write_video(tmp_path / "v.mp4", [block(0, 2, batch=2)], [])
    assert read(tmp_path / "v.mp4")[0].shape[0] == CAPTION + 2 * 240


def test_write_failure_is_a_coded_error_and_leaves_no_file(tmp_path):
    with pytest.raises(UnavailableError, match="VIDC-VIDEO-WRITE"):
        write_video(tmp_path / "nowhere" / "v.mp4", [block(0, 1)], [])
    with pytest.raises(UsageError, match="VIDC-VIDEO-FRAMES"):
        write_video(tmp_path / "v.mp4", [], [])
    assert list(tmp_path.iterdir()) == []
