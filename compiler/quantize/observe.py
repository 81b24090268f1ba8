"""Watches a transformer's engines while a session runs them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.compiler.quantize.collect import Collector
from vidc.compiler.quantize.groups import CLEAN, TEXT
from vidc.plugins.ops.ring import ring_attention, ring_write
from vidc.plugins.signature import Signature
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.states import Buffers, States


class Observer:
    """Shows a collector every input of a Linear and all that enters self-attention.

    Args:
        stream: whose timesteps tell the groups apart.
        collector: is shown the tensors.
    """

    def __init__(self, stream: StreamSpec, collector: Collector) -> None:
        self._timesteps = torch.tensor(stream.timesteps)
        self._collector = collector
        self._group = TEXT

    def engines(self, engines: Mapping[str, Engine]) -> dict[str, Engine]:
        """The same engines, watched."""
        return {name: _Watched(name, engine, self) for name, engine in engines.items()}

    @contextmanager
    def hooks(self, network: nn.Module) -> Iterator[None]:
        """Watches every Linear of a network."""
        handles = [
            module.register_forward_pre_hook(partial(self._linear, f"{name}.input"))
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def call(
        self, name: str, signature: Signature, buffers: Buffers, states: States
    ) -> Iterator[None]:
        """Watches one call of a component over these buffers."""
        self._group = self._group_of(name, buffers)
        rings = [spec.name for spec in signature.states if spec.name.startswith("ring.")]
        with _Attention({states[ring].data_ptr(): ring for ring in rings}, self):
            yield

    def written(self, ring: str, update: Tensor) -> None:
        """Keys or values ``[B, T, H, D]`` on their way into ``ring.k.0`` or another."""
        _, part, layer = ring.split(".")
        name = f"blocks.{layer}.attn1.{part}"
        self._collector.heads(name, self._group, update)
        self._collector.ends(name, update)
        if self._group == CLEAN:
            # A noisy pass's keys are overwritten by the next: these are the ones that stay.
            self._collector.mean(name, update)

    def attended(self, ring: str, query: Tensor) -> None:
        """Queries ``[B, T, H, D]`` over the keys of ``ring.k.0`` or another."""
        layer = ring.rpartition(".")[2]
        self._collector.heads(f"blocks.{layer}.attn1.q", self._group, query)

    def _linear(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        self._collector.activation(name, self._group, x)
        rows = x.reshape(1, -1, x.shape[-1])
        self._collector.ends(name, rows)
        self._collector.mean(name, rows)

    def _group_of(self, name: str, buffers: Buffers) -> str:
        if name == "text_kv":
            return TEXT
        if name != "denoise":
            return CLEAN
        timestep = buffers["timestep"].flatten()[:1].cpu()
        return f"step.{int((self._timesteps - timestep).abs().argmin())}"


class _Watched(Wrapper):
    def __init__(self, name: str, engine: Engine, observer: Observer) -> None:
        super().__init__(engine)
        self._name = name
        self._observer = observer

    def run(self, buffers: Buffers, states: States) -> None:
        with self._observer.call(self._name, self.signature, buffers, states):
            self._engine.run(buffers, states)


class _Attention(TorchDispatchMode):
    """Tells an observer of calls of the ring's operators, and of which ring each one is about."""

    def __init__(self, rings: Mapping[int, str], observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rings = rings
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Looks at an operation's arguments and runs it."""
        if func is ring_write:
            self._observer.written(self._rings[args[0].data_ptr()], args[1])
        elif func is ring_attention:
            self._observer.attended(self._rings[args[1].data_ptr()], args[0])
        return func(*args, **(kwargs or {}))
