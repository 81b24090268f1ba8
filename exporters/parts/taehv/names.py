"""Names of a TAEHV's weights in the checkpoints that carry them.

The published names are canonical: ``decoder.3.conv.0.weight`` is a convolution of the decoder's
fourth layer. ``taew2_1``, ``taew2_2`` and the LightTAE files have them.
"""

import re

from vidc.exporters.checkpoint.layout import Layout, by_name

_LAYERS = 23
_WRAPPED = re.compile(r"(?:taehv\.)?(encoder|decoder)\.(?:blocks\.)?(?=\d)")


def _canonical_name(name: str) -> str:
    return _WRAPPED.sub(r"\1.", name, count=1)


def _numbered(*prefixes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{index}" for prefix in prefixes for index in range(_LAYERS))


LAYOUTS = (
    Layout("TAEHV", _numbered("encoder", "decoder"), by_name(_canonical_name)),
    Layout(
        "TAEHV in FlashDreams",
        _numbered("encoder.blocks", "decoder.blocks"),
        by_name(_canonical_name),
    ),
)
