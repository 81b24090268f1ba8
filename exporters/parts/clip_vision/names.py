"""Names of a CLIP image encoder's weights in the checkpoints that carry them.

transformers' names are canonical. The original names are those of open_clip, which keeps the
projections of an attention in one tensor.
"""

from collections.abc import Mapping

from vidc.exporters.checkpoint.layout import Layout, by_name, renamed
from vidc.exporters.checkpoint.lazy import LazyTensor

_TOP = {
    "class_embedding": "vision_model.embeddings.class_embedding",
    "positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "conv1": "vision_model.embeddings.patch_embedding",
    "ln_pre": "vision_model.pre_layrnorm",
    "ln_post": "vision_model.post_layernorm",
    "proj": "visual_projection.weight",
}
_LAYER = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn": "self_attn",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_FUSED = "self_attn.in_proj_"
_PROJECTION = "visual_projection.weight"


def canonical_name(name: str) -> str:
    """transformers' name of a parameter that has an open_clip name; any other stays as it is."""
    block, _, rest = name.partition(".")
    if block == "resblocks":
        number, _, inside = rest.partition(".")
        return f"vision_model.encoder.layers.{number}.{renamed(inside, _LAYER)}"
    return renamed(name, _TOP)


def split_projections(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Splits fused queries, keys and values, and transposes open_clip's projection."""
    result: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        head, fused, kind = name.partition(_FUSED)
        if fused:
            for index, letter in enumerate("qkv"):
                result[f"{head}self_attn.{letter}_proj.{kind}"] = _third(tensor, index)
        elif name == _PROJECTION:
            result[name] = _transposed(tensor)
        else:
            result[name] = tensor
    return result


def _third(tensor: LazyTensor, index: int) -> LazyTensor:
    rows = tensor.shape[0] // 3
    return LazyTensor(
        (rows, *tensor.shape[1:]),
        tensor.dtype,
        lambda: tensor.load()[index * rows : (index + 1) * rows],
    )


def _transposed(tensor: LazyTensor) -> LazyTensor:
    return LazyTensor(
        tuple(reversed(tensor.shape)), tensor.dtype, lambda: tensor.load().T.contiguous()
    )


OPEN_CLIP = Layout(
    "open_clip image encoder", ("resblocks", "ln_pre", "ln_post"), by_name(canonical_name)
)
LAYOUTS = (Layout("transformers CLIPVisionModelWithProjection", ("vision_model",)), OPEN_CLIP)
