import warnings
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from vidc.plugins.errors import VidcError
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.states import Buffers, States
from vidc.runtime.text import PromptTokenizer, TextEncoder, clean

LENGTH = 4
WORDS = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "cat": 4, "&": 5}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    made = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    made.enable_truncation(LENGTH)
    made.enable_padding(length=LENGTH, pad_id=0, pad_token="<pad>")
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("  a \t\r\n cat ", "a cat"),
        ("a\u00a0\u3000cat\u2028sat", "a cat sat"),
        ("&amp;lt;3 &eacute;", "<3 é"),
        ("&amp;amp;amp;", "&"),
        ("itâ€™s “fine”", 'it\'s "fine"'),
        ("ﬁne", "fine"),
        ("日本の庭 🦙", "日本の庭 🦙"),
    ],
)
def test_cleans_a_text(text: str, expected: str) -> None:
    assert clean(text) == expected


@pytest.mark.parametrize(
    ("text", "ids", "mask"),
    [
        ("", [1, 0, 0, 0], [1, 0, 0, 0]),
        ("a &amp; ", [3, 5, 1, 0], [1, 1, 1, 0]),
        ("a cat dog", [3, 4, 2, 1], [1, 1, 1, 1]),
        ("a cat dog a cat", [3, 4, 2, 1], [1, 1, 1, 1]),
    ],
)
def test_ends_truncates_and_pads_a_text(
    tokenizer: Path, text: str, ids: list[int], mask: list[int]
) -> None:
    with warnings.catch_warnings(action="ignore"):
        tokens = PromptTokenizer(tokenizer.read_bytes(), LENGTH)(text)

    assert tokens["input_ids"].tolist() == [ids]
    assert tokens["attention_mask"].tolist() == [mask]
    assert all(tensor.dtype == torch.int64 for tensor in tokens.values())


def test_says_where_a_text_is_cut(tokenizer: Path) -> None:
    encode = PromptTokenizer(tokenizer.read_bytes(), LENGTH)
    said = "cut after 3 of 6 tokens: 'a cat dog' is kept, 'sat & cat' and what follows is not"
    with pytest.warns(UserWarning, match=said):
        encode("a  cat dog sat &amp;amp cat")
    with warnings.catch_warnings(action="error"):
        encode("a cat dog")


class FakeEngine:
    """Embeds a token as its number, and padding as zero."""

    signature = Signature(
        (
            TensorSpec("input_ids", (1, LENGTH), "int64", Role.INPUT),
            TensorSpec("attention_mask", (1, LENGTH), "int64", Role.INPUT),
            TensorSpec("text_embeds", (1, LENGTH, 2), "float32", Role.OUTPUT),
        )
    )

    def run(self, buffers: Buffers, states: States) -> None:
        tokens: Tensor = buffers["input_ids"] * buffers["attention_mask"]
        buffers["text_embeds"].copy_(tokens[..., None].expand(1, LENGTH, 2))


def test_runs_the_engine_on_the_tokens(tokenizer: Path) -> None:
    encoder = TextEncoder(FakeEngine(), tokenizer.read_bytes(), torch.device("cpu"))

    assert encoder("a cat")[0, :, 0].tolist() == [3, 4, 1, 0]
    assert encoder("cat")[0, :, 1].tolist() == [4, 1, 0, 0]


def test_refuses_a_tokenizer_of_another_length(tokenizer: Path) -> None:
    with pytest.raises(VidcError, match=r"VIDC-BUNDLE-TOKENIZER.*makes 4 tokens.*takes 5"):
        PromptTokenizer(tokenizer.read_bytes(), LENGTH + 1)("a cat")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_refuses_what_is_no_tokenizer(content: bytes) -> None:
    with pytest.raises(VidcError, match="VIDC-BUNDLE-TOKENIZER"):
        PromptTokenizer(content, LENGTH)("a cat")
