"""A stream of program ``causal_video`` over engines of a few operations, which can be planted with
faults."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime import Bundle
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import CausalVideo
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.states import Buffers, States

CPU = torch.device("cpu")
CHANNELS, SIDE, LENGTH, WIDTH = 4, 2, 3, 5
SPEC = StreamSpec(
    batch=1, block=2, window=5, sink=1, frame_tokens=1, grid=(1, 1), latent=(CHANNELS, SIDE, SIDE),
    video=(8, 8), head_dim=6, text=(LENGTH, WIDTH), timesteps=(1000.0, 500.0), sigmas=(1.0, 0.5),
    context_timestep=0.0, pending="kv_update",
)  # fmt: skip


def _tensor(name: str, shape: tuple[int, ...], role: Role = Role.INPUT, dtype: str = "float32"):
    writes = Access.READ_WRITE if role is Role.STATE else None
    return TensorSpec(name, shape, dtype, role, *([writes, True] if writes else []))


_RING = _tensor("ring.k.0", (SPEC.window, CHANNELS), Role.STATE)
_TEXT = _tensor("text.k.0", (1, CHANNELS), Role.STATE)
_LAST = _tensor("vae.last", (1, CHANNELS), Role.STATE)


def _signature(component: str) -> Signature:
    if component == "text_kv":
        return Signature((_tensor("text_embeds", (1, LENGTH, WIDTH)), _TEXT))
    if component.startswith("vae"):
        frames = 4 * SPEC.block - (3 if component.endswith("first") else 0)
        latent = _tensor("latent", (1, SPEC.block, *SPEC.latent))
        return Signature((latent, _LAST, _tensor("frames", (1, frames, 3, 8, 8), Role.OUTPUT)))
    count = SPEC.block if component in ("denoise", "kv_update") else int(component[-1])
    latent = (1, count, *SPEC.latent)
    angles = (count, SPEC.head_dim // 2)
    inputs = (
        _tensor("latent", latent), _tensor("timestep", (1, count)), _tensor("rope_cos", angles),
        _tensor("rope_sin", angles), _tensor("position", (1,), dtype="int64"),
        _tensor("valid_length", (1,), dtype="int64"), _RING, _TEXT,
    )  # fmt: skip
    flow = (_tensor("flow", latent, Role.OUTPUT),) if component == "denoise" else ()
    return Signature((*inputs, *flow))


@dataclass
class SmallEngine:
    """One component in plain torch, its ring and text written in place.

    Attributes:
        before, after: called around each run; they may raise, wait or change what was written.
    """

    name: str
    before: Callable[[], Any] = lambda: None
    after: Callable[[Buffers, States], Any] = lambda buffers, states: None
    signature: Signature = field(init=False)

    def __post_init__(self) -> None:
        self.signature = _signature(self.name)

    def run(self, buffers: Buffers, states: States) -> None:
        self.before()
        if self.name == "text_kv":
            states["text.k.0"].copy_(buffers["text_embeds"].mean(1)[:, :CHANNELS])
        elif self.name.startswith("vae"):
            self._decode(buffers, states["vae.last"])
        else:
            self._attend(buffers, states["ring.k.0"], states["text.k.0"])
        self.after(buffers, states)

    def weight(self, name: str) -> Tensor:
        raise KeyError(name)

    def _decode(self, buffers: Buffers, last: Tensor) -> None:
        means = buffers["latent"].mean((3, 4))[0]
        colors = torch.sin(3 * means[:, :3] + last[:, :3])
        frames = buffers["frames"]
        frames.copy_(colors.repeat(4, 1)[: frames.shape[1], :, None, None].expand_as(frames[0]))
        last.copy_(means[-1:])

    def _attend(self, buffers: Buffers, ring: Tensor, text: Tensor) -> None:
        latent, first = buffers["latent"], int(buffers["position"])
        for index, frame in enumerate(latent[0]):
            place, sink = first + index, SPEC.sink
            slot = place if place < sink else sink + (place - sink) % (SPEC.window - sink)
            ring[slot] = frame.mean((1, 2)) + 0.1 * text[0] + buffers["rope_cos"].mean().float()
        time.sleep(0)  # Lets another thread run, as an engine does.
        if self.name == "denoise":
            seen = ring[: int(buffers["valid_length"])].mean(0) + text[0]
            buffers["flow"].copy_(torch.sin(latent + seen[:, None, None]))


def small_bundle(shared: Any = None) -> Bundle:
    """A bundle whose engines are ``SmallEngine``, in ``bundle.engines``."""
    engines = {name: SmallEngine(name) for name in SPEC.components}
    return Bundle(CausalVideo, Resources(SPEC, engines, CPU, shared=shared))


def embeds(seed: int = 1) -> Tensor:
    return torch.randn(SPEC.prompt_shape, generator=torch.Generator().manual_seed(seed))


def noise(seed: int = 1) -> Tensor:
    return torch.randn(SPEC.noise_shape, generator=torch.Generator().manual_seed(seed))


def begun(bundle: Bundle, seed: int = 0, blocks: int = 0) -> Any:
    """A session with a prompt and some blocks behind it."""
    session = bundle.session(seed=seed)
    session.prompt(embeds())
    for _ in range(blocks):
        session.step()
    return session


def played(session: Any, blocks: int = 4, switch_after: int | None = None) -> list[Tensor]:
    """Frames of the next blocks, with a prompt switch among them."""
    frames = []
    for block in range(blocks):
        if block == switch_after:
            session.switch_prompt(embeds(2))
        frames.append(session.step())
    return frames


def equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
