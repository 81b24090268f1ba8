"""Names of a GameNGen UNet's weights in checkpoints, which have diffusers' names.

The network stacks linear layers of one input: see ``GameNGenUnet``.
"""

from collections.abc import Mapping, Sequence

from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.parts.gamengen_unet.config import GameNGenConfig
from vidc.exporters.parts.gamengen_unet.network import GameNGenUnet
from vidc.exporters.parts.stacked_linears import stack

LAYOUTS = (Layout("diffusers UNet2DConditionModel", ("down_blocks", "mid_block", "up_blocks")),)
ACTIONS = "action_embedding.weight"


def stacked_names(network: GameNGenUnet) -> dict[str, dict[str, int]]:
    """Returns each stacked parameter's sources in a checkpoint, with their rows."""
    named = {module: name for name, module in network.named_modules()}
    layers, found = network.layers, dict[str, dict[str, int]]()
    for kind in ("weight", "bias"):
        found[f"shifts.{kind}"] = {
            f"{named[resnet]}.time_emb_proj.{kind}": rows
            for (resnet, _), rows in zip(layers, network.shift_widths, strict=True)
        }
    tokens = found["action_kv.weight"] = dict[str, int]()
    for transformer in (each for _, each in layers if each is not None):
        block, rows = f"{named[transformer]}.transformer_blocks.0", transformer.channels
        own = {f"{block}.attn1.to_{kind}.weight": rows for kind in "qkv"}
        found[f"{block}.attn1.to_qkv.weight"] = own
        tokens |= {f"{block}.attn2.to_{kind}.weight": rows for kind in "kv"}
    return found


def separate_shapes(network: GameNGenUnet) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a checkpoint's weights, but for the embedding of actions.

    Args:
        network: may be on the meta device.
    """
    stacked, shapes = stacked_names(network), dict[str, tuple[int, ...]]()
    for name, weight in network.state_dict().items():
        sources = stacked.get(name)
        if sources is None:
            shapes[name] = tuple(weight.shape)
        else:
            shapes |= {source: (rows, *weight.shape[1:]) for source, rows in sources.items()}
    del shapes[ACTIONS]
    return shapes


def pack(network: GameNGenUnet, tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Returns the network's weights, of which some are stacked.

    Args:
        network: may be on the meta device.
        tensors: the tensors that ``separate_shapes`` lists, and the embedding of actions.
    """
    stacked = stacked_names(network)
    return {
        name: stack([tensors[source] for source in stacked[name]])
        if name in stacked
        else tensors[name]
        for name in network.state_dict()
    }


def disagreements(found: Mapping[str, Sequence[int]], sizes: GameNGenConfig) -> list[str]:
    """Lists settings that a checkpoint's shapes contradict, as ``model.past = 3, not 9``."""
    problems = []
    stem, classes = found.get("conv_in.weight"), found.get("class_embedding.weight")
    if stem is not None and stem[1] != 4 * (sizes.past + 1):
        problems.append(f"model.past = {stem[1] // 4 - 1}, not {sizes.past}")
    if stem is not None and stem[0] != sizes.channels[0]:
        problems.append(f"model.channels begins with {stem[0]}, not {sizes.channels[0]}")
    if classes is not None and classes[0] != sizes.buckets:
        problems.append(f"model.buckets = {classes[0]}, not {sizes.buckets}")
    keys = found.get("mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight")
    if keys is not None and keys[1] != sizes.action_dim:
        problems.append(f"model.action_dim = {keys[1]}, not {sizes.action_dim}")
    return problems
