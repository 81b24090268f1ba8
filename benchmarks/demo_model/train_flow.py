"""Trains the demo model's transformer and text encoder by flow matching over clean histories.

    PYTHONPATH=benchmarks python -m demo_model.train_flow --vae out/demo/vae \\
        --out out/demo/flow --minutes 10
    PYTHONPATH=benchmarks python -m demo_model.train_flow --vae out/demo/vae \\
        --out out/demo/flow --minutes 10 --finish

A step is a batch of clips, in which a block follows from those before it, and a batch of first
blocks, which follow from nothing but the prompt: objects are made in these, and a clip has one.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_model.train_vae import load_vae
from demo_model.training import checkpoint, log
from demo_model.training.batches import Networks, draw_batch, flow_loss, without_prompt
from demo_model.training.forward import Angles, layer_forward
from demo_model.training.loop import Options, add_options, generator, options_of, train
from demo_model.training.lowered import lowered
from demo_model.training.networks import (
    PRESET,
    Sizes,
    demo_sizes,
    new_text_encoder,
    new_transformer,
)
from demo_model.training.shelves import Encoder, Plan, Shelves
from vidc.exporters.parts.causal_wan.network import CausalWan


@dataclass(frozen=True)
class Batches:
    """What a step sees.

    Attributes:
        clips: a batch of them.
        starts: a batch of first blocks.
        unprompted: share of first blocks without a prompt, so that a prompt's pull can be told.
        emphasis, disturbance: see ``flow_loss``.
    """

    clips: int = 24
    starts: int = 448
    unprompted: float = 0.1
    emphasis: float = 16.0
    disturbance: float = 0.2


def trainable(sizes: Sizes) -> nn.ModuleDict:
    """The networks of this stage under the names that a checkpoint has."""
    return nn.ModuleDict(
        {"transformer": new_transformer(sizes), "text_encoder": new_text_encoder(sizes)}
    )


def load_trained(folder: Path, sizes: Sizes, device: str) -> nn.ModuleDict:
    """The mean weights of a stage on latents.

    Raises:
        FileNotFoundError: the folder has no checkpoint.
    """
    modules = trainable(sizes)
    modules.load_state_dict(checkpoint.trained(folder / "checkpoint")[0])
    return modules.to(device)


def networks_of(modules: nn.ModuleDict, sizes: Sizes, farthest: int, options: Options) -> Networks:
    """Modules with what a forward needs beside them."""
    layer = torch.compile(layer_forward, dynamic=True) if options.compile else None
    angles = Angles(sizes.stream, farthest, torch.device(options.device))
    transformer, text = modules["transformer"], modules["text_encoder"]
    return Networks(transformer, text, angles, layer)  # type: ignore[arg-type]


class FlowLoss:
    """The loss of a step: clips and first blocks, a mean square error each."""

    def __init__(
        self, networks: Networks, shelves: Shelves, sizes: Sizes, batches: Batches, options: Options
    ) -> None:
        self._networks = networks
        self._shelves = shelves
        self._shift = sizes.config.sampler.shift
        self._batches = batches
        self._options = options

    def __call__(self, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Loss, and that of either part."""
        options, plan = self._options, self._batches
        draw = generator(options.seed, step, 1, options.device)
        clips = draw_batch(self._shelves.clips(step), plan.clips, draw)
        starts = draw_batch(self._shelves.starts(step), plan.starts, draw)
        tokens = without_prompt(starts.tokens, plan.unprompted, draw)
        parts = (clips, starts.with_tokens(tokens))

        def taught(transformer: CausalWan) -> list[tuple[Tensor, Tensor]]:
            networks = replace(self._networks, transformer=transformer)
            means = (self._shift, plan.emphasis, plan.disturbance)
            return [flow_loss(networks, part, *means, draw) for part in parts]

        (later, clip), (first, start) = lowered(self._networks.transformer, options.device, taught)
        return later + first, {"clips": clip, "starts": start}


def run(options: Options, sizes: Sizes, vae_folder: Path, plan: Plan, batches: Batches) -> None:
    """Trains and prints a table."""
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    vae, statistics = load_vae(vae_folder, sizes, options.device)
    shelves = Shelves(Encoder(sizes, vae, statistics, options.device), plan, options.seed)
    modules = trainable(sizes).to(options.device)
    networks = networks_of(modules, sizes, plan.farthest, options)
    loss = FlowLoss(networks, shelves, sizes, batches, options)
    facts = {"part": "flow", "mean": statistics.mean, "std": statistics.std}
    steps = train(options, modules, loss, facts, shelves.prepare)
    print(log.table(log.read(options.out / "log.jsonl")))
    print(f"{steps} steps")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """The options of ``Plan``."""
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--vae", type=Path, required=True, help="what train_vae left")
    for name in ("blocks", "clips", "starts", "every", "keep", "farthest"):
        parser.add_argument(f"--shelf-{name}", type=int, default=getattr(Plan, name))


def plan_of(arguments: argparse.Namespace) -> Plan:
    """What a script was told of shelves."""
    names = ("blocks", "clips", "starts", "every", "keep", "farthest")
    return Plan(**{name: getattr(arguments, f"shelf_{name}") for name in names})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_options(parser, rate=2e-3)
    add_plan(parser)
    parser.add_argument("--clips", type=int, default=Batches.clips)
    parser.add_argument("--starts", type=int, default=Batches.starts)
    parser.add_argument("--emphasis", type=float, default=Batches.emphasis)
    arguments = parser.parse_args()
    batches = Batches(arguments.clips, arguments.starts, emphasis=arguments.emphasis)
    sizes = demo_sizes(arguments.preset)
    run(options_of(arguments), sizes, arguments.vae, plan_of(arguments), batches)


if __name__ == "__main__":
    main()
