"""Rollouts of a calibration: the model generates as for a user, and observers record ranges."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from vidc.compiler.config.program import program_spec
from vidc.compiler.quantize.calibrated_tensors import is_quantizable
from vidc.compiler.quantize.collect import Collector, weight_amax
from vidc.compiler.quantize.observe import Observer
from vidc.compiler.validate.golden import synthetic_conditions
from vidc.compiler.validate.play import Inputs
from vidc.compiler.validate.reference import EagerEngine, player, quantized_network
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.family import Family


def scenario(model: Family) -> Scenario:
    """Returns the length and prompt switch of a calibration's rollouts."""
    played = model.calibration_rollout()
    return Scenario(played.blocks, played.switch_after, rollout=True)


class Rollouts:
    """Calibration rollouts of a model.

    Args:
        model: model that is calibrated.
        engines: PyTorch engines of its components, on ``device``.
        device: where the rollouts run.
        seed: seed of the noise.
    """

    def __init__(
        self,
        model: Family,
        engines: Mapping[str, EagerEngine],
        device: torch.device,
        seed: int,
    ) -> None:
        self._model = model
        self._engines = engines
        self._device = device
        self._seed = seed
        self._network = quantized_network(engines, model)

    def weights(self) -> dict[str, Tensor]:
        """Returns the ranges of every linear layer's and convolution's weight, on the CPU."""
        return {
            f"amax/{name}.weight": weight_amax(module.weight).cpu()
            for name, module in self._network.named_modules()
            if isinstance(module, torch.nn.Linear) or is_quantizable(module)
        }

    def ranges(self, index: int, prompts: Tensor) -> dict[str, Tensor]:
        """Runs one rollout and returns its ranges, on the CPU.

        Args:
            index: number of the rollout, which seeds its noise.
            prompts: embeddings before and after the prompt switch, ``[2, L, E]``.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``.
        """
        model = self._model
        inputs = rollout_inputs(model, self._seed, index, prompts).to(self._device)
        collector = Collector([each.name for each in model.passes()])
        observer = Observer(model, collector)
        with observer.hooks(self._network):
            played = observer.engines(self._engines)
            player(model, played, self._device).rollout(scenario(model), inputs)
        return collector.ranges()


def rollout_inputs(model: Family, seed: int, index: int, prompts: Tensor) -> Inputs:
    """Returns the inputs of a rollout, on the CPU; arguments are as for ``Rollouts.ranges``."""
    spec = program_spec(model)
    if spec.prompt_shape:
        prompts = prompts[:, None].expand(2, *spec.prompt_shape)
    blocks = scenario(model).blocks
    noise = _noise(seed, index, (blocks, *spec.noise_shape))
    seeds = range(index * blocks, (index + 1) * blocks)
    return Inputs(prompts, noise, {}, synthetic_conditions(spec, seeds))


def _noise(seed: int, index: int, shape: tuple[int, ...]) -> Tensor:
    """Returns standard normal float32 on the CPU, which depends on seed and index alone."""
    # torch's CPU generator takes 32 bits of its seed.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {index}".encode()))
    return torch.randn(shape, generator=generator)
