"""Refusing weights that are not the model's: other names, shapes or dtypes, NaN or Inf."""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from vidc.exporters.checkpoint.layout import LORA, Layout
from vidc.exporters.checkpoint.lazy import LazyTensor, is_finite
from vidc.plugins.errors import BuildError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Dtypes that weights may be stored in."""

Shapes = Mapping[str, Sequence[int]]
Disagreements = Callable[[Shapes, Shapes], list[str]]
"""Lists the settings in which the shapes of a checkpoint differ from those of the model."""

_SHOWN = 4


def check_model(
    tensors: Mapping[str, LazyTensor],
    expected: Mapping[str, Sequence[int]],
    layout: Layout,
    source: object,
    disagreements: Disagreements,
) -> None:
    """Compares names and shapes with those of a model; reads no weights.

    Args:
        tensors: a checkpoint's tensors under canonical names.
        expected: shapes by name.
        layout: layout of the checkpoint's names.
        source: what to call the checkpoint.
        disagreements: finds the contradicted settings for the message.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-MISMATCH``.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    wrong = [
        f"{name} is {list(shapes[name])}, not {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != tuple(shape)
    ]
    groups = {
        "missing": sorted(expected.keys() - shapes.keys()),
        "unexpected": sorted(shapes.keys() - expected.keys()),
        "of another shape": wrong,
    }
    problems = [f"{len(found)} {what} ({some(found)})" for what, found in groups.items() if found]
    if not problems:
        return
    settings = disagreements(shapes, expected)
    if settings:
        problems.insert(0, f"the checkpoint has {', '.join(settings)} as the preset says")
    raise BuildError(
        "VIDC-CHECKPOINT-MISMATCH",
        f"{source} does not fit the model; it looks most like layout {layout.name!r}: "
        + "; ".join(problems),
        _hint(layout, bool(settings)),
    )


def _hint(layout: Layout, sizes_differ: bool) -> str:
    if layout is LORA:
        return "pass it as --lora, and the model it was trained on as --checkpoint"
    if sizes_differ:
        return "choose the preset of this model's size (`vidc presets list`), or --set the sizes"
    return "check that the file holds this model, whole, and not another part of its pipeline"


def check_dtypes(tensors: Mapping[str, LazyTensor], source: object) -> None:
    """Refuses tensors that are not plain floating point.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-DTYPE``.
    """
    wrong = [f"{n} is {t.dtype}" for n, t in tensors.items() if t.dtype not in DTYPES]
    if wrong:
        raise BuildError(
            "VIDC-CHECKPOINT-DTYPE",
            f"{source} holds {len(wrong)} tensors of a dtype that weights cannot have: "
            f"{some(wrong)}",
            "use a checkpoint that is not quantized: float32, bfloat16 or float16",
        )


def check_finite(tensors: Mapping[str, LazyTensor], source: object) -> None:
    """Reads every tensor once, one at a time, and refuses NaN and Inf.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-NONFINITE``.
    """
    wrong = []
    for name, tensor in tensors.items():
        values = tensor.load()
        if not is_finite(values):
            count = values.numel() - int(values.isfinite().sum())
            wrong.append(f"{name} holds {count} of {values.numel()}")
    if wrong:
        raise BuildError(
            "VIDC-CHECKPOINT-NONFINITE",
            f"{source} has NaN or Inf in {len(wrong)} tensors: {some(wrong)}",
            "download it again; if the original has them too, its training failed",
        )


def some(items: Collection[str]) -> str:
    """The first few of the items, in a line."""
    shown = ", ".join(list(items)[:_SHOWN])
    return f"{shown}, …" if len(items) > _SHOWN else shown
