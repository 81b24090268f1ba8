"""A tiny UMT5 and its tokenizer, saved by transformers as a diffusers pipeline holds them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

WIDTH = 32
CORPUS = (
    "A cat runs over the grass in the sun & a dog sleeps.",
    "Rain falls on a quiet street; neon lights <3 glow at night.",
    "Zwei Hunde springen über den Fluß, die Brücke ist grün.",
    "日本の庭で猫が眠る。",
    "\"Don't stop\", she said - it's 1.5 km further.",
)


def tiny_umt5() -> Any:
    """transformers' encoder with weights that make positions and every layer matter."""
    torch.manual_seed(0)
    config = UMT5Config(vocab_size=400, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    model = UMT5EncoderModel(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "layer_norm" in name:
            parameter.copy_(1 + 0.1 * noise)
        elif "embed" in name or "shared" in name or "relative" in name:
            parameter.copy_(noise)
        else:
            parameter.copy_(noise * parameter.shape[1] ** -0.5)
    return model


def tiny_tokenizer() -> Tokenizer:
    """A Unigram tokenizer with T5's special tokens, and the words and letters of ``CORPUS``.

    It is not trained: a trainer's ties are broken differently in each process.
    """
    normalizer, splitter = normalizers.NFKC(), pre_tokenizers.Metaspace()
    texts = [normalizer.normalize_str(text) for text in CORPUS]
    words = [word for text in texts for word, _ in splitter.pre_tokenize_str(text)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(word, -4.0) for word in sorted(set(words)) if len(word) > 1]
    pieces += [(letter, -8.0) for letter in sorted(set("".join(words)))]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def save_text_encoder(pipeline: Path, umt5: Any, tokenizer: Tokenizer) -> Path:
    """Writes ``text_encoder`` and ``tokenizer`` into a pipeline's folder; gives the first."""
    umt5.save_pretrained(pipeline / "text_encoder")
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(pipeline / "tokenizer")
    return pipeline / "text_encoder"
