"""What components compute and move at the least, counted without computing anything."""

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

import vidc.plugins.ring  # noqa: F401  components call its operators
from vidc.compiler.bench.baseline.vae import VaeDecoder
from vidc.compiler.config.tables import model_from_json
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import PRECISIONS, components, meta_network
from vidc.plugins.signature import Signature, TensorSpec
from vidc.runtime.manifest import Manifest


class Kind(StrEnum):
    """What an operation, or the kernel that does it, is for."""

    PRODUCT = "matrix products"
    ATTENTION = "attention"
    CONVOLUTION = "convolutions"
    ELEMENTWISE = "element-wise and norms"
    COPY = "copies"
    OTHER = "other"


COUNTED = {
    "aten.mm": Kind.PRODUCT,
    "aten.addmm": Kind.PRODUCT,
    # Linear layers are the above; what is left of batched products is attention.
    "aten.bmm": Kind.ATTENTION,
    "aten.baddbmm": Kind.ATTENTION,
    "vidc.ring_attention": Kind.ATTENTION,
    "aten.convolution": Kind.CONVOLUTION,
}


@dataclass(frozen=True)
class Work:
    """One call of a component.

    Attributes:
        flops: floating-point operations by kind, two to a multiply-add, norms and the like left
            out; with a full window.
        bytes: every weight, input and state that is read, once, and all that is written.
    """

    flops: Mapping[Kind, int] = field(default_factory=dict)
    bytes: int = 0

    @property
    def total(self) -> int:
        """All floating-point operations."""
        return sum(self.flops.values())


def component_work(manifest: Manifest) -> dict[str, Work]:
    """Of the components that a stream replays, but for a stream's first decoding."""
    config = model_from_json(manifest.config)
    precision: Mapping[str, str] = manifest.config["precision"]
    network = meta_network(config, "transformer", precision["transformer"])
    parts = components(config, "transformer", network, precision["transformer"])
    found = {
        name: _with_tensors(part.module, part.signature, config) for name, part in parts.items()
    }
    decoder = manifest.engines.get("vae_decode")
    if decoder is not None:
        weights, flops = _decode(config, PRECISIONS[precision["vae"]])
        found["vae_decode"] = Work(flops, weights + _traffic(decoder.signature, config))
    return {name: work for name, work in found.items() if name in manifest.engines}


def _with_tensors(module: nn.Module, signature: Signature, config: ModelConfig) -> Work:
    arguments = [
        torch.empty(spec.shape, dtype=spec.torch_dtype, device="meta")
        for spec in signature.arguments
    ]
    weights, flops = _count(module, lambda: module(*arguments))
    return Work(flops, weights + _traffic(signature, config))


def _decode(config: ModelConfig, dtype: torch.dtype) -> tuple[int, dict[Kind, int]]:
    """Of the public code's decoder, whose convolutions are those of any other."""
    with torch.device("meta"):
        decoder = VaeDecoder(config.vae).to(dtype)
        shape = (config.stream.block, config.vae.z_dim, *config.latent_size)
        latent = torch.empty(shape, dtype=dtype)
        memory = decoder.memory()
    with torch.no_grad():
        decoder(latent, memory)
    weights, flops = _count(decoder, lambda: decoder(latent, memory))
    return weights, {kind: config.stream.batch * count for kind, count in flops.items()}


def _count(module: nn.Module, call: Callable[[], Any]) -> tuple[int, dict[Kind, int]]:
    """Bytes of the weights that a call uses, and its operations."""
    used = _Used(module.state_dict(keep_vars=True).values())
    ring = torch.ops.vidc.ring_attention
    counter = FlopCounterMode(display=False, custom_mapping={ring: _ring_attention_flops})
    with torch.no_grad(), used, counter:
        call()
    flops: dict[Kind, int] = defaultdict(int)
    for operator, count in counter.get_flop_counts()["Global"].items():
        flops[COUNTED.get(str(operator), Kind.OTHER)] += count
    return used.bytes, dict(flops)


class _Used(TorchDispatchMode):
    """Adds up the bytes of those tensors that operations are given."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._unused = {id(tensor): tensor.nbytes for tensor in tensors}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Looks at an operation's arguments and runs it."""
        for leaf in tree_leaves((args, kwargs)):
            self.bytes += self._unused.pop(id(leaf), 0)
        return func(*args, **(kwargs or {}))


def _ring_attention_flops(
    query: torch.Size, keys: torch.Size, *_: Any, out_shape: Any = None, **__: Any
) -> int:
    batch, tokens, heads, dim = query
    return int(4 * batch * heads * tokens * keys[1] * dim)


def _traffic(signature: Signature, config: ModelConfig) -> int:
    return sum(_moved(spec, signature, config) for spec in signature)


def _moved(spec: TensorSpec, signature: Signature, config: ModelConfig) -> int:
    size = torch.empty(spec.shape, dtype=spec.torch_dtype, device="meta").nbytes
    written = size
    if spec.name.startswith("ring."):
        # Only the slots of the frames at hand are written.
        written = size * signature["latent"].shape[1] // config.stream.window
    return size * spec.reads + written * spec.writes
