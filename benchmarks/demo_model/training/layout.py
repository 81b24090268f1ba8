"""Which blocks of a clip attend to which: the runtime's ring, written out for a whole clip.

A *group* is one block of latent frames in one pass of the network. A clip in training has up to
three groups of a block: its clean latent (what ``kv_update`` runs), its clean latent once more
under a new prompt (``recache_N``), and its noisy latent (``denoise``). Each group attends to the
groups whose keys and values the ring would hold then, and all are one sequence to the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from vidc.runtime.programs.stream import StreamSpec


class Pass(IntEnum):
    """What a group is."""

    CLEAN = 0
    RECACHED = 1
    NOISY = 2


@dataclass(frozen=True)
class Group:
    """One pass over one block.

    Attributes:
        kind: of the pass.
        index: of the block in the clip.
        prompt: 0 before the switch, 1 from then on.
        keys: groups that it attends to, itself among them.
    """

    kind: Pass
    index: int
    prompt: int
    keys: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The groups of a clip.

    Attributes:
        positions: absolute block of each block of the clip; ascending, the sink's first.
        groups: in the order of the network's sequence.
    """

    positions: tuple[int, ...]
    groups: tuple[Group, ...]

    @property
    def slots(self) -> int:
        """Most groups that one attends to."""
        return max(len(group.keys) for group in self.groups)

    @property
    def full(self) -> bool:
        """Whether every group attends to as many."""
        return all(len(group.keys) == self.slots for group in self.groups)

    @property
    def switch(self) -> int | None:
        """Index of the first block under the new prompt."""
        known = (g.index for g in self.groups if g.prompt and g.kind is not Pass.RECACHED)
        return min(known, default=None)

    @property
    def noisy_from(self) -> int:
        """Index of the first block that has a noisy group."""
        return self.groups[self.of(Pass.NOISY)[0]].index

    def of(self, kind: Pass) -> list[int]:
        """The groups of a kind, in the clip's order."""
        return [i for i, group in enumerate(self.groups) if group.kind is kind]

    def tensors(self, device: torch.device | str = "cpu") -> "LayoutTensors":
        """What the network needs of it."""
        keys = [(*g.keys, *[-1] * (self.slots - len(g.keys))) for g in self.groups]
        table = torch.tensor(keys)
        return LayoutTensors(
            blocks=torch.tensor([self.positions[g.index] for g in self.groups]).to(device),
            index=torch.tensor([g.index for g in self.groups]).to(device),
            prompt=torch.tensor([g.prompt for g in self.groups]).to(device),
            keys=table.clamp_min(0).to(device),
            visible=(table >= 0).to(device),
            noisy=torch.tensor(self.of(Pass.NOISY)).to(device),
            full=self.full,
        )


@dataclass(frozen=True)
class LayoutTensors:
    """A layout of G groups on a device.

    Attributes:
        blocks: absolute block of each group, int64 ``[G]``.
        index: block in the clip, int64 ``[G]``.
        prompt: int64 ``[G]``.
        keys: groups attended to, int64 ``[G, slots]``, 0 where there is none.
        visible: where there is one, bool ``[G, slots]``.
        noisy: groups that are, int64 ``[N]``.
        full: all of ``visible`` is true.
    """

    blocks: Tensor
    index: Tensor
    prompt: Tensor
    keys: Tensor
    visible: Tensor
    noisy: Tensor
    full: bool


def in_ring(block: int, stream: StreamSpec) -> list[int]:
    """Absolute blocks that the ring holds once ``block`` is written, ascending.

    ``stream``'s sink and window are whole blocks.
    """
    sink, window = stream.sink // stream.block, stream.window // stream.block
    newest = range(max(0, block - (window - sink) + 1), block + 1)
    return [*range(min(sink, newest.start)), *newest]


def recached(end: int, stream: StreamSpec) -> list[int]:
    """Absolute blocks that a prompt switch after ``end`` blocks recomputes."""
    return list(range(end - stream.recached(end * stream.block) // stream.block, end))


def clip_layout(
    positions: Sequence[int], stream: StreamSpec, switch: int | None = None, noisy_from: int = 0
) -> Layout:
    """The groups of a clip of these blocks, each with a noisy and, but for the last, a clean one.

    Args:
        positions: absolute blocks, ascending. Blocks that are not among them are in nobody's
            sight: a clip may be the sink and a stretch from far on.
        stream: its sink and window are whole blocks.
        switch: index of the clip's block that is the first under the new prompt.
        noisy_from: index of the first block that has a noisy group.

    Raises:
        ValueError: positions do not ascend, the switch does not lie inside the clip, or no block
            is noisy.
    """
    count = len(positions)
    if not count or list(positions) != sorted(set(positions)) or positions[0] < 0:
        raise ValueError(f"blocks of a clip ascend from 0 or later, not {list(positions)}")
    if switch is not None and not 0 < switch < count:
        raise ValueError(f"a clip of {count} blocks cannot switch its prompt at {switch}")
    if not 0 <= noisy_from < count:
        raise ValueError(f"a clip of {count} blocks has no noisy one from {noisy_from} on")
    turn = count if switch is None else switch
    again = []
    if switch is not None:
        known = recached(positions[switch], stream)
        again = [i for i in range(switch) if positions[i] in known]
    order = [
        *((Pass.CLEAN, i, 0) for i in range(min(turn, count - 1))),
        *((Pass.NOISY, i, 0) for i in range(noisy_from, turn)),
        *((Pass.RECACHED, i, 1) for i in again),
        *((Pass.CLEAN, i, 1) for i in range(turn, count - 1)),
        *((Pass.NOISY, i, 1) for i in range(max(turn, noisy_from), count)),
    ]
    place = {(kind, index): group for group, (kind, index, _) in enumerate(order)}

    def sight(kind: Pass, index: int) -> tuple[int, ...]:
        # A recached block is computed together with the others: all see what the last one sees.
        last = again[-1] if kind is Pass.RECACHED else index
        seen = [positions.index(b) for b in in_ring(positions[last], stream) if b in positions]
        keys = []
        for other in seen:
            if other == index:
                keys.append(place[kind, index])
            elif other in again and (index >= turn or kind is Pass.RECACHED):
                keys.append(place[Pass.RECACHED, other])
            else:
                keys.append(place[Pass.CLEAN, other])
        return tuple(keys)

    groups = tuple(Group(kind, i, prompt, sight(kind, i)) for kind, i, prompt in order)
    return Layout(tuple(positions), groups)
