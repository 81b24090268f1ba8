"""Part ``umt5``: transformers' UMT5 encoder with its tokenizer, from a local folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.plugins.names import TOKENIZER

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component


@dataclass(frozen=True)
class Umt5Part(Part):
    """A UMT5 encoder over one text.

    Attributes:
        config: sizes of the network.
        length: tokens of every text.
    """

    group: ClassVar[str] = "text_encoder"
    libraries: ClassVar[tuple[str, ...]] = ("transformers", "tokenizers")
    needs_tokenizer: ClassVar[bool] = True
    files: ClassVar[tuple[str, ...]] = (TOKENIZER,)
    config: TextEncoderConfig
    length: int

    @property
    def component_names(self) -> tuple[str, ...]:
        """One component."""
        return ("text_encoder",)

    def network(self, precision: str) -> "nn.Module":
        """Returns transformers' encoder on the meta device."""
        from vidc.exporters.models import PRECISIONS
        from vidc.exporters.parts.umt5.network import create

        return create(self.config, PRECISIONS[precision], "meta")

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the encoder's component; the network then takes only texts of one length."""
        from vidc.exporters.parts.umt5.network import component

        return {"text_encoder": component(self, network)}

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights that preserve the scale of activations."""
        from vidc.exporters.parts.umt5.weights import random_weight

        return random_weight(name, shape, seed)

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads the encoder's weights from its own checkpoint or from that of a whole UMT5."""
        from vidc.exporters.parts.umt5.weights import load_encoder_weights

        return load_encoder_weights(checkpoint, self.config, layouts)

    def write_tokenizer(self, folder: Path, tokenizer: Path) -> None:
        """Writes the tokenizer as the runtime reads it."""
        from vidc.exporters.parts.umt5.tokenizer import tokenizer_json

        text = tokenizer_json(tokenizer, self.config, self.length)
        (folder / TOKENIZER).write_text(text)

    def tokenizer_files(self, tokenizer: Path) -> tuple[Path, ...]:
        """Returns the file and, for a SentencePiece model, its settings beside it."""
        from vidc.exporters.parts.umt5.tokenizer import tokenizer_files

        return tokenizer_files(tokenizer)

    def tokenizer_libraries(self, tokenizer: Path) -> tuple[str, ...]:
        """Returns the packages that read a SentencePiece model."""
        from vidc.exporters.parts.umt5.tokenizer import is_sentencepiece

        return ("sentencepiece", "protobuf") if is_sentencepiece(tokenizer) else ()

    def load_settings(self) -> dict[str, Any]:
        """Returns the sizes and the length that the tokenizer pads to."""
        return {**super().load_settings(), "length": self.length}

    @property
    def weights_elements(self) -> int:
        """Elements of the token embedding and of the matrices of all layers."""
        sizes = self.config
        attention = 4 * sizes.d_model * sizes.num_heads * sizes.d_kv
        # Gated: two matrices in and one out.
        layer = attention + 3 * sizes.d_model * sizes.d_ff
        return sizes.vocab_size * sizes.d_model + sizes.num_layers * layer
