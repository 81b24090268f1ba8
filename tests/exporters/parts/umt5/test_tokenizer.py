import json
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.tokenizer import tokenizer_json
from vidc.plugins.errors import VidcError

LENGTH = 24
CONFIG = TextEncoderConfig(vocab_size=400, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
PROMPTS = (
    "",
    "A cat runs over the grass",
    "the rain " * 40,
    "Brücke 猫が眠る 🦙 ﬁne ㎏ é",
    " two  spaces ",
)


@pytest.fixture
def spiece(tmp_path: Path) -> Path:
    return train_sentencepiece(tmp_path)


def train_sentencepiece(folder: Path, **options: object) -> Path:
    sentencepiece = pytest.importorskip("sentencepiece")
    text = ["A cat runs over the grass in the rain.", "Die Brücke ist grün und lang.", "猫が眠る"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text * 20),
        model_prefix=str(folder / "spiece"),
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
        **{"vocab_size": 100, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1} | options,
    )
    return folder / "spiece.model"


@pytest.mark.parametrize("prompt", PROMPTS)
def test_gives_the_tokens_of_transformers(saved: Path, prompt: str) -> None:
    folder = saved.parent / "tokenizer"
    tokenizer = Tokenizer.from_str(tokenizer_json(folder / "tokenizer.json", CONFIG, LENGTH))
    encoded = tokenizer.encode(prompt)
    expected = AutoTokenizer.from_pretrained(folder)(
        prompt, padding="max_length", truncation=True, max_length=LENGTH
    )

    assert encoded.ids == expected.input_ids
    assert encoded.attention_mask == expected.attention_mask
    assert encoded.ids[sum(encoded.attention_mask) - 1] == CONFIG.eos_token_id


def test_ignores_the_padding_that_the_file_has(saved: Path, tmp_path: Path) -> None:
    original = saved.parent / "tokenizer" / "tokenizer.json"
    other = Tokenizer.from_file(str(original))
    other.enable_truncation(7)
    other.enable_padding(length=7, pad_id=2, direction="left")
    other.save(str(tmp_path / "tokenizer.json"))

    changed, plain = (
        tokenizer_json(file, CONFIG, LENGTH) for file in (tmp_path / "tokenizer.json", original)
    )
    assert json.loads(changed) == json.loads(plain)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_gives_the_tokens_of_sentencepiece(spiece: Path, prompt: str) -> None:
    import sentencepiece

    tokenizer = Tokenizer.from_str(tokenizer_json(spiece, CONFIG, LENGTH))
    ids = sentencepiece.SentencePieceProcessor(model_file=str(spiece)).encode(prompt)
    ids = [*ids[: LENGTH - 1], CONFIG.eos_token_id]

    assert tokenizer.encode(prompt).ids == ids + [CONFIG.pad_token_id] * (LENGTH - len(ids))


@pytest.mark.parametrize(
    "options", [{"unk_id": 3, "bos_id": 2}, {"byte_fallback": True, "vocab_size": 350}]
)
def test_refuses_a_sentencepiece_model_that_transformers_misreads(
    tmp_path: Path, options: dict[str, object]
) -> None:
    file = train_sentencepiece(tmp_path, **options)

    with pytest.raises(VidcError, match="unknown character"):
        tokenizer_json(file, replace(CONFIG, vocab_size=600), LENGTH)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(CONFIG, vocab_size=50), "the encoder vocab_size = 50"),
        (replace(CONFIG, pad_token_id=399), "no token 399"),
        (replace(CONFIG, eos_token_id=2), "eos_token_id = 2"),
    ],
)
def test_refuses_another_models_tokenizer(
    saved: Path, config: TextEncoderConfig, said: str
) -> None:
    with pytest.raises(VidcError, match=f"VIDC-TEXT-TOKENIZER.*{said}"):
        tokenizer_json(saved.parent / "tokenizer" / "tokenizer.json", config, LENGTH)


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04junk"])
def test_refuses_a_damaged_file(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    with pytest.raises(VidcError, match="VIDC-TEXT-TOKENIZER"):
        tokenizer_json(tmp_path / name, CONFIG, LENGTH)
