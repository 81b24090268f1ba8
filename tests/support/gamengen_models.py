"""Small GameNGen worlds: vidc's and the oracle's, with the same weights."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import gamengen_oracle as oracle
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from vidc.compiler.config.presets import load_preset
from vidc.compiler.validate.play import Player
from vidc.compiler.validate.reference import part_engines, player
from vidc.exporters.families.latent_world import LatentWorld
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.exporters.part import Part
from vidc.exporters.parts.gamengen_unet.names import ACTIONS, stacked_names

GUIDED = {"guidance": 1.5}
PUBLIC_GUIDANCE = {"guidance": 1.5, "zeroed": 9}
NOISED = {"past_noise": 0.3}


def model_of(preset: str = "latent-world-tiny", **tables) -> LatentWorld:
    """Returns the model of a preset, with some settings of its tables replaced."""
    found = load_preset(preset).model.to_json()
    return LatentWorld.from_tables({name: found[name] | tables.get(name, {}) for name in found})


def oracle_networks(model: LatentWorld) -> tuple[nn.Module, nn.Module, nn.Embedding]:
    """Returns diffusers' UNet and VAE, and the embedding of actions, at a model's sizes."""
    sizes = model.unet
    unet = oracle.unet(
        sizes.channels, sizes.heads, sizes.layers, sizes.action_dim, sizes.past, sizes.buckets
    )
    vae = oracle.vae(model.vae.channels, model.vae.layers)
    return unet, vae, nn.Embedding(sizes.actions, sizes.action_dim)


@dataclass(frozen=True)
class Pair:
    """A model of the family, and the oracle's networks with the same weights."""

    model: LatentWorld
    seed: int = 3

    def weights(self, part: Part) -> dict[str, Tensor]:
        """Weights of one of the model's parts."""
        return {name: tensor.load() for name, tensor in part.random_weights(self.seed).items()}

    def network(self, part: Part, precision: str = "fp32") -> nn.Module:
        """The part's own network."""
        dtype = PRECISIONS[precision]
        weights = {name: weight.to(dtype) for name, weight in self.weights(part).items()}
        return with_weights(part.network(precision), weights)

    def engines(self, precision: str = "fp32"):
        """Engines of the model's components in PyTorch."""
        found = {}
        for part in self.model.parts.values():
            found |= part_engines(part, self.network(part, precision))
        return found

    @property
    def player(self) -> Player:
        """Plays the model's engines in PyTorch."""
        return player(self.model, self.engines(), torch.device("cpu"))

    @cached_property
    def networks(self) -> tuple[nn.Module, nn.Module, nn.Embedding]:
        """diffusers' networks, and the embedding of actions."""
        unet, vae, embedding = oracle_networks(self.model)
        own = separated(self.model.unet_part, self.weights(self.model.unet_part))
        embedding.weight.data = own.pop(ACTIONS)
        shapes = {name: weight.shape for name, weight in unet.state_dict().items()}
        # diffusers' projections are convolutions of one pixel.
        unet.load_state_dict({name: own[name].view(shapes[name]) for name in own})
        vae.load_state_dict(self.weights(self.model.vae_part))
        return unet, vae, embedding

    def world(self, start) -> oracle.World:
        """Returns the oracle's world in a state ``(past, actions)``."""
        sampler = self.model.sampler
        return oracle.World(
            *self.networks, *(tensor.clone() for tensor in start), sampler.steps,
            sampler.guidance, sampler.zeroed, sampler.past_noise,
        )  # fmt: skip

    def save(self, folder: Path) -> Path:
        """Writes the folder of a download, as GameNGen-repro's ``save_model`` does."""
        unet, vae, embedding = self.networks
        unet.save_pretrained(folder / "unet")
        vae.save_pretrained(folder / "vae")
        oracle.scheduler().save_pretrained(folder / "noise_scheduler")
        save_file(embedding.state_dict(), folder / "action_embedding_model.safetensors")
        info = {"num_embeddings": len(embedding.weight), "embedding_dim": embedding.embedding_dim}
        (folder / "embedding_info.json").write_text(json.dumps(info))
        return folder


def separated(part: Part, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Splits the linear layers that the network stacks, under diffusers' names."""
    found = dict(weights)
    for name, sources in stacked_names(part.network("fp32")).items():
        pieces = found.pop(name).split([*sources.values()])
        found |= dict(zip(sources, pieces, strict=True))
    return found


def pair(**tables) -> Pair:
    """Returns a tiny model, with some settings replaced, and the oracle of it."""
    return Pair(model_of(**tables))


def drawn(*shape, seed: int = 0) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def start_of(model: LatentWorld, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Draws a state: past latents and the indices of their actions."""
    past = model.unet.past
    latents = drawn(past, 4, *model.vae_part.latent_size, seed=seed)
    return latents, torch.tensor(actions_of(model, past, seed))


def actions_of(model: LatentWorld, count: int, seed: int = 2) -> list[int]:
    """Draws indices of actions."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.unet.actions, (count,), generator=generator).tolist()
