"""Golden calls of a bundle's components as data for Polygraphy."""

from pathlib import Path

from vidc.compiler.build.program import component_program
from vidc.compiler.debug import polygraphy_data
from vidc.compiler.debug.call_inputs import CallInputs, inputs_of_first_calls
from vidc.compiler.debug.debug import engine_settings, has_graph
from vidc.compiler.debug.polygraphy_data import PolygraphyData
from vidc.compiler.debug.reference import graph_reference
from vidc.compiler.validate.check import Validation
from vidc.compiler.validate.gates import Where
from vidc.compiler.validate.play import Player
from vidc.plugins.errors import UsageError
from vidc.runtime.bundle import Bundle
from vidc.runtime.manifest import Manifest
from vidc.runtime.weights import Weights


def write_golden_calls(
    folder: Path, bundle: Bundle, validation: Validation, output: Path
) -> dict[str, PolygraphyData]:
    """Writes each component's first golden call for Polygraphy: inputs and PyTorch's results.

    Args:
        folder: folder of a bundle that ``require_graphs`` accepts.
        bundle: loaded bundle.
        validation: validation of the bundle.
        output: folder for the data; created when needed.

    Returns:
        Data by component, in the order of the first calls.

    Raises:
        UsageError: ``VIDC-VALIDATE-REPORT`` if ``output`` cannot be written.
    """
    manifest = validation.manifest
    files = {name: folder / entry.path for name, entry in manifest.weights.items()}
    weights = Weights(files, bundle.device)
    player, written = Player(bundle.program, bundle.resources), {}
    limits = {
        gate.component: gate.threshold
        for gate in validation.comparison.gates
        if gate.where is Where.COMPONENT and gate.metric == "relative_l2"
    }
    try:
        output.mkdir(exist_ok=True)
        for name, stored in inputs_of_first_calls(validation.golden, player).items():
            entry = manifest.engines[name]
            made = component_program(engine_settings(manifest, entry), name)
            given = CallInputs.of(bundle.engines[name], made.signature, stored, weights)
            results = graph_reference(made, given).values(entry.signature.graph_outputs())
            graph = folder / entry.files[0]
            written[name] = polygraphy_data.write(
                graph, given.stored, results, limits[name], output
            )
    except OSError as error:
        raise UsageError(
            "VIDC-VALIDATE-REPORT",
            f"data for Polygraphy cannot be written to {output}: {error.strerror}",
            "name another folder with --polygraphy",
        ) from error
    return written


def require_graphs(manifest: Manifest) -> None:
    """Refuses a bundle whose engines are not all portable graphs for a CPU.

    Raises:
        UsageError: ``VIDC-VALIDATE-POLYGRAPHY``.
        UnavailableError: ``VIDC-ENV-POLYGRAPHY``.
    """
    polygraphy_data.require_polygraphy()
    for name, entry in manifest.engines.items():
        if not has_graph(entry, manifest):
            raise UsageError(
                "VIDC-VALIDATE-POLYGRAPHY",
                f"--polygraphy is for ONNX graphs on a CPU, and {name} is an engine of "
                f"{entry.backend} for {manifest.target.name}",
                "build the same with --backend onnxruntime --gpu cpu",
            )
