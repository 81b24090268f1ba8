"""Observation of activations during a rollout."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.compiler.quantize.collect import Collector
from vidc.exporters.families.family import Family
from vidc.plugins.ops.ring import ring_attention, ring_write
from vidc.plugins.signature import Signature
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.states import Buffers, States


class Observer:
    """Passes the inputs of linear layers and of self-attention to a collector.

    Args:
        model: the model, whose passes define the groups.
        collector: the collector.
    """

    def __init__(self, model: Family, collector: Collector) -> None:
        self._model = model
        self._collector = collector
        self._group = model.passes()[0].name
        self._rings = {
            state: f"{name}.{part}"
            for name, attention in model.quantized_part.attentions.items()
            for part, state in (("k", attention.keys), ("v", attention.values))
        }
        """Names of the keys and values that each state stores, such as ``blocks.0.attn1.k``."""

    def engines(self, engines: Mapping[str, Engine]) -> dict[str, Engine]:
        """Wraps engines so that their calls are observed."""
        return {name: _Watched(name, engine, self) for name, engine in engines.items()}

    @contextmanager
    def hooks(self, network: nn.Module) -> Iterator[None]:
        """Observes the linear layers of a network."""
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
        """Observes one call of a component."""
        self._group = self._model.pass_of(name, buffers.inputs)
        rings = [spec.name for spec in signature.states if spec.name in self._rings]
        with _Attention({states[ring].data_ptr(): self._rings[ring] for ring in rings}, self):
            yield

    def written(self, name: str, update: Tensor) -> None:
        """Collects keys or values ``[B, T, H, D]``, such as ``blocks.0.attn1.k``."""
        self._collector.heads(name, self._group, update)
        self._collector.ends(name, update)
        if self._group == self._model.passes()[-1].name:
            # Later passes overwrite the keys of noisy passes; those of clean passes stay.
            self._collector.mean(name, update)

    def attended(self, keys: str, query: Tensor) -> None:
        """Collects queries ``[B, T, H, D]`` to keys such as ``blocks.0.attn1.k``."""
        self._collector.heads(f"{keys.removesuffix('.k')}.q", self._group, query)

    def _linear(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        self._collector.activation(name, self._group, x)
        rows = x.reshape(1, -1, x.shape[-1])
        self._collector.ends(name, rows)
        self._collector.mean(name, rows)


class _Watched(Wrapper):
    def __init__(self, name: str, engine: Engine, observer: Observer) -> None:
        super().__init__(engine)
        self._name = name
        self._observer = observer

    def run(self, buffers: Buffers, states: States) -> None:
        with self._observer.call(self._name, self.signature, buffers, states):
            self._engine.run(buffers, states)


class _Attention(TorchDispatchMode):
    """Dispatch mode that reports calls of the ring operators, with the name of their ring."""

    def __init__(self, rings: Mapping[int, str], observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rings = rings
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Reports a ring operator's arguments and runs any operation."""
        if func is ring_write:
            self._observer.written(self._rings[args[0].data_ptr()], args[1])
        elif func is ring_attention:
            self._observer.attended(self._rings[args[1].data_ptr()], args[0])
        return func(*args, **(kwargs or {}))
