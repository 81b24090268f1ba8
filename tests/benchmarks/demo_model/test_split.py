import itertools

import pytest
from demo_model.attributes import Background, Color, Direction, Light, Rotation, Shape, Size, Speed
from demo_model.grammar import PHRASINGS, parse
from demo_model.split import (
    COMBINATIONS,
    SEEDS,
    Split,
    distinct,
    sample,
    seed_of,
    split_of,
    split_of_seed,
)
from demo_model.switch import sample_switch

COUNT = 4000


@pytest.fixture(scope="module")
def drawn():
    return {split: [sample(split, index) for index in range(COUNT)] for split in Split}


def combinations(examples):
    things = (thing for example in examples for thing in example.scene.things)
    return {(thing.shape, thing.color, thing.direction) for thing in things}


def test_an_example_is_the_same_on_every_machine():
    assert sample(Split.TRAIN, 0).caption == (
        "a small red square quickly bouncing up and down over cloth, in shifting light"
    )
    assert sample(Split.HELD_OUT, 7) == sample(Split.HELD_OUT, 7)
    assert sample(Split.HELD_OUT, 7).clip.seed == 2**31 + 7


def test_prompts_are_disjoint(drawn):
    train, held_out = ({e.caption for e in drawn[split]} for split in Split)
    assert train & held_out == set()
    assert {split_of(parse(text)) for text in train} == {Split.TRAIN}
    assert {split_of(parse(text)) for text in held_out} == {Split.HELD_OUT}


def test_combinations_are_disjoint_and_all_occur(drawn):
    train, held_out = (set(COMBINATIONS[split]) for split in Split)
    assert train & held_out == set()
    assert (len(train), len(held_out)) == (168, 48)
    assert combinations(drawn[Split.TRAIN]) == train
    assert combinations(drawn[Split.HELD_OUT]) == held_out


def test_seeds_are_disjoint():
    last = SEEDS - 1
    assert split_of_seed(seed_of(Split.TRAIN, last)) is Split.TRAIN
    assert split_of_seed(seed_of(Split.HELD_OUT, 0)) is Split.HELD_OUT
    assert split_of_seed(seed_of(Split.HELD_OUT, last)) is Split.HELD_OUT
    for index in (-1, SEEDS):
        with pytest.raises(ValueError, match="is not in 0"):
            sample(Split.TRAIN, index)
    for seed in (-1, 2 * SEEDS):
        with pytest.raises(ValueError, match="is not in 0"):
            split_of_seed(seed)


def test_training_sees_every_value_and_every_pair_of_values(drawn):
    train = set(COMBINATIONS[Split.TRAIN])
    for first, second in itertools.combinations(range(3), 2):
        seen = {(c[first], c[second]) for c in train}
        assert len(seen) == 36
    scenes = [example.scene for example in drawn[Split.TRAIN]]
    things = [thing for scene in scenes for thing in scene.things]
    for name, kind in (
        ("shape", Shape), ("color", Color), ("direction", Direction), ("size", Size),
        ("speed", Speed), ("rotation", Rotation),
    ):  # fmt: skip
        assert {getattr(thing, name) for thing in things} == set(kind)
    assert {scene.background for scene in scenes} == set(Background)
    assert {scene.light for scene in scenes} == set(Light)
    assert {len(scene.things) for scene in scenes} == {1, 2}
    assert {example.phrasing for example in drawn[Split.TRAIN]} == set(PHRASINGS)


def test_values_are_held_out_equally_often():
    for position, kind in enumerate((Shape, Color, Direction)):
        values = [combination[position] for combination in COMBINATIONS[Split.HELD_OUT]]
        assert {values.count(value) for value in kind} == {8}


def test_two_hundred_held_out_prompts_differ():
    texts = [example.caption for example in distinct(Split.HELD_OUT, 200)]
    assert len(set(texts)) == len(texts) == 200


@pytest.mark.parametrize("split", Split)
def test_switches_stay_within_their_split(split):
    for index in range(300):
        switch = sample_switch(split, index)
        assert {split_of(parse(text)) for text in switch.captions} == {split}
        assert split_of_seed(switch.clip(9).seed) is split
