"""Static sizes of a stream and its sampler: the spec of program ``causal_video``."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime.programs.spec import ProgramSpec

_MAX_SIZE = 2**24
"""Upper limit of a size; products of sizes stay within int64."""
_CLEAN_PASS = "kv_update"
_Shape = tuple[int | None, ...]
"""Sizes of a tensor's axes; None where the spec does not say."""


@dataclass(frozen=True)
class StreamSpec(ProgramSpec):
    """Static sizes of one stream and its sampler.

    Attributes:
        batch: number of videos.
        block: latent frames in a block.
        window: latent frames the KV ring holds, sink included.
        sink: latent frames at the start of the stream that never leave the ring.
        frame_tokens: tokens of one latent frame.
        grid: rows and columns of tokens in a frame.
        latent: channels, height and width of a latent frame.
        video: height and width of a decoded frame, in pixels.
        head_dim: channels of one attention head.
        text: length and width of a prompt's embedding.
        timesteps: of the denoising steps, from noise to clean.
        sigmas: share of noise in the latent at each denoising step.
        context_timestep: timestep of the clean pass that writes keys and values.
        pending: component of the clean pass, always ``kv_update``. A block's pass is pending when
            the block is returned: it runs at the start of the next block, and a prompt switch
            takes its place.
        decoders: first words of the names of the components that decode; sessions use the first
            one by default.
    """

    batch: int
    block: int
    window: int
    sink: int
    frame_tokens: int
    grid: tuple[int, int]
    latent: tuple[int, int, int]
    video: tuple[int, int]
    head_dim: int
    text: tuple[int, int]
    timesteps: tuple[float, ...]
    sigmas: tuple[float, ...]
    context_timestep: float
    pending: str
    decoders: tuple[str, ...] = ("vae",)

    def __post_init__(self) -> None:
        sizes = {
            "batch": (self.batch,),
            "block": (self.block,),
            "window": (self.window,),
            "frame_tokens": (self.frame_tokens,),
            "grid": self.grid,
            "latent": self.latent,
            "video": self.video,
            "head_dim": (self.head_dim,),
            "text": self.text,
        }
        for name, values in sizes.items():
            if not all(0 < value <= _MAX_SIZE for value in values):
                raise ValueError(f"{name} = {list(values)} is not between 1 and {_MAX_SIZE}")
        if self.sink < 0:
            raise ValueError(f"sink = {self.sink} is negative")
        if self.window < self.sink + self.block:
            raise ValueError(
                f"window = {self.window} is smaller than sink + block = {self.sink} + {self.block}"
            )
        if math.prod(self.grid) != self.frame_tokens:
            raise ValueError(
                f"grid = {list(self.grid)} does not hold frame_tokens = {self.frame_tokens}"
            )
        if self.pending != _CLEAN_PASS:
            raise ValueError(f"pending = {self.pending!r}, expected {_CLEAN_PASS!r}")
        if not self.timesteps or len(self.timesteps) != len(self.sigmas):
            raise ValueError(
                f"{len(self.timesteps)} timesteps and {len(self.sigmas)} sigmas: expected the "
                "same number, at least 1"
            )
        for name, steps in (
            ("timesteps", self.timesteps),
            ("sigmas", self.sigmas),
            ("context_timestep", (self.context_timestep,)),
        ):
            if not all(0 <= step < math.inf for step in steps):
                raise ValueError(f"{name} = {list(steps)} is negative or not finite")
        if not self.decoders or len({*self.decoders}) < len(self.decoders):
            raise ValueError(f"decoders = {list(self.decoders)} are none, or one of them twice")

    @property
    def recache_frames(self) -> tuple[int, ...]:
        """All results of ``recached`` except one block, which the clean pass recomputes."""
        filling = range(self.block, self.window + 1, self.block)
        full = self.window + self.block
        return tuple(sorted({self.recached(end) for end in (*filling, full)} - {self.block}))

    @property
    def components(self) -> tuple[str, ...]:
        """Required components of a stream, in the order of first use."""
        recache = (f"recache_{frames}" for frames in self.recache_frames)
        decode = (name for each in self.decoders for name in _decode_components(each))
        return ("text_kv", "denoise", self.pending, *recache, *decode)

    @property
    def decode_components(self) -> tuple[str, ...]:
        """Components of the first decoder: for a clip's first block, and for later ones."""
        return _decode_components(self.decoders[0])

    @property
    def prompt_shape(self) -> tuple[int, ...]:
        """Shape of a prompt's embeddings, ``[B, L, E]``."""
        return (self.batch, *self.text)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of a block's noise, ``[steps, B, F, C, h, w]``."""
        return (len(self.sigmas), self.batch, self.block, *self.latent)

    @property
    def videos(self) -> int:
        """The batch."""
        return self.batch

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a decoded frame."""
        return self.video

    @property
    def latent_frames(self) -> int:
        """Latent frames of a block."""
        return self.block

    @property
    def video_frames(self) -> int:
        """Video frames of any block but the first."""
        return 4 * self.block

    @property
    def filling(self) -> int:
        """Blocks that fill the window."""
        return -(-self.window // self.block)

    @property
    def full_inputs(self) -> Mapping[str, float]:
        """Position, valid length and timestep of a pass over a full window."""
        slots = self.window * self.frame_tokens
        return {"position": slots, "valid_length": slots, "timestep": self.timesteps[-1]}

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of a block, of its decoding and of a prompt switch, with a full window.

        A block's calls begin with the pending pass of the block before.
        """
        frames = self.recached(self.window + self.block)
        recache = self.pending if frames == self.block else f"recache_{frames}"
        return {
            "block": {self.pending: 1, "denoise": len(self.sigmas)},
            "vae": {self.decode_components[-1]: 1},
            "switch": {"text_kv": 1, recache: 1},
        }

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes, timesteps and the first decoder."""
        return {
            "decoder": self.decoders[0],
            "batch": self.batch,
            **super().workload,
            "block": self.block,
            "window": self.window,
            "sink": self.sink,
            "timesteps": [*self.timesteps],
        }

    @property
    def switch_points(self) -> range:
        """Numbers of blocks after which golden data switch prompts: each fills the ring further.

        After the last of them the ring has wrapped. One block is left out: recomputing it is a
        clean pass like any other.
        """
        return range(2, self.window // self.block + 2)

    def recached(self, end: int) -> int:
        """Returns the latent frames that a prompt switch recomputes after ``end`` frames.

        All frames while they fit the window; later the window without the sink, which stays.
        """
        return end if end <= self.window else self.window - self.sink

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the sizes with every tensor that a stream reads or writes."""
        (rows, columns), (_, height, width) = self.grid, self.latent
        if height % rows or height * columns != width * rows:
            raise ValueError(
                f"grid = {list(self.grid)} does not divide a {height} x {width} latent into squares"
            )
        for component, signature in signatures.items():
            expected = self._shapes(component)
            found = {t.name: t.shape for t in signature if t.role is not Role.STATE}
            if expected and found.keys() != expected.keys():
                raise ValueError(
                    f"{component} has tensors {', '.join(found)}, expected {', '.join(expected)}"
                )
            for name, shape in expected.items():
                _compare(f"{name} of {component}", found[name], shape)
            for state in signature.states:
                stored = self._state_shape(state.name)
                if stored is not None:
                    _compare(f"{state.name} of {component}", state.component_shape, stored)

    def _shapes(self, component: str) -> Mapping[str, _Shape]:
        """Returns the shapes of a component's inputs and outputs; empty if it is not a stream's."""
        text = (self.batch, *self.text)
        if component == "text_kv":
            return {"text_embeds": text}
        if component == "text_encoder":
            tokens = (1, self.text[0])
            return {
                "input_ids": tokens, "attention_mask": tokens, "text_embeds": (1, *self.text),
            }  # fmt: skip
        if any(component in _decode_components(each) for each in self.decoders):
            video = (self.batch, None, 3, *self.video)
            return {"latent": (self.batch, self.block, *self.latent), "frames": video}
        if component in ("denoise", self.pending):
            frames = self.block
        elif component in self.components:
            frames = int(component.rpartition("_")[2])
        else:
            return {}
        angles = (frames * self.frame_tokens, self.head_dim // 2)
        latent = (self.batch, frames, *self.latent)
        inputs: dict[str, _Shape] = {
            "latent": latent, "timestep": (self.batch, frames), "rope_cos": angles,
            "rope_sin": angles, "position": (1,), "valid_length": (1,),
        }  # fmt: skip
        return {**inputs, "flow": latent} if component == "denoise" else inputs

    def _state_shape(self, name: str) -> _Shape | None:
        """Returns the shape of a layer's keys or values, or of ``text.padding``; else None."""
        if name == "text.padding":
            return (self.batch,)
        tokens = {"ring": self.window * self.frame_tokens, "text": self.text[0]}
        kind = name.partition(".")[0]
        return (self.batch, tokens[kind], None, self.head_dim) if kind in tokens else None

    def smaller(self, states: Iterable[TensorSpec], needed: int, available: int) -> str:
        """Names the largest window that fits; arguments as in ``ProgramSpec``."""
        rings = sum(spec.nbytes for spec in states if spec.name.startswith("ring."))
        for window in range(self.window - self.block, self.sink + self.block - 1, -self.block):
            total = needed - (self.window - window) * (rings // self.window)
            if total <= available:
                return f"a build with --set stream.window={window} would fit: {total / 1e9:.1f} GB"
        return "no smaller window would fit, a smaller stream.height and stream.width may"


def _decode_components(decoder: str) -> tuple[str, str]:
    return f"{decoder}_decode_first", f"{decoder}_decode"


def _compare(tensor: str, found: tuple[int, ...], expected: _Shape) -> None:
    same = len(found) == len(expected) and all(
        size in (None, here) for here, size in zip(found, expected, strict=True)
    )
    if not same:
        shown = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{tensor} is {list(found)}, and the spec's sizes give [{shown}]")
