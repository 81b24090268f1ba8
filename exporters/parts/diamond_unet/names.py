"""Names of a DIAMOND agent's weights in its checkpoints."""

from collections.abc import Mapping, Sequence

from torch import nn

from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.parts.diamond_unet.config import DenoiserConfig, UNetConfig, UpsamplerConfig
from vidc.exporters.parts.diamond_unet.network import InnerModel
from vidc.exporters.parts.stacked_linears import stack

LAYOUTS = (Layout("DIAMOND agent", ("inner_model",)),)
OTHER_NETWORKS = ("rew_end_model", "actor_critic")
"""First words of an agent's other networks, which make no frames."""
_FUSED = "modulation"


def separate_shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a checkpoint's weights by name: one Linear for each norm.

    Args:
        network: a ``WorldModel``, which may be on the meta device.
    """
    shapes = {}
    for name, weight in network.state_dict().items():
        prefix, _, rest = name.partition(f".{_FUSED}.")
        if not rest:
            shapes[name] = tuple(weight.shape)
            continue
        model = _inner_model(network, prefix)
        shapes |= {
            f"{prefix}.{norm}.linear.{rest}": (width, *weight.shape[1:])
            for norm, width in zip(model.norms, model.widths, strict=True)
        }
    return shapes


def fuse(network: nn.Module, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Stacks the Linears of all norms of a network, in the order in which the norms run.

    Args:
        network: a ``WorldModel``, which may be on the meta device.
        tensors: a checkpoint's weights, as ``separate_shapes`` lists them.
    """
    fused = {}
    for name in network.state_dict():
        prefix, _, rest = name.partition(f".{_FUSED}.")
        if not rest:
            fused[name] = tensors[name]
            continue
        norms = _inner_model(network, prefix).norms
        fused[name] = stack([tensors[f"{prefix}.{norm}.linear.{rest}"] for norm in norms])
    return fused


def _inner_model(network: nn.Module, name: str) -> InnerModel:
    found = network.get_submodule(name)
    assert isinstance(found, InnerModel)
    return found


def disagreements(
    found: Mapping[str, Sequence[int]], denoiser: DenoiserConfig, upsampler: UpsamplerConfig
) -> list[str]:
    """Lists settings that a checkpoint's shapes contradict, as ``denoiser.actions = 6, not 51``."""
    problems = []
    has_upsampler = any(name.startswith("upsampler.") for name in found)
    if has_upsampler != (upsampler.factor > 1):
        problems.append("an upsampler, and none" if has_upsampler else "no upsampler, and one")
    configs: dict[str, UNetConfig] = {"denoiser": denoiser, "upsampler": upsampler}
    for table, config in configs.items():
        prefix = f"{table}.inner_model."
        embedding = found.get(prefix + "act_emb.0.weight")
        if (
            isinstance(config, DenoiserConfig)
            and embedding is not None
            and embedding[0] != config.actions
        ):
            problems.append(f"{table}.actions = {embedding[0]}, not {config.actions}")
        cond = found.get(prefix + "cond_proj.0.weight")
        if cond is not None and cond[0] != config.cond:
            problems.append(f"{table}.cond = {cond[0]}, not {config.cond}")
        widths = _widths(found, prefix)
        if widths and widths != config.channels:
            problems.append(f"{table}.channels = {[*widths]}, not {[*config.channels]}")
    return problems


def _widths(found: Mapping[str, Sequence[int]], prefix: str) -> tuple[int, ...]:
    """Returns the width of each level of a checkpoint's UNet."""
    name = prefix + "unet.d_blocks.{}.resblocks.0.conv1.weight"
    widths: list[int] = []
    while (shape := found.get(name.format(len(widths)))) is not None:
        widths.append(shape[0])
    return tuple(widths)
