"""LoRA: reads the updates of a file and merges them into a model's weights."""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vidc.exporters.checkpoint.adapter_config import AdapterConfig
from vidc.exporters.checkpoint.check import some
from vidc.exporters.checkpoint.layout import UNKNOWN, Layout, recognize, strip
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_PART = re.compile(
    r"(?P<module>.+)\.(?:"
    r"lora_(?P<matrix>A|B|down|up)(?:\.[^.]+)??\.(?P<leaf>weight|bias)"
    r"|lora(?:_linear_layer)?\.(?P<diffusers>down|up)\.weight"
    r"|(?P<other>alpha|diff|diff_b|diff_m))"
)
"""Tensor names of PEFT (with or without an adapter's name), kohya, older diffusers and LightX2V,
whose ``diff`` tensors are complete updates."""
_MATRICES = {"A": "down", "B": "up"}
_WHOLE = {"bias": "bias", "diff": "weight", "diff_b": "bias", "diff_m": "modulation"}
"""Parts that are added as they are, with the tensor of the module that they are added to."""
_FLAT = ("lora_unet_", "lora_transformer_", "lycoris_")
"""Prefixes of names whose dots are written as underscores."""

_KINDS = {
    "lora_magnitude_vector": "DoRA",
    "dora_scale": "DoRA",
    "lokr_": "LoKr",
    "hada_": "LoHa",
    "oft_": "OFT",
    "boft_": "BOFT",
    "lora_mid": "LoCon with a third matrix",
    "vera_lambda": "VeRA",
    "ia3_l": "IA3",
}
"""Marks in tensors' names of adapters that change weights by another formula."""


@dataclass(frozen=True)
class Updates:
    """Tensors that a LoRA adds to those of a model.

    Attributes:
        tensors: float32, by canonical name of the tensor that each is added to.
        layout: of the modules' names.
        modules: their number.
        ranks: of the pairs of matrices, sorted.
        scales: alpha / rank of the pairs, sorted.
    """

    tensors: Mapping[str, LazyTensor]
    layout: Layout
    modules: int
    ranks: tuple[int, ...]
    scales: tuple[float, ...]


def is_alpha(name: str) -> bool:
    """Returns True for the name of an alpha: a number that scales an update and is not added."""
    return name.endswith(".alpha")


def read_updates(
    tensors: Mapping[str, LazyTensor],
    config: AdapterConfig,
    base: Mapping[str, LazyTensor],
    layouts: Sequence[Layout],
    source: Path,
) -> Updates:
    """Reads a LoRA's tensors; a module's own ``alpha`` takes precedence over the config's.

    Args:
        tensors: the LoRA's tensors, by the names in its file.
        config: settings beside the tensors; where neither gives an alpha, it is the rank.
        base: tensors that they are added to, by canonical name.
        layouts: layouts whose names the modules may have.
        source: what to call the LoRA.

    Raises:
        BuildError: ``VIDC-LORA-KIND`` for DoRA and other formulas, ``VIDC-LORA-FORMAT`` for
            anything else that is no LoRA, ``VIDC-LORA-MISMATCH`` for one that does not fit.
    """
    found: dict[str, LazyTensor] = {}
    ranks, scales = set(), set()
    modules = _modules(tensors, source)
    for module, parts in modules.items():
        scale = 1.0
        if parts.keys() - {"diff", "diff_b", "diff_m"}:
            rank, own = _rank(module, parts, source), parts.get("alpha")
            alpha = config.alpha_for(module, rank) if own is None else _scalar(own, module, source)
            scale = alpha / rank
            ranks.add(rank)
            scales.add(scale)
            found[f"{module}.weight"] = _product(parts["down"], parts["up"], scale)
        for part, leaf in _WHOLE.items():
            if part not in parts:
                continue
            name = f"{module}.{leaf}"
            if name in found:
                raise _malformed(source, f"{module} has {part} and another update of {name}")
            # PEFT scales the bias of a pair as it does the pair; `diff_b` stands for itself.
            load = partial(_scaled, parts[part], scale if part == "bias" else 1.0)
            found[name] = LazyTensor(parts[part].shape, torch.float32, load)
    named, layout = _named(found, base, layouts, source)
    return Updates(named, layout, len(modules), tuple(sorted(ranks)), tuple(sorted(scales)))


def merge(
    base: Mapping[str, LazyTensor], loras: Iterable[Mapping[str, LazyTensor]]
) -> dict[str, LazyTensor]:
    """The base's tensors with every LoRA's added when a tensor is loaded.

    The sum is computed in float32 and returned in the base's dtype.
    """
    terms: dict[str, list[LazyTensor]] = defaultdict(list)
    for lora in loras:
        for name, update in lora.items():
            terms[name].append(update)
    merged = dict(base)
    for name, updates in terms.items():
        merged[name] = replace(base[name], load=partial(_sum, base[name], tuple(updates)))
    return merged


def _modules(tensors: Mapping[str, LazyTensor], source: Path) -> dict[str, dict[str, LazyTensor]]:
    """The parts of each module, by the module's path in the file without prefixes."""
    modules: dict[str, dict[str, LazyTensor]] = defaultdict(dict)
    other = []
    for name, tensor in tensors.items():
        match = _PART.fullmatch(name)
        matrix = match and (match["matrix"] or match["diffusers"])
        if match is None or (match["leaf"] == "bias" and matrix not in ("B", "up")):
            other.append(name)
            continue
        part = _MATRICES.get(matrix, matrix) if matrix else match["other"]
        part = "bias" if match["leaf"] == "bias" else part
        module = strip(match["module"])
        flat = next((prefix for prefix in _FLAT if module.startswith(prefix)), "")
        parts = modules[module.removeprefix(flat)]
        if part in parts:
            raise _malformed(source, f"{module} has several adapters")
        parts[part] = tensor
    _refuse_other(source, other, has_updates=bool(modules))
    return modules


def _refuse_other(source: Path, names: list[str], *, has_updates: bool) -> None:
    found = {kind: name for mark, kind in _KINDS.items() for name in names if f".{mark}" in name}
    if found:
        kind, name = next(iter(found.items()))
        raise BuildError(
            "VIDC-LORA-KIND",
            f"{source} is a {kind} ({name}), which vidc does not merge",
            "merge it with the library that made it and give the result as --checkpoint",
        )
    if not has_updates:
        raise _malformed(source, f"no LoRA tensors, only {some(names)}")
    if names:
        raise _malformed(source, f"{len(names)} tensors that no LoRA has: {some(names)}")


def _rank(module: str, parts: Mapping[str, LazyTensor], source: Path) -> int:
    if "up" not in parts or "down" not in parts:
        present = ", ".join(sorted(parts))
        raise _malformed(source, f"{module} has only {present} of the pair down (A) and up (B)")
    down, up = parts["down"].shape, parts["up"].shape
    # For a convolution, B is a 1 x 1 convolution.
    if len(down) < 2 or len(up) != len(down) or math.prod(up[2:]) != 1 or not down[0] == up[1] > 0:
        raise _malformed(
            source, f"{module} has A {list(down)} and B {list(up)}, which do not multiply"
        )
    return down[0]


def _product(down: LazyTensor, up: LazyTensor, scale: float) -> LazyTensor:
    """``scale * up @ down``: down is [rank, in, ...], up [out, rank, ...]."""
    shape = (up.shape[0], *down.shape[1:])

    def load() -> Tensor:
        product = up.load().float().flatten(1) @ down.load().float().flatten(1)
        return product.mul_(scale).reshape(shape)

    return LazyTensor(shape, torch.float32, load)


def _scaled(tensor: LazyTensor, scale: float) -> Tensor:
    return tensor.load().float() * scale


def _scalar(alpha: LazyTensor, module: str, source: Path) -> float:
    value = alpha.load()
    if value.numel() != 1 or not math.isfinite(value.item()):
        raise _malformed(source, f"{module}.alpha is not one finite number")
    return float(value.item())


def _malformed(source: object, what: str) -> BuildError:
    return BuildError(
        "VIDC-LORA-FORMAT",
        f"{source} is not a LoRA that can be merged: {what}",
        "give a LoRA in the names of PEFT, diffusers, kohya or LightX2V, one adapter a file",
    )


def _named(
    found: Mapping[str, LazyTensor],
    base: Mapping[str, LazyTensor],
    layouts: Sequence[Layout],
    source: Path,
) -> tuple[dict[str, LazyTensor], Layout]:
    """Updates by canonical name, and the layout that most of their names have."""
    fitting = [each for each in layouts if each.score(map(each.original, base))]
    tables = [(layout, _names(layout, base)) for layout in (*fitting, UNKNOWN)]
    layout, names = max(tables, key=lambda each: len(found.keys() & each[1].keys()))
    absent = sorted({name.rpartition(".")[0] for name in found.keys() - names.keys()})
    named = {names[name]: update for name, update in found.items() if name in names}
    wrong = [
        f"{name} is {list(base[name].shape)}, its update {list(update.shape)}"
        for name, update in named.items()
        if base[name].shape != update.shape
    ]
    _refuse_mismatch(source, absent, wrong, recognize(found, layouts), fitting)
    if len(named) < len(found):
        raise _malformed(source, "two of its modules are one module of the model")
    return named, layout


def _refuse_mismatch(
    source: Path, absent: list[str], wrong: list[str], looks: Layout, fitting: Collection[Layout]
) -> None:
    foreign = looks not in (UNKNOWN, *fitting)
    what = f"{len(absent)} of its modules do not exist in the model ({some(absent)})"
    problems = [
        *([what] if absent else []),
        *([f"its names look most like layout {looks.name!r}"] if absent and foreign else []),
        *([f"{len(wrong)} tensors have other sizes ({some(wrong)})"] if wrong else []),
    ]
    if problems:
        raise BuildError(
            "VIDC-LORA-MISMATCH",
            f"{source} does not fit the model: {', '.join(problems)}",
            "give the LoRA that was trained on this checkpoint's model",
        )


def _names(layout: Layout, base: Iterable[str]) -> dict[str, str]:
    """Canonical names by a layout's, with dots in a module's path and with underscores."""
    names = {}
    for name in base:
        original = layout.original(name)
        path, _, leaf = original.rpartition(".")
        names[original] = name
        names[f"{path.replace('.', '_')}.{leaf}"] = name
    return names


def _sum(weight: LazyTensor, updates: Sequence[LazyTensor]) -> Tensor:
    total = weight.load().float().clone()
    for update in updates:
        total += update.load()
    return total.to(weight.dtype)
