"""One prompt's rollout: a stream as a user runs it, watched."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from vidc.compiler.quantize.collect import Collector, weight_amax
from vidc.compiler.quantize.groups import groups
from vidc.compiler.quantize.observe import Observer
from vidc.compiler.validate.eager import EagerEngine
from vidc.compiler.validate.play import Inputs, play_rollout
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.causal_wan.model import CausalWan
from vidc.runtime.programs.stream import StreamSpec


def scenario(stream: StreamSpec) -> Scenario:
    """Blocks until the window is full, one that pushes others out, a prompt switch, one more."""
    filling = -(-stream.window // stream.block)
    return Scenario(blocks=filling + 2, switch_after=filling + 1, rollout=True)


class Rollouts:
    """The rollouts of a transformer.

    Args:
        stream: of its model.
        engines: its components, on the device where they run.
        device: that device.
        seed: of the noise.
    """

    def __init__(
        self,
        stream: StreamSpec,
        engines: Mapping[str, EagerEngine],
        device: torch.device,
        seed: int,
    ) -> None:
        self._stream = stream
        self._engines = engines
        self._device = device
        self._seed = seed
        network = engines["denoise"].module.transformer
        assert isinstance(network, CausalWan)
        self._network = network

    def weights(self) -> dict[str, Tensor]:
        """The ranges of every Linear's weight, on the CPU."""
        return {
            f"amax/{name}.weight": weight_amax(module.weight).cpu()
            for name, module in self._network.named_modules()
            if isinstance(module, torch.nn.Linear)
        }

    def ranges(self, index: int, prompts: Tensor) -> dict[str, Tensor]:
        """The ranges of one rollout, on the CPU.

        Args:
            index: its number, which chooses its noise.
            prompts: before and after its switch, ``[2, L, E]``.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``.
        """
        stream = self._stream
        inputs = rollout_inputs(stream, self._seed, index, prompts).to(self._device)
        collector = Collector([group.name for group in groups(stream)])
        observer = Observer(stream, collector)
        with observer.hooks(self._network):
            play_rollout(scenario(stream), inputs, stream, observer.engines(self._engines))
        return collector.ranges()


def rollout_inputs(stream: StreamSpec, seed: int, index: int, prompts: Tensor) -> Inputs:
    """What one rollout starts from, on the CPU; ``index`` and ``prompts`` as of ``Rollouts``."""
    shape = (stream.batch, stream.block, *stream.latent)
    return Inputs(
        prompts[:, None].expand(2, stream.batch, *stream.text),
        _noise(seed, index, (scenario(stream).blocks, len(stream.sigmas), *shape)),
        {},
    )


def _noise(seed: int, index: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal, float32, on the CPU: no other prompt has a say in it."""
    # torch's CPU generator takes 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {index}".encode()))
    return torch.randn(shape, generator=generator)
