"""The component ``text_encoder``: transformers' UMT5 encoder over one text."""

from typing import Any

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.umt5.part import Umt5Part
from vidc.plugins.signature import Role, Signature, TensorSpec

NAME = "text_encoder"


def create(config: TextEncoderConfig, dtype: torch.dtype, device: torch.device | str) -> nn.Module:
    """transformers' UMT5 encoder of these sizes; its weights are to be loaded.

    Its tensors are those of ``UMT5EncoderModel`` without ``shared.weight``, which is the token
    embedding under a second name.

    Args:
        dtype: of the weights. With float16, the second matmul of each feed-forward layer and the
            sum over the layers are computed in float32, as in transformers: UMT5 exceeds the range
            of float16 there.
    """
    from transformers import UMT5Config, UMT5EncoderModel

    with torch.device(device):
        # The plain attention is the one that every supported transformers has.
        encoder = UMT5EncoderModel(UMT5Config(**vars(config), attn_implementation="eager")).encoder
        if dtype is torch.float16:
            for block in encoder.block:
                dense = block.layer[-1].DenseReluDense
                dense.wo = _Float32Linear(dense.wo.in_features, dense.wo.out_features, bias=False)
    return nn.ModuleDict({"encoder": encoder}).to(dtype).eval().requires_grad_(False)


def component(part: Umt5Part, network: nn.Module) -> Component:
    """Returns the component that turns a text's tokens into embeddings.

    Args:
        part: sizes of the encoder.
        network: network of ``create``; shared, not copied. It takes only texts of this length
            afterwards.
    """
    length = part.length
    return Component(
        NAME,
        TextEncode(network, length),
        Signature(
            (
                TensorSpec("input_ids", (1, length), "int64", Role.INPUT),
                TensorSpec("attention_mask", (1, length), "int64", Role.INPUT),
                TensorSpec("text_embeds", (1, length, part.config.d_model), "float32", Role.OUTPUT),
            )
        ),
    )


class TextEncode(nn.Module):
    """Tokens and their mask, int64 [1, L], to embeddings, float32 [1, L, E]."""

    def __init__(self, network: nn.Module, length: int) -> None:
        super().__init__()
        self.text_encoder = network
        _fix_position_buckets(network.get_submodule("encoder"), length)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        """Returns embeddings, float32 [1, L, E], which are zero where the mask is zero."""
        encoder = self.text_encoder.get_submodule("encoder")
        hidden = encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return (hidden.float() * attention_mask[..., None],)


class _Float32Linear(nn.Linear):
    """Linear layer computed in float32; its weights may have any dtype."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input.float(), self.weight.float())


def _fix_position_buckets(encoder: Any, length: int) -> None:
    """Makes the bucket of each relative position a constant of the graph.

    transformers truncates logarithms that are integers up to rounding, so an engine with another
    rounding would choose other buckets.
    """
    attentions = [block.layer[0].SelfAttention for block in encoder.block]
    positions = torch.arange(length)
    buckets = attentions[0]._relative_position_bucket(positions[None, :] - positions[:, None])
    for attention in attentions:
        attention._relative_position_bucket = lambda relative: buckets.to(relative.device)
