"""Names of an SVD VAE's weights in the checkpoints that carry them.

diffusers' names are canonical. The original names are those of Stability-AI/generative-models.
"""

import re

from vidc.exporters.checkpoint.layout import Layout, by_name, renamed
from vidc.exporters.parts.svd_unet.names import resnet_name

_LEVELS = 4
_TOP = {"norm_out": "conv_norm_out", "conv_out.time_mix_conv": "time_conv_out"}
_MIDDLE = {"block_1": "resnets.0", "block_2": "resnets.1", "attn_1": "attentions.0"}
_ATTENTION = {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}
_BLOCK = re.compile(r"(down|up)\.(\d+)\.(block|downsample|upsample)\.(.+)")


def canonical_name(name: str) -> str:
    """diffusers' name of a parameter that has an original name; any other stays as it is."""
    half, _, inside = name.partition(".")
    if half not in ("encoder", "decoder"):
        return name
    middle = inside.removeprefix("mid.")
    if middle != inside:
        place, layer = renamed(middle, _MIDDLE).split(".", 2)[:2], middle.split(".", 1)[1]
        of_attention = place[0] == "attentions"
        new = renamed(layer, _ATTENTION) if of_attention else _resnet(half, layer)
        return f"{half}.mid_block.{'.'.join(place)}.{new}"
    match = _BLOCK.fullmatch(inside)
    if match is None:
        return f"{half}.{renamed(inside, _TOP)}"
    way, level, kind, rest = match.groups()
    block = int(level) if way == "down" else _LEVELS - 1 - int(level)
    if kind != "block":
        return f"{half}.{way}_blocks.{block}.{kind}rs.0.{rest}"
    number, _, layer = rest.partition(".")
    return f"{half}.{way}_blocks.{block}.resnets.{number}.{_resnet(half, layer)}"


def _resnet(half: str, name: str) -> str:
    """diffusers' name inside a residual block, which in the decoder has a temporal part."""
    plain = renamed(name, {"nin_shortcut": "conv_shortcut"})
    if half == "encoder":
        return plain
    return "time_mixer.mix_factor" if plain == "mix_factor" else resnet_name(plain)


LAYOUTS = (
    Layout(
        "diffusers AutoencoderKLTemporalDecoder",
        ("encoder.down_blocks", "encoder.mid_block", "decoder.mid_block", "decoder.up_blocks"),
    ),
    Layout(
        "original SVD VAE",
        ("encoder.down", "encoder.mid", "decoder.mid", "decoder.up"),
        by_name(canonical_name),
    ),
)
