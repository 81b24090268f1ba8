"""Files as LongLive's instructions download them, with given weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from wan_t5 import as_wan

from vidc.exporters.parts.causal_wan.names import original_name

State = Mapping[str, Tensor]

_IN_RESIDUAL = {
    "norm1": "residual.0",
    "conv1": "residual.2",
    "norm2": "residual.3",
    "conv2": "residual.6",
    "conv_shortcut": "shortcut",
}
_OUTSIDE = {"conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}
_MIDDLE = {"resnets.0": "0", "attentions.0": "1", "resnets.1": "2"}


def vae_name(name: str) -> str:
    """The name in ``Wan2.1_VAE.pth``, where blocks and resamplings count in one row."""
    name = re.sub(r"^quant_conv", "conv1", name)
    name = re.sub(r"^post_quant_conv", "conv2", name)
    name = re.sub(r"\.(conv_in|norm_out|conv_out)\.", lambda m: f".{_OUTSIDE[m[1]]}.", name)
    name = re.sub(
        r"\.(norm1|conv1|norm2|conv2|conv_shortcut)\.(?=\w+$)",
        lambda m: f".{_IN_RESIDUAL[m[1]]}." if "block" in name else m[0],
        name,
    )
    name = re.sub(
        r"mid_block\.(resnets\.\d|attentions\.0)", lambda m: f"middle.{_MIDDLE[m[1]]}", name
    )
    name = name.replace("down_blocks", "downsamples")
    name = re.sub(
        r"up_blocks\.(\d)\.resnets\.(\d)",
        lambda m: f"upsamples.{4 * int(m[1]) + int(m[2])}",
        name,
    )
    return re.sub(
        r"up_blocks\.(\d)\.upsamplers\.0", lambda m: f"upsamples.{4 * int(m[1]) + 3}", name
    )


def save_wan(folder: Path, vae: State, umt5: Any, tokenizer: Tokenizer) -> None:
    """Writes what ``Wan2.1-T2V-1.3B`` holds besides its transformer."""
    (folder / "google" / "umt5-xxl").mkdir(parents=True)
    tokenizer.save(str(folder / "google" / "umt5-xxl" / "tokenizer.json"))
    state = as_wan(umt5.state_dict(), umt5.config.num_layers)
    torch.save(state, folder / "models_t5_umt5-xxl-enc-bf16.pth")
    torch.save({vae_name(name): t.clone() for name, t in vae.items()}, folder / "Wan2.1_VAE.pth")
    (folder / "config.json").write_text('{"_class_name": "WanModel", "model_type": "t2v"}')


def save_longlive(folder: Path, transformer: State, rank: int) -> State:
    """Writes ``longlive_base.pt`` and ``lora.pt``; returns the weights that they make together."""
    folder.mkdir(parents=True)
    base = {original_name(name): tensor.clone() for name, tensor in transformer.items()}
    average = {f"model._fsdp_wrapped_module.{n}": torch.zeros_like(t) for n, t in base.items()}
    generator = {f"model.{name}": tensor for name, tensor in base.items()}
    torch.save(
        {"generator": generator, "generator_ema": average, "critic": {"x": torch.zeros(1)}},
        folder / "longlive_base.pt",
    )
    torch.manual_seed(5)
    adapter, merged = {}, dict(transformer)
    for name, tensor in transformer.items():
        if not name.startswith("blocks.") or not name.endswith(".weight") or tensor.ndim != 2:
            continue
        down = torch.randn(rank, tensor.shape[1]) * 0.02
        up = torch.randn(tensor.shape[0], rank) * 0.02
        module = f"base_model.model.{original_name(name).removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
        merged[name] = tensor + up @ down
    torch.save({"generator_lora": adapter, "critic_lora": {}, "step": 3000}, folder / "lora.pt")
    return merged
