"""Files of an exported component, for backends to compile."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from vidc.plugins.signature import Signature

SIGNATURE_NAME = "signature.json"


@dataclass(frozen=True)
class ExportedComponent:
    """One component's graphs, without weights, in a folder.

    ``program`` is an ExportedProgram whose states are written in place and whose operators of
    namespace ``vidc`` are opaque. ``onnx`` is the functional form of standard operators; its
    weights are external data in ``weights/<file>.safetensors`` beside it. Both name weights
    ``<weights file>.<key>``. ``aligned`` is as in ``Component``.
    """

    name: str
    folder: Path
    signature: Signature
    aligned: bool = False

    @property
    def program(self) -> Path:
        """The ExportedProgram, ``.pt2``."""
        return self.folder / f"{self.name}.pt2"

    @property
    def onnx(self) -> Path:
        """The portable ONNX graph."""
        return self.folder / f"{self.name}.onnx"

    def write_signature(self) -> None:
        """Writes the component's name, signature and alignment for ``open``."""
        document = {
            "component": self.name,
            "signature": self.signature.to_json(),
            "aligned": self.aligned,
        }
        (self.folder / SIGNATURE_NAME).write_text(json.dumps(document, indent=1) + "\n")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the component in a folder."""
        document = json.loads((folder / SIGNATURE_NAME).read_text())
        signature = Signature.from_json(document["signature"])
        return cls(document["component"], folder, signature, document["aligned"])
