"""A component: one graph with a fixed signature."""

from dataclasses import dataclass

from torch import nn

from vidc.plugins.signature import Signature


@dataclass(frozen=True)
class Component:
    """A module ready for export, and the names of its tensors.

    ``module.forward`` takes ``signature.arguments`` in order, writes its states in place and
    returns a tuple of ``signature.outputs``. Its parameters are named ``<weights file>.<key>``:
    ``transformer.blocks.0.ffn.net.2.weight`` is key ``blocks.0.ffn.net.2.weight`` of
    ``weights/transformer.safetensors``. The module may be on the meta device.

    ``aligned`` is True if each run writes contiguous slots of the KV ring, or all slots except
    the sink's: the first slots, whose tokens are never overwritten.
    """

    name: str
    module: nn.Module
    signature: Signature
    aligned: bool = False
