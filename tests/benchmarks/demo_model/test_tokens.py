import pytest
from demo_model.grammar import words
from demo_model.split import Split, sample
from demo_model.tokens import (
    END,
    LENGTH,
    PAD,
    UNKNOWN,
    VOCABULARY,
    UnknownWordError,
    decode,
    encode,
)


def test_the_vocabulary_is_closed_and_small():
    assert len(VOCABULARY) < 128
    assert sorted(VOCABULARY.values()) == list(range(len(VOCABULARY)))
    assert set(VOCABULARY) == words() | {",", "<pad>", "</s>", "<unk>"}


@pytest.mark.parametrize("split", Split)
def test_every_prompt_fits_and_comes_back(split):
    longest = 0
    for index in range(2000):
        text = sample(split, index).caption
        ids = encode(text)
        assert len(ids) == LENGTH
        assert decode(ids) == text
        assert UNKNOWN not in ids
        longest = max(longest, ids.index(END) + 1)
    assert longest == 31


def test_ids_end_and_are_padded():
    ids = encode("A red  square moving left", 8)
    assert ids == [
        *(VOCABULARY[w] for w in ("a", "red", "square", "moving", "left")),
        END,
        PAD,
        PAD,
    ]


def test_an_unknown_word_is_named_with_its_nearest():
    with pytest.raises(UnknownWordError, match=r"unknown word 'sqare'.*did you mean 'square'"):
        encode("a red sqare moving left")
    with pytest.raises(UnknownWordError, match="unknown word '2'"):
        encode("2 red square")
    with pytest.raises(UnknownWordError, match="<pad>"):
        encode("a <pad> square")


def test_a_prompt_that_is_too_long():
    assert len(encode("a red square moving left", 6)) == 6
    with pytest.raises(ValueError, match="5 tokens and an end do not fit into 5"):
        encode("a red square moving left", 5)


def test_an_id_that_is_none():
    with pytest.raises(ValueError, match="token 999"):
        decode([999])
