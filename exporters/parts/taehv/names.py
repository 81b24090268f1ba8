"""Names of a TAEHV's weights in the checkpoints that carry them.

The published names are canonical: ``decoder.3.conv.0.weight`` is a convolution of the decoder's
fourth layer. ``taew2_1``, ``taew2_2`` and the LightTAE files have them.
"""

import re
from collections.abc import Mapping
from typing import TypeVar

from vidc.exporters.checkpoint.layout import Layout

T = TypeVar("T")

_LAYERS = 23
_WRAPPED = re.compile(r"(?:taehv\.)?(encoder|decoder)\.(?:blocks\.)?(?=\d)")


def _canonical(checkpoint: Mapping[str, T]) -> dict[str, T]:
    return {_WRAPPED.sub(r"\1.", name, count=1): value for name, value in checkpoint.items()}


def _numbered(*prefixes: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{index}" for prefix in prefixes for index in range(_LAYERS))


LAYOUTS = (
    Layout("TAEHV", _numbered("encoder", "decoder"), _canonical),
    Layout("TAEHV in FlashDreams", _numbered("encoder.blocks", "decoder.blocks"), _canonical),
)
