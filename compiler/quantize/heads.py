"""What a calibration saw of each head's keys and values, and heads of which it saw nothing."""

from collections.abc import Mapping

from torch import Tensor

from vidc.compiler.config.formats import HIGH, STATIC, AttentionFormat
from vidc.compiler.quantize.artifact import Calibration
from vidc.plugins.errors import GateError

_PARTS = {"k": "keys", "v": "values"}


def reach(calibration: Calibration, name: str, part: str, form: AttentionFormat) -> Tensor:
    """The largest magnitude of each head, ``[H]``, of what is rounded.

    Args:
        calibration: whose.
        name: of the self-attention.
        part: ``k`` or ``v``.
        form: of the attention: keys may be rounded less their mean.
    """
    centered = part == "k" and form.center
    tensor = f"{name}.{part}"
    return (calibration.centred_amax(tensor) if centered else calibration.amax(tensor)).amax(1)


def require_heads(attentions: Mapping[str, AttentionFormat], calibration: Calibration) -> None:
    """Refuses a head of which nothing is left to round: no static scale follows from it.

    Args:
        attentions: formats by layer.
        calibration: of their weights.

    Raises:
        GateError: ``VIDC-CALIBRATION-ZERO`` with the first layer and head.
    """
    for name, form in attentions.items():
        if form.scale != STATIC:
            continue
        for part, kind in (("k", form.keys), ("v", form.values)):
            dead = () if kind == HIGH else (reach(calibration, name, part, form) == 0).nonzero()
            for head in dead:
                seen = calibration.amax(f"{name}.{part}")[int(head)]
                what = "their mean" if seen.any() else "zero"
                raise GateError(
                    "VIDC-CALIBRATION-ZERO",
                    f"{name}: the {_PARTS[part]} of head {int(head)} are {what} throughout the "
                    "calibration: no scale follows from it",
                    "leave the layer out of the recipe's [[attention]], or calibrate again with "
                    "weights in which the head is not dead",
                )
