"""The baseline on the weights of a bundle, eager and compiled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vidc.compiler.bench.baseline.layers import rotary_table
from vidc.compiler.bench.baseline.model import Transformer
from vidc.compiler.bench.baseline.stream import BaselineSession
from vidc.compiler.bench.baseline.vae import VaeDecoder
from vidc.compiler.config.tables import model_from_json
from vidc.exporters.config import ModelConfig
from vidc.runtime.manifest import Manifest

FORMS = {"eager": None, "compile": "inductor"}
"""What ``vidc bench --against`` names, and the backend of ``torch.compile`` that each runs on."""
_DECODER = ("decoder.", "post_quant_conv.")


class Baseline:
    """Networks of the public code on one set of weights.

    Args:
        config: of the model.
        transformer: weights by diffusers' names, all on one device and of one float dtype.
        vae: the same; what only the encoder needs is left out.
    """

    def __init__(
        self, config: ModelConfig, transformer: Mapping[str, Tensor], vae: Mapping[str, Tensor]
    ) -> None:
        self._config = config
        self._transformer = transformer
        self._vae = {name: w for name, w in vae.items() if name.startswith(_DECODER)}
        self._networks: dict[str | None, tuple[Transformer, VaeDecoder]] = {}

    @classmethod
    def from_bundle(cls, bundle: Path, manifest: Manifest, device: torch.device) -> Self:
        """The baseline of a bundle that has been verified; its weights are loaded once more."""
        weights = {
            group: load_file(bundle / manifest.weights[group].path, str(device))
            for group in ("transformer", "vae")
        }
        return cls(model_from_json(manifest.config), weights["transformer"], weights["vae"])

    def session(self, seed: int = 0, backend: str | None = None) -> BaselineSession:
        """Opens a stream.

        Args:
            seed: of noise that is not given.
            backend: of ``torch.compile``, None to run eagerly. Every layer of the transformer and
                the VAE's decoder are compiled for themselves, when they first run.
        """
        if backend not in self._networks:
            self._networks[backend] = self._build(backend)
        return BaselineSession(self._config, *self._networks[backend], seed)

    def _build(self, backend: str | None) -> tuple[Transformer, VaeDecoder]:
        with torch.device("meta"):
            transformer = Transformer(self._config.transformer)
            decoder = VaeDecoder(self._config.vae)
        _load(transformer, self._transformer)
        _load(decoder, self._vae)
        device = transformer.proj_out.weight.device
        transformer.table = rotary_table(self._config.transformer.head_dim).to(device)
        if backend is not None:
            for module in (*transformer.blocks, decoder.decoder):
                module.compile(backend=backend)
        return transformer, decoder


def _load(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    network.load_state_dict(weights, strict=True, assign=True)
    network.eval().requires_grad_(False)
