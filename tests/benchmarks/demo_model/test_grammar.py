import pytest
from demo_model.attributes import (
    Background,
    Color,
    Direction,
    Light,
    Rotation,
    Scene,
    Shape,
    Size,
    Speed,
    Thing,
)
from demo_model.grammar import PHRASINGS, Phrasing, caption, count_prompts, parse, words
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def scenes(draw) -> Scene:
    colors = draw(st.permutations(list(Color)))
    axis = draw(st.sampled_from((0, 1)))
    directions = [direction for direction in Direction if direction.axis == axis]
    things = []
    for color in colors[: draw(st.integers(1, 2))]:
        shape = draw(st.sampled_from(Shape))
        rotation = Rotation.STILL if shape.round else draw(st.sampled_from(Rotation))
        size, speed = draw(st.sampled_from(Size)), draw(st.sampled_from(Speed))
        direction = draw(st.sampled_from(directions))
        things.append(Thing(shape, color, direction, size, speed, rotation))
    return Scene(tuple(things), draw(st.sampled_from(Background)), draw(st.sampled_from(Light)))


@given(scenes(), st.sampled_from(PHRASINGS))
def test_a_caption_says_its_scene(scene, phrasing):
    text = caption(scene, phrasing)
    assert parse(text) == scene
    assert parse(f"  {text.upper()} ") == scene
    assert set(text.replace(",", "").split()) <= words()


@given(scenes(), scenes(), st.sampled_from(PHRASINGS), st.sampled_from(PHRASINGS))
def test_scenes_that_differ_have_captions_that_differ(one, other, phrasing, another):
    assert (caption(one, phrasing) == caption(other, another)) <= (one == other)


def test_there_are_more_than_a_thousand_prompts():
    assert count_prompts(PHRASINGS[:1]) == 1440
    assert count_prompts() > 20_000


def test_a_short_prompt_is_a_prompt():
    red = Thing(Shape.SQUARE, Color.RED, Direction.LEFT)
    assert parse("a red square moving left") == Scene((red,))
    assert caption(Scene((red,)), Phrasing(terse=True)) == "a red square moving left"
    assert (
        caption(Scene((red,))) == "a big red square moving left slowly over stone, in steady light"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a red square",
        "a red moving left",
        "red square moving left",
        "a red square moving left and",
        "a red square moving left over water",
        "a red square moving left a blue star moving left",
        "a red square moving left and a blue star moving left and a cyan ring moving left",
        "a red square moving left in steady light",
    ],
)
def test_what_is_no_prompt(text):
    with pytest.raises(ValueError, match=r"not a prompt of this grammar, such as 'a small red"):
        parse(text)


def test_a_prompt_that_describes_no_scene():
    with pytest.raises(ValueError, match="said twice"):
        parse("a red square slowly moving left quickly")
    with pytest.raises(ValueError, match="both objects are red"):
        parse("a red square moving left and a red star moving left")
    with pytest.raises(ValueError, match="spins"):
        parse("a spinning red circle moving left")


def test_the_example_of_the_message_is_a_prompt():
    with pytest.raises(ValueError, match="grammar") as raised:
        parse("?")
    assert parse(str(raised.value).split("'")[1]).background is Background.SAND
