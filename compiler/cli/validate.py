"""`vidc validate`: checks that a bundle computes what PyTorch computes."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli.group import PATH, Command, Invocation, bundle_argument, trust_option
from vidc.compiler.cli.output import columns, json_option, print_json, print_text, why_not_beside
from vidc.plugins.errors import GateError, UsageError, VidcError

if TYPE_CHECKING:
    from vidc.compiler.debug.debug import Diagnosis
    from vidc.compiler.validate.check import Validation
    from vidc.runtime.bundle import Bundle
    from vidc.runtime.manifest import Manifest


@click.command(cls=Command)
@bundle_argument
@click.option(
    "--report",
    type=PATH,
    help="HTML report to write.  [default: BUNDLE.report.html if a gate fails; the build's "
    "report is in the bundle]",
)
@click.option(
    "--video",
    type=PATH,
    help="Side-by-side video of reference, engine and magnified difference: .mp4, .webp or .gif.",
)
@click.option(
    "--debug",
    is_flag=True,
    help="Find the first diverging value of each failed component and write a minimal ONNX "
    "reproducer to BUNDLE.debug. Compiled engines are rebuilt a few times for this.",
)
@click.option(
    "--polygraphy",
    type=PATH,
    metavar="FOLDER",
    help="Write inputs and PyTorch's results of each component's first golden call as Polygraphy's "
    "JSON, and print the commands that compare them. For ONNX graphs on a CPU.",
)
@trust_option
@json_option
def command(
    bundle: Path,
    report: Path | None,
    video: Path | None,
    debug: bool,
    polygraphy: Path | None,
    trust: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Check that a bundle computes the model.

    Replays the golden data that PyTorch computed for the build. Exits 1 if a gate fails.
    """
    from vidc.runtime.manifest import read_manifest

    manifest = read_manifest(bundle)
    place = report or bundle.absolute().with_name(f"{bundle.absolute().name}.report.html")
    if (why := why_not_beside(place, bundle)) is not None:
        raise _no_report(place, why)
    if video is not None:
        _require_video(video, bundle, manifest)
    if debug:
        from vidc.compiler.debug.debug import require_debuggable

        require_debuggable(manifest)
    if polygraphy is not None:
        _require_polygraphy(polygraphy, bundle, manifest)
    loaded, validation = _replayed(bundle, manifest, trust)
    failure: VidcError | None = None
    # A bundle that passes keeps the report of its build.
    page = place if report is not None or not validation.passed else None
    try:
        if page is not None:
            page.write_text(validation.html(), encoding="utf-8")
    except OSError as error:
        failure = _no_report(place, str(error.strerror))
    shown = False
    try:
        shown = video is not None and _write_video(video, validation)
    except VidcError as error:
        failure = failure or error
    if not as_json:
        invocation = click.get_current_context().find_object(Invocation)
        whole = not validation.passed or (invocation is not None and invocation.verbose)
        _print(validation, page, video if shown else None, whole)
    diagnoses: list[Diagnosis] = []
    commands: dict[str, str] = {}
    try:
        if polygraphy is not None:
            commands = _write_golden_calls(bundle, loaded, validation, polygraphy)
        diagnoses = _debug(bundle, loaded, validation) if debug else []
    except VidcError as error:
        failure = failure or error
    if as_json:
        found = {"debug": [each.to_json() for each in diagnoses]} if debug else {}
        written: dict[str, str | None] = {"video": str(video)} if shown else {}
        written["report"] = None if page is None else str(page)
        calls = {"polygraphy": commands} if polygraphy is not None else {}
        print_json({**validation.to_json(), **written, **calls, **found})
    elif commands or diagnoses:
        print_text("\n".join([*commands.values(), *(each.text for each in diagnoses)]))
    if failure is not None:
        raise failure
    failed = [gate for gate in validation.comparison.gates if not gate.passed]
    if not validation.passed:
        raise GateError(
            "VIDC-VALIDATE-FAILED",
            f"{bundle}: {len(failed)} of {len(validation.comparison.gates)} gates failed",
            f"open {page}; build the bundle again if its files are whole",
        )


def _replayed(
    path: Path, manifest: "Manifest", trust: tuple[Path, ...]
) -> "tuple[Bundle, Validation]":
    """Loads a bundle and validates it with its golden data."""
    from vidc.compiler.config.tables import model_from_json
    from vidc.compiler.validate.check import validate
    from vidc.compiler.validate.estimate import about, replay_seconds
    from vidc.compiler.validate.golden import Golden
    from vidc.compiler.validate.perceptual import find_lpips
    from vidc.exporters.models import PRECISIONS
    from vidc.runtime.bundle import load

    click.echo("checking files and loading engines", err=True)
    loaded = load(path, trust=trust or None)
    golden = Golden.load(path)
    takes = ""
    if loaded.device.type == "cpu":
        quantized = any(e.precision not in PRECISIONS for e in manifest.engines.values())
        model = model_from_json(manifest.config)
        takes = about(replay_seconds(model, golden.scenario, quantized))
    click.echo(f"replaying {manifest.name}{f': {takes} on this CPU' if takes else ''}", err=True)
    lpips = find_lpips(loaded.spec.frame_size, loaded.device)
    return loaded, validate(manifest, loaded, golden, lpips)


def _print(validation: "Validation", page: Path | None, video: Path | None, whole: bool) -> None:
    """Prints every gate if ``whole``, else those nearest to their limits."""
    if whole:
        _print_all(validation)
    else:
        _print_nearest(validation)
    if validation.lpips is not None and whole:
        print_text(f"LPIPS is not measured: {validation.lpips}")
    if page is not None:
        print_text(f"report: {page}")
    if video is not None:
        print_text(f"video: {video}")


def _print_nearest(validation: "Validation") -> None:
    """Prints the gate of each level and metric that is nearest to its limit."""
    from vidc.compiler.validate.gates import nearest_gates
    from vidc.compiler.validate.report import LABELS, format_figure, format_limit

    gates = validation.comparison.gates
    print_text(
        f"{validation.manifest.name}: all {len(gates)} gates passed; nearest to their limits:"
    )
    rows: list[tuple[str, ...]] = []
    for gate in nearest_gates(gates):
        block = "" if gate.block is None else f", block {gate.block}"
        value = format_figure(gate.value, gate.metric, gate.threshold)
        rows.append(
            (gate.where, LABELS[gate.metric], value, format_limit(gate), f"{gate.component}{block}")
        )
    print_text(columns(rows))
    print_text("-v shows all of them")


def _print_all(validation: "Validation") -> None:
    rows: list[tuple[str, ...]] = [("component", "block", "metric", "value", "threshold", "")]
    rows += [
        (
            gate.component,
            "" if gate.block is None else str(gate.block),
            gate.metric,
            "not measured" if gate.value is None else f"{gate.value:.3g}",
            f"{gate.threshold:g}",
            "passed" if gate.passed else "FAILED",
        )
        for gate in validation.comparison.gates
    ]
    print_text(columns(rows))
    print_text(f"\n{columns(_components(validation))}\n")


def _write_golden_calls(
    path: Path, loaded: "Bundle", validation: "Validation", output: Path
) -> dict[str, str]:
    """Writes data for Polygraphy; returns a command for each component."""
    from vidc.compiler.debug.golden_calls import write_golden_calls

    click.echo("computing PyTorch's results of each component's first call", err=True)
    written = write_golden_calls(path.absolute(), loaded, validation, output.absolute())
    return {name: shlex.join(data.run()) for name, data in written.items()}


def _debug(path: Path, loaded: "Bundle", validation: "Validation") -> "list[Diagnosis]":
    from vidc.compiler.debug.debug import debug
    from vidc.runtime.faults import gpu_faults

    if validation.passed:
        click.echo("no gate failed: there is nothing to debug", err=True)
        return []
    click.echo("looking for the first values that differ", err=True)
    folder = path.absolute()
    output = folder.with_name(f"{folder.name}.debug")
    with gpu_faults(loaded.device):
        found = debug(folder, loaded, validation, output, lambda text: click.echo(text, err=True))
    if not found:
        click.echo("no component errs by itself: the errors grow from block to block", err=True)
    return found


def _components(validation: "Validation") -> list[tuple[str, ...]]:
    """Returns a table of each component's metrics, including those without a gate."""
    from vidc.compiler.validate.check import TENSOR
    from vidc.compiler.validate.report import LABELS, format_figure

    rows: list[tuple[str, ...]] = [("component", *(LABELS[name] for name in TENSOR))]
    for row in validation.comparison.components:
        figures = (
            format_figure(None if row.metrics is None else getattr(row.metrics, name), name)
            for name in TENSOR
        )
        rows.append((row.subject.component, *figures))
    return rows


def _write_video(video: Path, validation: "Validation") -> bool:
    """Writes the video and returns True; returns False if no frames were compared."""
    from vidc.compiler.validate.side_by_side import write_video

    if not validation.comparison.frames:
        click.echo("no frame was compared: there is no video", err=True)
        return False
    switches = validation.golden.switches
    write_video(video, validation.comparison.frames, switches)
    return True


def _require_video(video: Path, bundle: Path, manifest: "Manifest") -> None:
    """Refuses a video that cannot be written, before the frames are computed."""
    from vidc.runtime.video import check_format

    check_format(video)
    why = why_not_beside(video.absolute(), bundle)
    if manifest.validation.level == "component":
        why = "the bundle is validated component by component: it has no rollout to show"
    if why is not None:
        raise UsageError(
            "VIDC-VALIDATE-VIDEO",
            f"the video cannot be written to {video}: {why}",
            "name another file with --video, or leave it out",
        )


def _require_polygraphy(folder: Path, bundle: Path, manifest: "Manifest") -> None:
    """Refuses data for Polygraphy that cannot be written, before the golden data are replayed."""
    from vidc.compiler.debug.golden_calls import require_graphs

    require_graphs(manifest)
    why = why_not_beside((folder / "data.json" if folder.is_dir() else folder).absolute(), bundle)
    if why is not None:
        raise UsageError(
            "VIDC-VALIDATE-POLYGRAPHY",
            f"data for Polygraphy cannot be written to {folder}: {why}",
            "name another folder with --polygraphy",
        )


def _no_report(page: Path, why: str) -> UsageError:
    return UsageError(
        "VIDC-VALIDATE-REPORT",
        f"the report cannot be written to {page}: {why}",
        "name another file with --report",
    )
