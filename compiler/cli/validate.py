"""`vidc validate`: whether a bundle still computes what PyTorch computes."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli.output import columns, json_option, print_json, print_text, why_not_writable
from vidc.compiler.cli.sources import Given, sources_options
from vidc.plugins.errors import GateError, UsageError

if TYPE_CHECKING:
    from vidc.compiler.bisect.debug import Diagnosis
    from vidc.compiler.validate.check import Validation
    from vidc.runtime.bundle import Bundle


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Where to write the HTML report.  [default: BUNDLE.report.html]",
)
@click.option(
    "--debug",
    is_flag=True,
    help="Find where a component that fails begins to differ, and write what shows it to "
    "BUNDLE.debug.",
)
@sources_options
@json_option
def command(bundle: Path, report: Path | None, debug: bool, given: Given, as_json: bool) -> None:
    """Check that a bundle computes the model.

    Replays the bundle's golden data, made by PyTorch when it was built; with a checkpoint, PyTorch
    makes them again. Exits 1 if a gate fails.
    """
    from vidc.compiler.estimate import reference_seconds, replay_seconds
    from vidc.compiler.settings.tables import model_from_json
    from vidc.compiler.validate.check import validate
    from vidc.compiler.validate.golden import Golden
    from vidc.runtime.bundle import load
    from vidc.runtime.manifest import read_manifest

    manifest = read_manifest(bundle)
    page = report or bundle.absolute().with_name(f"{bundle.absolute().name}.report.html")
    if (why := why_not_writable(page)) is not None:
        raise _no_report(page, why)
    if debug:
        from vidc.compiler.bisect.debug import require_graphs

        require_graphs(manifest)
    config = model_from_json(manifest.config)
    sources = given.resolve(config)[1] if given.any else None
    click.echo("checking files and loading engines", err=True)
    loaded = load(bundle, verify="full")
    golden = Golden.load(bundle)
    if sources is not None:
        from vidc.compiler.validate.recompute import recompute

        precisions = {group: manifest.config["precision"][group] for group in manifest.weights}
        _tell("computing the reference", reference_seconds(config, golden.scenario, precisions))
        golden = recompute(
            manifest, sources, golden.scenario, lambda text: click.echo(text, err=True)
        )
    on_cpu = loaded.device.type == "cpu"
    seconds = replay_seconds(config, golden.scenario) if on_cpu else 0.0
    _tell(f"replaying {manifest.name}", seconds)
    validation = validate(manifest, loaded, golden)
    failure: UsageError | None = None
    try:
        page.write_text(validation.html(), encoding="utf-8")
    except OSError as error:
        failure = _no_report(page, str(error.strerror))
    if not as_json:
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
        print_text(f"report: {page}")
    diagnoses: list[Diagnosis] = []
    try:
        diagnoses = _debug(bundle, loaded, validation) if debug else []
    except UsageError as error:
        failure = failure or error
    if as_json:
        found = {"debug": [each.to_json() for each in diagnoses]} if debug else {}
        print_json({**validation.to_json(), "report": str(page), **found})
    elif diagnoses:
        print_text("\n".join(diagnosis.text for diagnosis in diagnoses))
    if failure is not None:
        raise failure
    failed = [gate for gate in validation.comparison.gates if not gate.passed]
    if not validation.passed:
        raise GateError(
            "VIDC-VALIDATE-FAILED",
            f"{bundle}: {len(failed)} of {len(validation.comparison.gates)} gates failed",
            f"open {page}; build the bundle again if its files are whole",
        )


def _debug(path: Path, loaded: "Bundle", validation: "Validation") -> "list[Diagnosis]":
    from vidc.compiler.bisect.debug import debug

    if validation.passed:
        click.echo("no gate failed: there is nothing to debug", err=True)
        return []
    click.echo("looking for the first values that differ", err=True)
    folder = path.absolute()
    found = debug(folder, loaded, validation, folder.with_name(f"{folder.name}.debug"))
    if not found:
        click.echo("no component errs by itself: the errors grow from block to block", err=True)
    return found


def _tell(doing: str, seconds: float) -> None:
    from vidc.compiler.estimate import about

    takes = about(seconds)
    click.echo(f"{doing}: {takes} on this CPU" if takes else doing, err=True)


def _no_report(page: Path, why: str) -> UsageError:
    return UsageError(
        "VIDC-VALIDATE-REPORT",
        f"the report cannot be written to {page}: {why}",
        "name another file with --report",
    )
