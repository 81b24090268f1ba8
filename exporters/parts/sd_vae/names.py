"""Names of a Stable Diffusion VAE's weights in checkpoints; diffusers' are canonical.

Files that diffusers wrote before 0.18 have other names for the layers of attention.
"""

import re
from collections.abc import Mapping, Sequence

from vidc.exporters.checkpoint.layout import Layout, by_name

_OLD = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
_ATTENTION = re.compile(rf"(.+\.attentions\.0\.)({'|'.join(_OLD)})(\..+)")


def canonical_name(name: str) -> str:
    """diffusers' present name of a parameter."""
    match = _ATTENTION.fullmatch(name)
    return name if match is None else match[1] + _OLD[match[2]] + match[3]


LAYOUTS = (
    Layout(
        "diffusers AutoencoderKL",
        ("encoder.down_blocks", "encoder.mid_block", "decoder.mid_block", "decoder.up_blocks"),
        by_name(canonical_name),
    ),
)


def disagreements(
    found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
) -> list[str]:
    """Lists settings that a checkpoint contradicts, as ``vae.channels begins with 64, not 128``."""
    places = {
        "encoder.conv_in.weight": "begins",
        "decoder.conv_in.weight": "ends",
        "conv_in.weight": "ends",  # Of a decoder alone.
    }
    return [
        f"vae.channels {place} with {found[name][0]}, not {expected[name][0]}"
        for name, place in places.items()
        if name in found and name in expected and found[name][0] != expected[name][0]
    ]
