"""Encoded clips to draw batches from: encoding one costs more than a step on it.

A shelf is a set of clips that share a layout, so that a batch of them is one forward. Shelves are
numbered, what is on one follows from its number, and a step draws from the newest few: a run that
resumes makes those again, and goes on as if it had never stopped.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from demo_model.clip import LATENT_STRIDE
from demo_model.presence import presence
from demo_model.render import render
from demo_model.training.clips import Prompted, numbered, tokens_of
from demo_model.training.layout import Layout, LayoutTensors, clip_layout
from demo_model.training.loop import precision
from demo_model.training.networks import Sizes
from demo_model.training.vae import Statistics, encode

WARM_UP = 6
"""Latent frames before a stretch from which the encoder takes its memory; they are dropped."""

ENCODED = 2048
"""Video frames of 128x128 that are encoded at once."""


@dataclass(frozen=True)
class Plan:
    """What shelves hold, and for how long.

    Attributes:
        blocks: of a clip.
        clips: on a shelf of clips.
        starts: first blocks on a shelf of these.
        every: steps between one new shelf and the next.
        keep: newest shelves that are drawn from.
        far: share of clips that are the sink and a stretch from far on.
        farthest: blocks; such a stretch ends before.
        switched: share of clips whose prompt is switched.
    """

    blocks: int = 9
    clips: int = 64
    starts: int = 768
    every: int = 128
    keep: int = 16
    far: float = 0.5
    farthest: int = 400
    switched: float = 0.4


@dataclass(frozen=True)
class Shelf:
    """Clips of one layout.

    Attributes:
        layout: of each clip.
        groups: the same on the device.
        latents: normalized, float16 ``[N, blocks, F, C, h, w]``.
        shown: where an object is, bool ``[N, blocks, F, h, w]``.
        tokens: before and after the switch, int64 ``[N, 2, L]``.
    """

    layout: Layout
    groups: LayoutTensors
    latents: Tensor
    shown: Tensor
    tokens: Tensor


class Encoder:
    """A trained VAE that makes latents of clips.

    Args:
        sizes: of the model.
        vae: frozen.
        statistics: of its latents.
        device: where it is.
    """

    def __init__(self, sizes: Sizes, vae: nn.Module, statistics: Statistics, device: str) -> None:
        self.sizes = sizes
        self.device = device
        self._vae = vae
        self._statistics = statistics

    def blocks(self, prompted: Prompted, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Normalized latents of ``count`` blocks from absolute block ``first``, and ``presence``.

        Float16 ``[N, count, F, C, h, w]`` and bool ``[N, count, F, h, w]``. A stretch that does not
        begin at 0 is encoded from a few latent frames earlier, because its encoder has seen a
        stream.
        """
        block = self.sizes.stream.block
        begin = max(0, first * block - WARM_UP)
        latents = (first + count) * block - begin
        frames = LATENT_STRIDE * (latents - 1) + 1
        stream = self.sizes.config.stream
        chunk = max(1, ENCODED * 128 * 128 // (stream.height * stream.width) // frames)
        made = []
        for at in range(0, len(prompted.clips), chunk):
            pixels = render(
                prompted.clips[at : at + chunk], frames, height=stream.height, width=stream.width,
                first=LATENT_STRIDE * begin, device=self.device,
            )  # fmt: skip
            with torch.no_grad(), precision(self.device):
                means = encode(self._vae, pixels, self.sizes.config.vae).mean
            kept = self._statistics.normalized(means)[:, first * block - begin :]
            made.append(kept.unflatten(1, (count, block)).half())
        shown = presence(
            prompted.clips, latents, height=stream.height, width=stream.width,
            first=LATENT_STRIDE * begin,
        )[:, first * block - begin :]  # fmt: skip
        return torch.cat(made), shown.unflatten(1, (count, block)).to(self.device)


class Shelves:
    """The newest shelves of two kinds: clips, and first blocks alone.

    Args:
        encoder: of clips.
        plan: what is on a shelf.
        seed: of the training.
    """

    def __init__(self, encoder: Encoder, plan: Plan, seed: int) -> None:
        self._encoder = encoder
        self._plan = plan
        self._seed = seed
        self._kept: dict[tuple[str, int], Shelf] = {}

    def clips(self, step: int) -> Shelf:
        """The shelf of clips that a step draws from."""
        return self._of(step, "clips", self._clips)

    def starts(self, step: int) -> Shelf:
        """The shelf of first blocks that a step draws from."""
        return self._of(step, "starts", self._starts)

    def prepare(self, step: int) -> None:
        """Makes every shelf that this step might draw from, so that later ones take their time."""
        for number in self._numbers(step):
            self._get("clips", number, self._clips)
            self._get("starts", number, self._starts)

    def _numbers(self, step: int) -> range:
        newest = self._plan.keep // 4 + step // self._plan.every
        return range(max(0, newest - self._plan.keep + 1), newest + 1)

    def _of(self, step: int, kind: str, make: Callable[[int], Shelf]) -> Shelf:
        numbers = self._numbers(step)
        self._kept = {key: s for key, s in self._kept.items() if key[1] >= numbers.start}
        draw = random.Random(f"{kind} {self._seed} {step}")
        # The newest shelf is made at the step that it is due at, whether it is drawn or not.
        self._get(kind, numbers[-1], make)
        return self._get(kind, draw.choice(numbers), make)

    def _get(self, kind: str, number: int, make: Callable[[int], Shelf]) -> Shelf:
        key = (kind, number)
        if key not in self._kept:
            self._kept[key] = make(number)
        return self._kept[key]

    def _clips(self, number: int) -> Shelf:
        plan, stream = self._plan, self._encoder.sizes.stream
        draw = random.Random(f"shelf {self._seed} {number}")
        far, switched = draw.random() < plan.far, draw.random() < plan.switched
        window = stream.window // stream.block
        noisy_from = 0
        positions = list(range(plan.blocks))
        if far:
            # The sink, and as much before the first noisy block as its ring would hold.
            noisy_from = min(window - 1, plan.blocks - 1)
            start = draw.randrange(window, max(window + 1, plan.farthest - plan.blocks))
            positions = [0, *range(start, start + plan.blocks - 1)]
        switch = draw.randrange(max(1, noisy_from), plan.blocks) if switched else None
        first_frame = None
        if switch is not None:
            first_frame = LATENT_STRIDE * (positions[switch] * stream.block - 1) + 1
        prompted = numbered(self._first(number), plan.clips, first_frame)
        if far:
            sink = self._encoder.blocks(prompted, 0, 1)
            stretch = self._encoder.blocks(prompted, positions[1], plan.blocks - 1)
            latents, shown = (torch.cat(pair, 1) for pair in zip(sink, stretch, strict=True))
        else:
            latents, shown = self._encoder.blocks(prompted, 0, plan.blocks)
        layout = clip_layout(positions, stream, switch, noisy_from)
        return self._shelf(layout, latents, shown, prompted)

    def _starts(self, number: int) -> Shelf:
        prompted = numbered(self._first(number) + self._plan.clips, self._plan.starts)
        latents, shown = self._encoder.blocks(prompted, 0, 1)
        return self._shelf(clip_layout([0], self._encoder.sizes.stream), latents, shown, prompted)

    def _first(self, number: int) -> int:
        per_shelf = self._plan.clips + self._plan.starts
        return (self._seed * 7919 + number) * per_shelf

    def _shelf(self, layout: Layout, latents: Tensor, shown: Tensor, prompted: Prompted) -> Shelf:
        device, length = self._encoder.device, self._encoder.sizes.config.transformer.text_len
        flat = [caption for pair in prompted.captions for caption in pair]
        tokens = tokens_of(flat, length, device).view(len(prompted.captions), 2, -1)
        return Shelf(layout, layout.tensors(device), latents, shown, tokens)
