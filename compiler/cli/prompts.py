"""Options of `vidc run` for bundles that take prompts."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.plugins.errors import UsageError, printable
from vidc.plugins.untrusted_files import require_regular

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.programs.spec import ProgramSpec


@dataclass
class Prompts:
    """Prompts of a video, texts or embeddings, by the number of the block they begin at."""

    given: "dict[int, Tensor | str]" = field(default_factory=dict)

    def begin(self, session: Any) -> None:
        """Embeds all prompts, warns of truncated ones, and sets the first."""
        with warnings.catch_warnings(record=True) as cut:
            warnings.simplefilter("always")
            self.given = {block: session.embeds(prompt) for block, prompt in self.given.items()}
        for warning in cut:
            click.echo(printable(f"warning: {warning.message}"), err=True)
        if 0 in self.given:
            session.prompt(self.given[0])

    def before(self, session: Any, block: int) -> None:
        """Switches the prompt, if another one begins at the block."""
        if block > 0 and block in self.given:
            session.switch_prompt(self.given[block])


@dataclass(frozen=True)
class PromptOptions:
    """Prompts on the command line.

    Attributes:
        prompt: text of the first prompt.
        prompt_embeds: file of its embeddings.
        switches: later prompts as ``BLOCK:PROMPT``, where BLOCK is the first block of the prompt.
        switch_embeds: later prompts as ``BLOCK:FILE``, with embeddings.
    """

    prompt: str | None
    prompt_embeds: Path | None
    switches: tuple[str, ...]
    switch_embeds: tuple[str, ...]

    def read(self, bundle: Path, spec: "ProgramSpec", blocks: int) -> Prompts:
        """Returns the prompts of a video of this many blocks.

        Raises:
            UsageError: ``VIDC-PROMPT-UNUSED``, ``VIDC-PROMPT-NONE``, ``VIDC-PROMPT-SWITCH``,
                ``VIDC-PROMPT-FILE``.
        """
        if not spec.prompt_shape:
            if any(vars(self).values()):
                raise UsageError(
                    "VIDC-PROMPT-UNUSED",
                    f"{bundle} takes no prompts, and one is given",
                    "leave --prompt, --prompt-embeds and the switches out",
                )
            return Prompts()
        return Prompts({0: self._first(spec)} | self._later(blocks, spec))

    def _first(self, spec: "ProgramSpec") -> "Tensor | str":
        text, embeds = self.prompt, self.prompt_embeds
        if (text is None) == (embeds is None):
            raise UsageError(
                "VIDC-PROMPT-NONE",
                "give one prompt" if text is None else "two prompts are given for one stream",
                '--prompt "..." for a bundle with a text encoder, or --prompt-embeds FILE',
            )
        return text if text is not None else read_embeds(embeds or Path(), spec)

    def _later(self, blocks: int, spec: "ProgramSpec") -> "dict[int, Tensor | str]":
        found: dict[int, Tensor | str] = {}
        texts = [(text, False) for text in self.switches]
        for given, is_file in [*texts, *((file, True) for file in self.switch_embeds)]:
            number, colon, value = given.partition(":")
            if not colon or not number.isdecimal() or not 0 < int(number) < blocks:
                raise UsageError(
                    "VIDC-PROMPT-SWITCH",
                    f"{given!r} is not BLOCK:PROMPT with a block from 1 to {blocks - 1}",
                    'such as --switch 4:"the same street at night"',
                )
            if int(number) in found:
                raise UsageError(
                    "VIDC-PROMPT-SWITCH",
                    f"the prompt is switched twice at block {int(number)}",
                    "give each block one --switch or --switch-embeds",
                )
            found[int(number)] = read_embeds(Path(value), spec) if is_file else value
        return found


def read_embeds(path: Path, spec: "ProgramSpec") -> "Tensor":
    """Returns the only tensor of a safetensors file; ``[L, E]`` becomes ``[videos, L, E]``.

    Raises:
        UsageError: ``VIDC-PROMPT-FILE``.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        require_regular(path)
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            "VIDC-PROMPT-FILE",
            f"{path} cannot be read as embeddings: {error}",
            "save one tensor [L, E] with safetensors.torch.save_file",
        ) from error
    if len(tensors) != 1:
        raise UsageError(
            "VIDC-PROMPT-FILE",
            f"{path} holds {len(tensors)} tensors ({', '.join(sorted(tensors)[:4])})",
            "save one tensor [L, E] alone",
        )
    (tensor,) = tensors.values()
    return tensor.expand(spec.videos, *tensor.shape) if tensor.ndim == 2 else tensor
