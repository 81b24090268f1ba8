"""A tiny UMT5 and its tokenizer, saved by transformers as a diffusers pipeline holds them."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
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
    """A Unigram tokenizer with T5's special tokens."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS * 10,
        trainers.UnigramTrainer(
            vocab_size=200,
            special_tokens=["<pad>", "</s>", "<unk>"],
            unk_token="<unk>",
            show_progress=False,
        ),
    )
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
