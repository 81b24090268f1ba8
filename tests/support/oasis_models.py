"""Small Oasis models: the oracle's and vidc's of the same sizes and weights."""

from dataclasses import dataclass
from pathlib import Path

import oasis_oracle as oracle
import torch
from torch import Tensor, nn

from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import part_engines, player
from vidc.exporters.families.oasis import Oasis
from vidc.exporters.models import with_weights

TABLES = {
    "model": {"dim": 64, "heads": 4, "layers": 3, "actions": 6, "analog": [3, 4]},
    "vae": {"dim": 64, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "patch": 5},
    "stream": {"height": 30, "width": 40, "window": 6},
    "sampler": {"steps": 4},
}


@dataclass(frozen=True)
class Pair:
    """A model of the family, and the oracle with the same weights."""

    model: Oasis
    transformer: oracle.Transformer
    vae: oracle.Vae

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The oracle's networks by weights group."""
        return {"oasis": self.transformer, "vae": self.vae}

    @property
    def engines(self):
        """Engines of the model's components in PyTorch."""
        engines = {}
        for group, part in self.model.parts.items():
            network = with_weights(part.network("fp32"), self.networks[group].state_dict())
            engines |= part_engines(part, network)
        return engines

    def transformer_network(self) -> nn.Module:
        """Returns vidc's transformer with the oracle's weights."""
        part = self.model.transformer_part
        return with_weights(part.network("fp32"), self.transformer.state_dict())

    @property
    def player(self) -> Player:
        """Plays the model's engines in PyTorch."""
        return player(self.model, self.engines, torch.device("cpu"))

    def world(self) -> oracle.World:
        """Returns a new stream of the oracle."""
        stream, sampler = self.model.stream, self.model.sampler
        return oracle.World(self.transformer, stream.window, sampler.steps)

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Writes both checkpoints as a download has them."""
        from safetensors.torch import save_file

        files = folder / "oasis500m.safetensors", folder / "vit-l-20.safetensors"
        head = self.model.transformer.head_dim
        shared = {
            "blocks.0.s_attn.rotary_emb.freqs": torch.linspace(1, 128, head // 4) * torch.pi,
            "blocks.0.t_attn.rotary_emb.freqs": 10000.0 ** (-torch.arange(0, head, 2) / head),
        }
        for file, network, more in zip(files, self.networks.values(), (shared, {}), strict=True):
            tensors = network.state_dict() | more
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        return files


def sizes_of(model: Oasis) -> oracle.Sizes:
    config, vae = model.transformer, model.vae
    return oracle.Sizes(
        config.dim, config.heads, config.layers, config.channels, config.patch, config.actions,
        model.latent_size, vae.dim, vae.heads, vae.encoder_layers, vae.decoder_layers, vae.patch,
    )  # fmt: skip


def pair(seed: int = 0, **tables) -> Pair:
    """Returns a model of ``TABLES``, with some settings replaced, and the oracle of it."""
    merged = {name: table | tables.get(name, {}) for name, table in TABLES.items()}
    model = Oasis.from_tables(merged)
    sizes = sizes_of(model)
    transformer = oracle.drawn(oracle.Transformer(sizes), seed)
    return Pair(model, transformer, oracle.drawn(oracle.Vae(sizes), seed + 1))


def actions_of(model: Oasis, count: int, seed: int = 1) -> Tensor:
    """Draws actions, float32 ``[count, inputs]``."""
    generator = torch.Generator().manual_seed(100 + seed)
    values = torch.rand(count, model.transformer.actions, generator=generator)
    analog = list(model.transformer.analog)
    actions = (values > 0.6).float()
    actions[:, analog] = values[:, analog] * 2 - 1
    return actions


def images_of(model: Oasis, count: int, seed: int = 1) -> Tensor:
    """Draws images, uint8 ``[count, H, W, 3]``."""
    generator = torch.Generator().manual_seed(200 + seed)
    shape = (count, model.stream.height, model.stream.width, 3)
    return torch.randint(256, shape, generator=generator, dtype=torch.uint8)
