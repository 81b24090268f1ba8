"""Base class of families: the interface between vidc and a kind of model."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vidc.exporters.part import Part
from vidc.exporters.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.exporters.checkpoint.layout import Layout


@dataclass(frozen=True)
class Pass:
    """Kind of component calls with similar activations, which calibration records separately.

    Attributes:
        name: such as ``step.0``.
        timestep: from 0 to 1000, after the sampler's shift; None if the pass has none.
    """

    name: str
    timestep: float | None


@dataclass(frozen=True)
class Rollout:
    """Length of a rollout, and the block before which its prompt is switched.

    Attributes:
        blocks: number of blocks.
        switch_after: number of blocks before the switch.
    """

    blocks: int
    switch_after: int


@dataclass(frozen=True)
class TextSource:
    """Files of a text encoder.

    Attributes:
        checkpoint: its weights.
        tokenizer: its tokenizer.
    """

    checkpoint: Path
    tokenizer: Path


@dataclass(frozen=True)
class LayerKind:
    """Layers with one role in every block, analyzed together for sensitivity.

    Attributes:
        name: for tables and charts.
        pattern: pattern of the layers' names inside a block, as in a recipe.
    """

    name: str
    pattern: str


@dataclass(frozen=True)
class FixedWork:
    """Work of a block that no recipe changes, in high precision.

    Attributes:
        flops: floating-point operations of one call.
        elements: read and written by one call.
        calls: number of calls in a block.
    """

    flops: float
    elements: float
    calls: int


class Family(ABC):
    """A kind of model: its parts and the runtime program that runs them.

    A subclass is a frozen dataclass, importable without torch; an instance is one model with its
    sizes.

    Attributes:
        name: in presets and manifests.
        program: name of the runtime program.
        tables: tables of a preset that hold its settings, with the class that checks each.
        read_off: keys of ``to_json`` besides ``tables``. Their values come from a checkpoint; None
            if there was none.
        groups: every weights group that a model of this family may have.
        text_group: the group whose only component turns texts into embeddings, if there is one.
        quantized_group: the group whose layers a recipe quantizes.
        recipes: names of the family's own recipes by precision; empty if the targets' recipes fit.
        single_file: True if one file may hold every part.
        optional: groups that a model may lack, with the flags that leave each out.
        layer_kinds: kinds of Linears in a block of the quantized group's network.
        block_prefix: start of the names of a block's layers, up to the block's number.
    """

    name: ClassVar[str]
    program: ClassVar[str]
    tables: ClassVar[Mapping[str, type[Table]]]
    read_off: ClassVar[tuple[str, ...]] = ()
    groups: ClassVar[tuple[str, ...]]
    text_group: ClassVar[str | None] = None
    quantized_group: ClassVar[str]
    recipes: ClassVar[Mapping[str, str]] = {}
    single_file: ClassVar[bool] = False
    optional: ClassVar[Mapping[str, str]] = {}
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = ()
    block_prefix: ClassVar[str] = "blocks."

    @classmethod
    @abstractmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, Any]]) -> Self:
        """Reads a model from tables of settings, and from what ``to_json`` adds to them.

        Raises:
            UsageError: ``VIDC-CONFIG-SETTING``, ``VIDC-CONFIG-SIZES``.
        """

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Returns the tables that ``from_tables`` reads, with all defaults, as JSON values."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, Part]:
        """Its parts by weights group, in the order of first use."""

    @property
    def components(self) -> dict[str, str]:
        """Weights group of every component, in the order of first use."""
        return {name: group for group, part in self.parts.items() for name in part.component_names}

    @property
    def quantized_part(self) -> Part:
        """The part whose layers a recipe quantizes."""
        return self.parts[self.quantized_group]

    @property
    @abstractmethod
    def decoder_group(self) -> str:
        """The group whose components make frames; a class attribute if every model has it."""

    @property
    def decoder_groups(self) -> tuple[str, ...]:
        """Every group that makes frames of a latent; sessions use the first unless told."""
        return (self.decoder_group,)

    @property
    def conditioning_groups(self) -> tuple[str, ...]:
        """Groups that generating a latent needs besides the quantized and the text group."""
        return ()

    @property
    def text_component(self) -> str:
        """The component that turns texts into embeddings, of a model that takes them."""
        (name,) = (name for name, group in self.components.items() if group == self.text_group)
        return name

    def with_texts(self, path: Path) -> "tuple[Self, TextSource]":
        """Finds a text encoder in a folder or file; returns the model with it, and its files.

        Families with a ``text_group`` implement it.

        Raises:
            VidcError: the encoder is missing or does not fit the model.
        """
        raise NotImplementedError

    @property
    def pipeline_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings that files of a diffusers pipeline may not contradict, by path."""
        return {}

    @classmethod
    @abstractmethod
    def layouts(cls) -> "tuple[Layout, ...]":
        """Returns the layouts of the checkpoints of all parts that a model of it may have."""

    @abstractmethod
    def spec(self) -> dict[str, Any]:
        """Returns the spec that the program reads at run time, as JSON values."""

    @property
    def texts(self) -> bool:
        """True if prompts may be texts."""
        return self.text_group is not None and self.text_group in self.parts

    @property
    def lacks_text_encoder(self) -> bool:
        """True if prompts are texts, but this model takes their embeddings alone."""
        return self.text_group is not None and self.text_group not in self.parts

    @abstractmethod
    def passes(self) -> tuple[Pass, ...]:
        """Returns the passes of a block that calibration tells apart, in their order.

        The last is the one whose keys and values stay in the rings.
        """

    @abstractmethod
    def pass_of(self, component: str, inputs: "Mapping[str, Tensor]") -> str:
        """Returns the name of the pass that a call belongs to.

        Args:
            component: name of the called component.
            inputs: its input tensors by name.
        """

    @abstractmethod
    def calibration_rollout(self) -> Rollout:
        """Returns the rollout that calibration watches for each prompt."""

    @property
    @abstractmethod
    def calibrated_tables(self) -> tuple[str, ...]:
        """Keys of ``to_json`` whose settings, except the batch, calibrated ranges depend on."""

    @abstractmethod
    def calls(self, layer: str) -> int:
        """Returns how many of a block's passes run a layer: a linear layer or ring attention.

        0 if the layer runs once a prompt.
        """

    @abstractmethod
    def fixed_work(self) -> tuple[FixedWork, ...]:
        """Returns the work of a block other than linear layers and ring attention."""

    @abstractmethod
    def rollout_flops(self, rollout: Rollout, *, decoded: bool = True) -> float:
        """Estimates the FLOPs of playing a rollout, in round numbers.

        Args:
            rollout: the rollout.
            decoded: True if its latents become frames.
        """

    @abstractmethod
    def decode_flops(self) -> float:
        """Estimates the FLOPs of decoding one block."""

    @abstractmethod
    def components_flops(self, rollout: Rollout) -> float:
        """Estimates the FLOPs of the calls of every component that golden data record."""
