"""Rebuilds and runs engines with the settings of a bundle's engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from vidc.compiler.backends import CompileOptions, backend
from vidc.compiler.build.program import ComponentProgram
from vidc.compiler.config.targets import Target
from vidc.compiler.debug.call_inputs import as_program
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.program import save_program
from vidc.plugins.signature import Signature, state_output
from vidc.runtime import manifest
from vidc.runtime.engines import Engine, loader
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.weights import Weights


@dataclass(frozen=True)
class Rebuilder:
    """Builds engines from a component's programs.

    Attributes:
        folder: folder of the bundle.
        entry: the component's engine in the bundle's manifest.
        target: target of that engine.
        weights: weights of the bundle.
        device: device that engines run on.
        options: options of each compilation.
    """

    folder: Path
    entry: manifest.Engine
    target: Target
    weights: Weights
    device: torch.device
    options: CompileOptions

    def run(self, made: ComponentProgram, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Builds an engine of a program and runs it once, as ``once`` does.

        Raises:
            VidcError: as the backend and the loader.
        """
        with TemporaryDirectory() as temporary:
            source, output = Path(temporary, "program"), Path(temporary, "engine")
            source.mkdir()
            output.mkdir()
            exported = ExportedComponent(made.name, source, made.signature, made.aligned)
            save_program(made.program, exported.program)
            chosen = backend(self.entry.backend)
            kernels = dict.fromkeys(chosen.kernels(self.target), self._kernels(Path(temporary)))
            built = chosen.compile(exported, self.target, kernels, output, self.options)
            entry = replace(
                self.entry,
                loader=built.loader,
                version=built.version,
                files=built.files,
                signature=built.signature,
                options=dict(built.options),
                requires=built.requires,
            )
            with Files(output) as files:
                engine = loader(entry.loader)(files, entry, self.weights, self.device)
            return self.once(engine, made.signature, given)

    def once(
        self, engine: Engine, signature: Signature, given: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Runs an engine once and returns its outputs by name, its new states by ``state_output``.

        Args:
            engine: engine to run.
            signature: signature of the program; states are returned in its layout and dtypes.
            given: inputs and states, with the axes of the component.

        Returns:
            Tensors on the CPU.
        """
        specs, device = engine.signature, self.device
        buffers, states = Buffers(specs, device), States([specs], device)
        for spec in specs.arguments:
            if spec.reads:
                spec.original(argument(spec, buffers, states)).copy_(given[spec.name])
        engine.run(buffers, states)
        found = {name: tensor.cpu() for name, tensor in buffers.outputs.items()}
        for spec in specs.states:
            if spec.writes:
                kept = spec.original(states[spec.name])
                own = as_program(spec, signature[spec.name], kept, engine.weight)
                found[state_output(spec.name)] = own.cpu()
        return found

    def _kernels(self, temporary: Path) -> Path:
        """Returns a folder of the bundle's compiled kernels, as the compile stage lays it out."""
        folder = temporary / "kernels"
        folder.mkdir(exist_ok=True)
        first, *others = map(Path, self.entry.files)
        for file in others:
            if file.stem != first.stem:  # The engine's own files have its name.
                (folder / file.name).symlink_to((self.folder / file).absolute())
        return folder
