"""Files of GameNGen-repro: a UNet and a VAE of diffusers, and an embedding of actions.

A folder holds ``unet/``, ``vae/``, ``noise_scheduler/``, ``action_embedding_model.safetensors`` and
``embedding_info.json`` (arnaudstiegler/gameNgen-repro).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidc.exporters.checkpoint.check import check_dtypes, check_finite
from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.load import Weights, load_weights
from vidc.exporters.checkpoint.read import read_checkpoint
from vidc.exporters.parts.gamengen_unet.config import GameNGenConfig
from vidc.exporters.parts.gamengen_unet.names import ACTIONS, pack, separate_shapes
from vidc.exporters.parts.gamengen_unet.network import GameNGenUnet
from vidc.plugins.errors import BuildError, UsageError

if TYPE_CHECKING:
    from vidc.exporters.parts.gamengen_unet.part import GameNGenUnetPart

_FILE = "action_embedding_model.safetensors"
_NAME = "weight"
"""Name of the embedding in its file."""


def action_file(checkpoint: Path) -> Path:
    """Returns the file of the embedding of actions that belongs to a UNet.

    Args:
        checkpoint: the folder ``unet/``, or a file in it.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    return folder.absolute().parent / _FILE


def load(
    part: "GameNGenUnetPart",
    checkpoint: Path,
    loras: Sequence[Path],
    layouts: Sequence[Layout],
    ema: bool,
) -> Weights:
    """Reads both files; raises as ``GameNGenUnetPart.load``."""
    actions = action_file(checkpoint)
    if not actions.exists():
        raise UsageError(
            "VIDC-CHECKPOINT-MISSING",
            f"there is no {actions}, which holds the embedding of actions",
            "give the whole download: a folder with unet/, vae/ and that file",
        )
    network = part.network("fp32")
    assert isinstance(network, GameNGenUnet)
    loaded = load_weights(
        checkpoint, loras, separate_shapes(network), layouts, part.disagreements,
        ema=ema, adapt=part.adapt,
    )  # fmt: skip
    tensors = read_checkpoint(actions).tensors
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    wanted = (part.config.actions, part.config.action_dim)
    if shapes != {_NAME: wanted}:
        found = ", ".join(f"{name} {[*shape]}" for name, shape in [*shapes.items()][:4])
        raise BuildError(
            "VIDC-CHECKPOINT-MISMATCH",
            f"{actions} has {found}, expected {_NAME} {[*wanted]}: an embedding for each action",
            "it is another game's, or the preset is: --set model.actions=N builds a model of N "
            "actions",
        )
    check_dtypes(tensors, actions)
    check_finite(tensors, actions)
    files = [*loaded.provenance["files"], actions.name]
    packed = pack(network, {ACTIONS: tensors[_NAME], **loaded.tensors})
    return Weights(packed, loaded.provenance | {"files": files})


def config_settings(sizes: GameNGenConfig) -> dict[str, Any]:
    """Settings that the config of diffusers' UNet may not contradict."""
    return {
        "in_channels": 4 * (sizes.past + 1),
        "out_channels": 4,
        "block_out_channels": sizes.channels,
        "attention_head_dim": sizes.heads,
        "layers_per_block": sizes.layers,
        "cross_attention_dim": sizes.action_dim,
        "num_class_embeds": sizes.buckets,
        "transformer_layers_per_block": 1,
        "down_block_types": [*["CrossAttnDownBlock2D"] * 3, "DownBlock2D"],
        "mid_block_type": "UNetMidBlock2DCrossAttn",
        "up_block_types": ["UpBlock2D", *["CrossAttnUpBlock2D"] * 3],
        "act_fn": "silu",
        "attention_type": "default",
        "norm_num_groups": 32,
        "norm_eps": 1e-5,
        "flip_sin_to_cos": True,
        "freq_shift": 0,
        "time_embedding_type": "positional",
        "resnet_time_scale_shift": "default",
        "conv_in_kernel": 3,
        "conv_out_kernel": 3,
        "downsample_padding": 1,
        "mid_block_scale_factor": 1,
        "dropout": 0.0,
        "resnet_skip_time_act": False,
        "resnet_out_scale_factor": 1.0,
        "addition_embed_type_num_heads": ...,
        "sample_size": ...,
    }
