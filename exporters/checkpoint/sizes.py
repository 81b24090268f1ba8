"""Reading a causal Wan transformer's sizes off the shapes of its weights."""

import re
from collections.abc import Mapping, Sequence

Shapes = Mapping[str, Sequence[int]]

_AXES = {
    "dim": ("patch_embedding.weight", slice(0, 1)),
    "channels": ("patch_embedding.weight", slice(1, 2)),
    "patch": ("patch_embedding.weight", slice(2, 5)),
    "ffn_dim": ("blocks.0.ffn.net.0.proj.weight", slice(0, 1)),
    "freq_dim": ("condition_embedder.time_embedder.linear_1.weight", slice(1, 2)),
    "text_dim": ("condition_embedder.text_embedder.linear_1.weight", slice(1, 2)),
}
_BLOCK = re.compile(r"blocks\.(\d+)\.attn1\.")


def disagreements(found: Shapes, expected: Shapes) -> list[str]:
    """Preset settings that a checkpoint contradicts, as ``model.dim = 5120, not 1536``.

    Empty where names are missing, and for models that are no Wan transformer. The number of
    heads, ``text_len`` and ``eps`` leave no trace in the weights.
    """
    have, want = _sizes(found), _sizes(expected)
    return [
        f"model.{setting} = {_text(have[setting])}, not {_text(want[setting])}"
        for setting in want
        if setting in have and have[setting] != want[setting]
    ]


def _sizes(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    sizes = {
        setting: tuple(shapes[name][axes])
        for setting, (name, axes) in _AXES.items()
        if name in shapes
    }
    blocks = {int(match[1]) for name in shapes if (match := _BLOCK.match(name))}
    return sizes | ({"layers": (len(blocks),)} if blocks else {})


def _text(size: tuple[int, ...]) -> str:
    return str(size[0] if len(size) == 1 else list(size))
