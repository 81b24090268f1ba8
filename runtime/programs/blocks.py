"""Iterator over the frames of a session's blocks."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from vidc.runtime.programs.base import Session


class Blocks(Iterator[Tensor]):
    """Iterator over the frames of a number of blocks; a failed block is tried again."""

    def __init__(self, session: "Session[Any]", blocks: int) -> None:
        self._session = session
        self._left = blocks

    def __next__(self) -> Tensor:
        session = self._session
        with session._guard.call("stream", session._check):
            if self._left:
                frames = session.step()
                self._left -= 1
                return frames
        raise StopIteration
