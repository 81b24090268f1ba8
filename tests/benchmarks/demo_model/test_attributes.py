import pytest
from demo_model.attributes import Color, Direction, Rotation, Scene, Shape, Thing
from demo_model.clip import Clip, frames_of

RED = Thing(Shape.SQUARE, Color.RED, Direction.LEFT)
BLUE = Thing(Shape.STAR, Color.BLUE, Direction.LEFT_AND_RIGHT)


def test_a_round_thing_does_not_spin():
    with pytest.raises(ValueError, match="spins"):
        Thing(Shape.RING, Color.RED, Direction.UP, rotation=Rotation.SPINNING)


@pytest.mark.parametrize(
    ("things", "problem"),
    [
        ((), "one or two objects, not 0"),
        ((RED, BLUE, Thing(Shape.RING, Color.CYAN, Direction.LEFT)), "not 3"),
        ((RED, Thing(Shape.RING, Color.RED, Direction.LEFT)), "both objects are red"),
        ((RED, Thing(Shape.RING, Color.CYAN, Direction.UP)), "one axis"),
    ],
)
def test_what_no_scene_can_be(things, problem):
    with pytest.raises(ValueError, match=problem):
        Scene(things)


def test_a_clip_changes_in_what_a_switch_may_change():
    before, after = (
        Scene((RED, BLUE)),
        Scene((Thing(Shape.RING, Color.CYAN, Direction.RIGHT), BLUE)),
    )
    assert Clip(1, ((0, before), (5, after))).scenes[1][1] is after


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 5, 4)])
def test_scenes_of_a_clip_are_in_order(starts):
    with pytest.raises(ValueError, match="scenes start at 0"):
        Clip(1, tuple((start, Scene((RED,))) for start in starts))


def test_a_clip_keeps_what_a_switch_does_not_change():
    with pytest.raises(ValueError, match="colors, shapes and directions alone"):
        Clip(1, ((0, Scene((RED,))), (5, Scene((RED, BLUE)))))


def test_frames_of_latents():
    assert [frames_of(latents) for latents in (1, 2, 3, 12)] == [1, 5, 9, 45]
    with pytest.raises(ValueError, match="at least one"):
        frames_of(0)
