"""FLOPs and minimal memory traffic of components, counted on the meta device."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import vidc.plugins.ops.ring  # noqa: F401  components call its operators
from vidc.compiler.config.tables import model_from_json
from vidc.exporters.component import Component
from vidc.exporters.part import Part
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.manifest import Manifest


class Kind(StrEnum):
    """Kind of an operation or kernel."""

    PRODUCT = "matrix products"
    ATTENTION = "attention"
    CONVOLUTION = "convolutions"
    ELEMENTWISE = "element-wise and norms"
    COPY = "copies"
    OTHER = "other"


COUNTED = {
    "aten.mm": Kind.PRODUCT,
    "aten.addmm": Kind.PRODUCT,
    # Linear layers use the operators above; batched matmuls are attention.
    "aten.bmm": Kind.ATTENTION,
    "aten.baddbmm": Kind.ATTENTION,
    "vidc.ring_attention": Kind.ATTENTION,
    "vidc.padded_attention": Kind.ATTENTION,
    "aten.convolution": Kind.CONVOLUTION,
}


@dataclass(frozen=True)
class Work:
    """Work of one component call.

    Attributes:
        flops: floating-point operations by kind, with a full window. A multiply-add counts as two;
            norms and element-wise operations are left out.
        bytes: bytes of each weight, input and state that is read, counted once, and of all that is
            written.
    """

    flops: Mapping[Kind, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        """Total floating-point operations."""
        return sum(self.flops.values())


def component_work(manifest: Manifest) -> dict[str, Work]:
    """Returns the work of each component that a session runs, by name.

    A decoder for the first block alone is left out.
    """
    config = model_from_json(manifest.config)
    first = manifest.spec.decode_components[:-1]
    wanted = {
        name: group
        for name, group in config.components.items()
        if name in manifest.spec.components and name not in first
    }
    found: dict[str, Work] = {}
    for group in dict.fromkeys(wanted.values()):
        part = config.parts[group]
        made = part.components(part.network(manifest.config["precision"][group]))
        found |= {name: _work(part, each) for name, each in made.items() if name in wanted}
    return found


def _work(part: Part, component: Component) -> Work:
    arguments = [
        torch.empty(spec.shape, dtype=spec.torch_dtype, device="meta")
        for spec in component.signature.arguments
    ]
    weights, flops = _count(component.module, lambda: component.module(*arguments))
    traffic = sum(_moved(spec, component.signature, part) for spec in component.signature)
    return Work(flops, weights + traffic)


def _count(module: nn.Module, call: Callable[[], Any]) -> tuple[int, dict[Kind, int]]:
    """Returns the bytes of the weights that a call reads, and its operations by kind."""
    used = _Used(module.state_dict(keep_vars=True).values())
    operators = (torch.ops.vidc.ring_attention, torch.ops.vidc.padded_attention)
    mapping: dict[Any, Any] = dict.fromkeys(operators, _attention_flops)
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with torch.no_grad(), used, counter:
        call()
    flops: dict[Kind, int] = defaultdict(int)
    for operator, count in counter.get_flop_counts()["Global"].items():
        flops[COUNTED.get(str(operator), Kind.OTHER)] += count
    return used.bytes, dict(flops)


class _Used(TorchDispatchMode):
    """Sums the bytes of given tensors that operations read."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._unused = {id(tensor): tensor.nbytes for tensor in tensors}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Counts an operation's arguments and runs it."""
        for leaf in tree_leaves((args, kwargs)):
            self.bytes += self._unused.pop(id(leaf), 0)
        return func(*args, **(kwargs or {}))


def _attention_flops(
    query: torch.Size, keys: torch.Size, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    batch, tokens, heads, dim = query
    return int(4 * batch * heads * tokens * keys[1] * dim)


def _moved(spec: TensorSpec, signature: Signature, part: Part) -> int:
    size = torch.empty(spec.shape, dtype=spec.torch_dtype, device="meta").nbytes
    written = size * part.written_share(spec.name, signature)
    return int(size * spec.reads + written * spec.writes)
