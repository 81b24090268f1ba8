"""Options of `vidc run` for world models: recorded actions, and the state a world starts from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidc.plugins.errors import UsageError
from vidc.plugins.untrusted_files import require_regular

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.programs.spec import ProgramSpec

_LOW, _FULL, _ACTIONS = "low_res.npy", "full_res.npy", "act.npy"
"""Files of a start state, named as in DIAMOND's ``spawn`` folders."""
_CODE = "VIDC-RUN-CONTROLS"


@dataclass(frozen=True)
class Controls:
    """Actions of a video and the state it starts from.

    Attributes:
        actions: a row for each frame; None if none are given.
        start: a picture, uint8 ``[1, H, W, 3]``; None if none is given.
        state: arrays of a start state by file name; empty if none is given.
    """

    actions: "Tensor | None" = None
    start: "Tensor | None" = None
    state: "dict[str, Tensor]" = field(default_factory=dict)

    @property
    def rows(self) -> int | None:
        """Number of actions; None if none are given."""
        return None if self.actions is None else len(self.actions)

    def begin(self, session: Any) -> None:
        """Starts a session from the state, and checks every action.

        Raises:
            UsageError: ``VIDC-SESSION-START``, ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
        """
        if self.state:
            session.spawn(*(self.state.get(name) for name in (_LOW, _FULL, _ACTIONS)))
        if self.start is not None:
            session.start(self.start)
        for row in () if self.actions is None else self.actions:
            session.act(row)

    def before(self, session: Any, block: int) -> None:
        """Sets the action of a block, which is one frame."""
        if self.actions is not None:
            session.act(self.actions[block])


@dataclass(frozen=True)
class ControlOptions:
    """Files on the command line; None where an option is not given.

    Attributes:
        actions: file of the actions, a row for each frame.
        start: a folder with a start state, or an image.
    """

    actions: Path | None
    start: Path | None

    def read(self, bundle: Path, spec: "ProgramSpec") -> Controls:
        """Reads the files.

        Raises:
            UsageError: ``VIDC-RUN-CONTROLS``, a file cannot be read, or the bundle takes none.
        """
        given = [f"--{name}" for name, path in vars(self).items() if path is not None]
        if given and "action" not in spec.condition_shapes:
            raise UsageError(
                _CODE,
                f"{bundle} takes no actions, and {given[0]} is given",
                "leave --actions and --start out",
            )
        rows = None if self.actions is None else _actions(self.actions)
        if self.start is None:
            return Controls(rows)
        if not self.start.is_dir():
            return Controls(rows, start=_image(self.start))
        found = [name for name in (_LOW, _FULL, _ACTIONS) if (self.start / name).is_file()]
        if _LOW not in found:
            raise UsageError(
                _CODE,
                f"{self.start} has no {_LOW}",
                "give a folder such as DIAMOND's spawn/0, or an image",
            )
        return Controls(rows, state={name: _array(self.start / name) for name in found})


def _actions(path: Path) -> "Tensor":
    found = _array(path)
    if found.ndim == 0 or len(found) == 0:
        raise UsageError(_CODE, f"{path} holds no rows", "save a row for each frame")
    return found


def _array(path: Path) -> "Tensor":
    import numpy as np
    import torch

    try:
        if path.suffix == ".csv":
            array = np.loadtxt(path, delimiter=",", ndmin=2)
        else:
            require_regular(path)
            array = np.load(path, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise UsageError(
            _CODE,
            f"{path} cannot be read as an array of numbers: {error}",
            "save one with numpy.save, or actions as rows of a .csv file",
        ) from error


def _image(path: Path) -> "Tensor":
    import numpy as np
    import torch
    from PIL import Image

    try:
        require_regular(path)
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB")))[None]
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UsageError(
            _CODE, f"{path} cannot be read as an image: {error}", "give a PNG or JPEG file"
        ) from error
