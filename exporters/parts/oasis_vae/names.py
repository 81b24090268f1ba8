"""Names of an Oasis VAE's weights in its checkpoints, such as ``vit-l-20.safetensors``."""

from collections.abc import Mapping, Sequence

from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.parts.oasis_vae.config import OasisVaeConfig

LAYOUTS = (
    Layout(
        "Oasis VAE",
        (
            *("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm1", "norm2", "patch_embed"),
            *("enc_norm", "dec_norm", "quant_conv", "post_quant_conv", "predictor"),
        ),
    ),
)


def disagreements(found: Mapping[str, Sequence[int]], config: OasisVaeConfig) -> list[str]:
    """Lists settings that a checkpoint's shapes contradict, as ``vae.patch = 16, not 20``."""
    patches = found.get("patch_embed.proj.weight", ())
    sizes = dict(zip(("dim", "", "patch"), patches, strict=False))
    sizes["channels"] = next(iter(found.get("quant_conv.weight", ())), 0) // 2
    for half in ("encoder", "decoder"):
        blocks = {int(name.split(".")[1]) for name in found if name.startswith(f"{half}.")}
        sizes[f"{half}_layers"] = max(blocks, default=-1) + 1
    return [
        f"vae.{name} = {size}, not {getattr(config, name)}"
        for name, size in sizes.items()
        if name and size and size != getattr(config, name)
    ]
