"""Observation of activations during a rollout."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from torch import Tensor, nn

from vidc.compiler.quantize.calibrated_tensors import convolution_sizes
from vidc.compiler.quantize.collect import Collector
from vidc.exporters.families.family import Family
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.states import Buffers, States


class Observer:
    """Passes the inputs of linear layers, convolutions and self-attention to a collector.

    Args:
        model: the model, whose passes define the groups.
        collector: the collector.
    """

    def __init__(self, model: Family, collector: Collector) -> None:
        self._model = model
        self._collector = collector
        self._group = model.passes()[0].name

    def engines(self, engines: Mapping[str, Engine]) -> dict[str, Engine]:
        """Wraps engines so that their calls are observed."""
        return {name: _Watched(name, engine, self) for name, engine in engines.items()}

    @contextmanager
    def hooks(self, network: nn.Module) -> Iterator[None]:
        """Observes the linear layers, the convolutions and the rings of a network."""
        hooks: dict[str, Callable[..., None]] = {
            name: partial(self._linear, f"{name}.input")
            for name, module in network.named_modules()
            if isinstance(module, nn.Linear)
        }
        for name in convolution_sizes(self._model):
            hooks[name] = partial(self._convolution, f"{name}.input")
        for name in self._model.quantized_part.attentions:
            hooks[f"{name}.ring.queries"] = partial(self._queries, f"{name}.q")
            hooks[f"{name}.ring.keys"] = partial(self._stored, f"{name}.k")
            hooks[f"{name}.ring.values"] = partial(self._stored, f"{name}.v")
        handles = [
            network.get_submodule(name).register_forward_pre_hook(hook)
            for name, hook in hooks.items()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def called(self, component: str, buffers: Buffers) -> None:
        """Tells which component runs next, and on which inputs."""
        self._group = self._model.pass_of(component, buffers.inputs)

    def _stored(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Collects keys or values ``[B, T, H, D]``, such as ``blocks.0.attn1.k``."""
        (update,) = inputs
        self._collector.heads(name, self._group, update)
        self._collector.ends(name, update)
        if self._group == self._model.passes()[-1].name:
            # Later passes overwrite the keys of noisy passes; those of clean passes stay.
            self._collector.mean(name, update)

    def _queries(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Collects queries ``[B, T, H, D]``, such as ``blocks.0.attn1.q``."""
        (queries,) = inputs
        self._collector.heads(name, self._group, queries)

    def _convolution(self, name: str, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        self._collector.channels(name, self._group, x)

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
        self._observer.called(self._name, buffers)
        self._engine.run(buffers, states)
