"""Base class of a program's parameters, which a bundle's manifest holds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError, nearest
from vidc.plugins.signature import Signature, TensorSpec


@dataclass(frozen=True)
class ProgramSpec:
    """Base class of a program's parameters, stored in a bundle's manifest.

    A subclass is a frozen dataclass of JSON values and tuples. It raises ValueError for a value
    out of range. `vidc run` generates ``default_blocks`` at ``default_fps``.
    """

    default_blocks: ClassVar[int] = 8
    default_fps: ClassVar[int] = 16

    @property
    def components(self) -> tuple[str, ...]:
        """Components that a session runs, in the order of first use."""
        raise NotImplementedError

    @property
    def decode_components(self) -> tuple[str, ...]:
        """Components that decode; a separate one for the first block comes first."""
        raise NotImplementedError

    @property
    def decoders(self) -> tuple[str, ...]:
        """Names of the decoders that a session can choose; empty if there is no choice."""
        return ()

    def with_decoder(self, name: str | None) -> Self:
        """Returns the parameters of a session with one of the decoders, by default the first.

        Raises:
            UsageError: ``VIDC-SESSION-DECODER``, there is no decoder of this name.
        """
        if name is not None and name not in self.decoders:
            raise UsageError(
                "VIDC-SESSION-DECODER",
                f"the bundle has no decoder {str(name)[:64]!r} to choose",
                nearest(str(name)[:64], self.decoders)
                if self.decoders
                else "leave the decoder out",
            )
        if not self.decoders:
            return self
        chosen: dict[str, Any] = {"decoders": (name or self.decoders[0],)}
        return replace(self, **chosen)

    @property
    def prompt_shape(self) -> tuple[int, ...]:
        """Shape of a prompt's embeddings, ``[videos, L, E]``; empty if sessions take no prompts."""
        return ()

    @property
    def condition_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of what ``Session.condition`` takes, by name."""
        return {}

    def draw_conditions(self, seed: int) -> dict[str, Tensor]:
        """Draws tensors for ``Session.condition``, uniform from -1 to 1, float32 on the CPU."""
        generator = torch.Generator().manual_seed(seed)
        found = self.condition_shapes
        return {name: torch.rand(found[name], generator=generator) * 2 - 1 for name in found}

    @property
    def videos(self) -> int:
        """Videos that a session generates side by side."""
        return 1

    @property
    def latent_frames(self) -> int:
        """Latent frames of a block."""
        return 1

    @property
    def video_frames(self) -> int:
        """Video frames of a block; the first block may have fewer."""
        return 1

    @property
    def filling(self) -> int:
        """Number of blocks after which every further block takes the same work."""
        return 1

    @property
    def full_inputs(self) -> Mapping[str, float]:
        """Values of the scalar inputs of a pass after ``filling`` blocks, by input."""
        return {}

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Number of calls by action and component.

        Actions are ``block``, ``switch`` and the decoder's name in metrics, the first one of
        ``Session.decoder_names``.
        """
        raise NotImplementedError

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of the explicit noise of a block; the first dimension counts denoising steps."""
        raise NotImplementedError

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a video frame."""
        raise NotImplementedError

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes that determine the time of a block, as JSON values."""
        return {"height": self.frame_size[0], "width": self.frame_size[1]}

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the parameters with the engines' tensors.

        Args:
            signatures: by component, of every engine of the bundle.

        Raises:
            ValueError: a tensor that the program uses is missing or has another shape.
        """

    def smaller(self, states: Iterable[TensorSpec], needed: int, available: int) -> str:
        """Returns a hint for a smaller build that fits the device, or an empty string.

        Args:
            states: of a session.
            needed: bytes that the bundle needs with one session.
            available: bytes that the device has.
        """
        return ""
