"""Part: one network of a model, with all that vidc needs to build it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.table import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component
    from vidc.plugins.signature import Signature


@dataclass(frozen=True)
class Attention:
    """An attention over a ring of keys and values.

    Attributes:
        heads: number of heads.
        head_dim: channels of a head.
        tokens: queries of one call, of all samples.
        slots: keys that each query attends to.
        batch: samples side by side.
        keys: state that stores the keys.
        values: state that stores the values.
    """

    heads: int
    head_dim: int
    tokens: int
    slots: int
    batch: int
    keys: str
    values: str


@dataclass(frozen=True)
class Part(ABC):
    """One network and the static sizes it runs at. Its weights are one group, one file.

    A subclass is a frozen dataclass. It imports torch inside its methods, so that configurations
    are read without it. All its fields are part of the keys under which the build stores results.

    Attributes:
        group: name of its weights file, and first word of the names of its weights.
        libraries: packages that build the network, besides torch.
        instead_of_bf16: precision on a GPU in place of bf16, unless bf16 is asked for this group by
            name.
        needs_tokenizer: True for a part that turns texts into tokens in a bundle.
        files: paths in a bundle of what it needs there besides weights.
        config: sizes of the network, which decide its weights.
    """

    group: ClassVar[str]
    libraries: ClassVar[tuple[str, ...]] = ()
    instead_of_bf16: ClassVar[str] = "bf16"
    needs_tokenizer: ClassVar[bool] = False
    files: ClassVar[tuple[str, ...]] = ()
    config: Table

    @property
    @abstractmethod
    def component_names(self) -> tuple[str, ...]:
        """Names of its components, in the order of first use."""

    def network(self, precision: str) -> "nn.Module":
        """Returns the network on the meta device, weights in ``fp32``, ``fp16`` or ``bf16``."""
        import torch

        from vidc.exporters.models import PRECISIONS

        with torch.device("meta"):
            return self.module().to(PRECISIONS[precision]).requires_grad_(False)

    def module(self) -> "nn.Module":
        """Returns the network on torch's default device; for parts that inherit ``network``."""
        raise NotImplementedError

    @abstractmethod
    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns its components by name; they share the parameters of ``network``."""

    def random_weights(self, seed: int) -> "dict[str, LazyTensor]":
        """Returns float32 weights with which every layer affects the result, drawn when loaded."""
        import torch

        from vidc.exporters.checkpoint.lazy import LazyTensor

        return {
            name: LazyTensor(shape, torch.float32, partial(self.random_weight, name, shape, seed))
            for name, shape in self.shapes().items()
        }

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws a weight from the seed and its name; for parts that inherit ``random_weights``."""
        raise NotImplementedError

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads the weights from a checkpoint.

        Args:
            checkpoint: a file or folder.
            loras: the same, to be merged.
            layouts: layouts of every part of the model, so that a message can name another part's.
            ema: take the moving average of a file that holds it beside the trained weights.

        Raises:
            VidcError: what ``load_weights`` raises.
        """
        from vidc.exporters.checkpoint.load import load_weights

        return load_weights(
            checkpoint, loras, self.shapes(), layouts, self.disagreements,
            ema=ema, prefixes=self.prefixes, adapt=self.adapt,
        )  # fmt: skip

    def files_beside(self, checkpoint: Path) -> tuple[Path, ...]:
        """Returns files outside the checkpoint that ``load`` also takes weights from."""
        return ()

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Prefixes of its tensors in a file of a whole pipeline, and what replaces them."""
        return {}

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Returns tensors of a checkpoint in the model's shapes.

        Args:
            tensors: by canonical name.
            layout: layout that the checkpoint has.
        """
        return tensors

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings that a checkpoint's ``config.json`` may not contradict, by its class.

        ``...`` stands for any value.
        """
        return {}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of its weights by name."""
        return _shapes(self)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists settings that the shapes of a checkpoint contradict, as ``model.dim = 8, not 4``.

        Args:
            found: shapes of the checkpoint's weights by name.
            expected: shapes of the model's.
        """
        return []

    def write_tokenizer(self, folder: Path, tokenizer: Path) -> None:
        """Writes ``files`` into a folder from a tokenizer's file; for a part that needs one."""
        raise NotImplementedError

    def tokenizer_files(self, tokenizer: Path) -> tuple[Path, ...]:
        """Returns every file that ``write_tokenizer`` reads."""
        raise NotImplementedError

    def tokenizer_libraries(self, tokenizer: Path) -> tuple[str, ...]:
        """Returns packages that ``write_tokenizer`` needs besides ``libraries``."""
        return ()

    def load_settings(self) -> dict[str, Any]:
        """Returns the settings that the loaded weights depend on, as JSON values."""
        return {"sizes": self.config.to_json()}

    def export_settings(self, component: str) -> dict[str, Any]:
        """Returns the settings that a component's graph depends on, as JSON values."""
        settings: dict[str, Any] = _plain(asdict(self))
        return settings

    def written_share(self, state: str, signature: "Signature") -> Fraction:
        """Returns the share of a state's elements that a call writes.

        Args:
            state: its name.
            signature: of the component that is called.
        """
        return Fraction(1)

    @property
    def weights_elements(self) -> int:
        """Estimated elements of its weights; 0 if activations need far more memory."""
        return 0

    def working_elements(self, component: str) -> int:
        """Elements of states and activations on the device while a component is compiled."""
        return self.playing_elements

    @property
    def playing_elements(self) -> int:
        """Elements of states and activations on the device while golden data are made."""
        return 0

    @property
    def attentions(self) -> Mapping[str, Attention]:
        """Attentions over rings that a recipe may quantize, by name."""
        return {}

    def rows(self, linear: str) -> int:
        """Rows that one pass multiplies with the weight of a Linear; 0 if it runs once a prompt."""
        return 0

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """Weight elements and rows of a pass's matmuls that are not linear layers."""
        return ()


@cache
def _shapes(part: Part) -> Mapping[str, tuple[int, ...]]:
    """Returns the shapes of a part's weights; a large network takes a fifth of a second."""
    return {n: tuple(t.shape) for n, t in part.network("fp32").state_dict().items()}


def _plain(value: Any) -> Any:
    """Returns the value with lists in place of tuples, as in JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
