"""Groups of passes with ranges of their own, because activations depend on the timestep."""

from dataclasses import dataclass

from vidc.runtime.programs.stream import StreamSpec

TEXT = "text"
CLEAN = "clean"


@dataclass(frozen=True)
class Group:
    """Passes at one timestep.

    Attributes:
        name: ``text`` for ``text_kv``, ``step.0`` and so on for denoising, ``clean`` for
            ``kv_update`` and ``recache``.
        timestep: timestep of 1000, after the shift; None for ``text``.
    """

    name: str
    timestep: float | None


def groups(stream: StreamSpec) -> tuple[Group, ...]:
    """Returns the groups of a stream, in the order of a block's passes."""
    steps = (Group(f"step.{i}", time) for i, time in enumerate(stream.timesteps))
    return (Group(TEXT, None), *steps, Group(CLEAN, stream.context_timestep))
