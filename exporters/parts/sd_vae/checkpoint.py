"""Files of a Stable Diffusion VAE: its folder, and a decoder that was trained further.

GameNGen's decoder is tuned to the game and is saved alone, as ``trained_vae_decoder.pth``
(arnaudstiegler/gameNgen-repro).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from vidc.exporters.checkpoint.layout import Layout, by_name
from vidc.exporters.checkpoint.load import Weights, load_weights
from vidc.exporters.parts.sd_vae.names import canonical_name, disagreements

if TYPE_CHECKING:
    from vidc.exporters.parts.sd_vae.part import SdVaePart

_FILE = "trained_vae_decoder.pth"
_DECODER = "decoder."
_LAYOUT = Layout(
    "diffusers decoder of AutoencoderKL", ("mid_block", "up_blocks"), by_name(canonical_name)
)


def decoder_file(checkpoint: Path) -> Path:
    """Returns the file of a tuned decoder that belongs to a VAE; it need not exist.

    Args:
        checkpoint: the folder ``vae/``, or a file in it.
    """
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    return folder.absolute().parent / _FILE


def with_decoder(part: "SdVaePart", loaded: Weights, file: Path) -> Weights:
    """Replaces the decoder of a VAE by that of a file.

    Args:
        part: sizes.
        loaded: the whole VAE.
        file: of the decoder.

    Raises:
        VidcError: as ``load_weights``.
    """
    shapes = {
        name.removeprefix(_DECODER): shape
        for name, shape in part.shapes().items()
        if name.startswith(_DECODER)
    }
    decoder = load_weights(file, (), shapes, (_LAYOUT,), disagreements, adapt=part.adapt)
    tensors = {_DECODER + name: tensor for name, tensor in decoder.tensors.items()}
    files = [*loaded.provenance["files"], file.name]
    return Weights(loaded.tensors | tensors, loaded.provenance | {"files": files})
