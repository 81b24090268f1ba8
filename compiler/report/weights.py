"""Origin of a bundle's weights in words."""

from collections.abc import Mapping
from typing import Any

_SHOWN = 3
_OMITTED = ("loras", "digest")


def origin_text(source: Mapping[str, Any]) -> str:
    """Returns the files, layout, section and LoRAs that weights came from, on one line.

    Args:
        source: origin of a weights group, as stage ``load`` records it. Unknown fields are shown
            as they are.
    """
    if "random_weights" in source:
        return f"RANDOM, seed {source['random_weights']}: not a trained model"
    loras = source.get("loras")
    found = loras if isinstance(loras, list) else []
    return "; ".join([_words(source), *(f"LoRA {_words(lora)}" for lora in found)])


def _words(source: Any) -> str:
    if not isinstance(source, Mapping):
        return str(source)
    return ", ".join(
        f"{name} {_text(value)}"
        for name, value in source.items()
        if name not in _OMITTED and value not in (None, [])
    )


def _text(value: Any) -> str:
    if isinstance(value, list):
        more = [f"{len(value) - _SHOWN} more"] if len(value) > _SHOWN else []
        return " and ".join([" ".join(map(_text, value[:_SHOWN])), *more])
    return f"{value:g}" if isinstance(value, float) else str(value)
