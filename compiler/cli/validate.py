"""`vidc validate`: whether a bundle still computes what PyTorch computes."""

from pathlib import Path

import click

from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.cli.sources import Given, sources_options
from vidc.plugins.errors import GateError


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--report",
    type=click.Path(path_type=Path),
    help="Where to write the HTML report.  [default: BUNDLE.report.html]",
)
@sources_options
@json_option
def command(bundle: Path, report: Path | None, given: Given, as_json: bool) -> None:
    """Check that a bundle computes the model.

    Replays the bundle's golden data, made by PyTorch when it was built; with a checkpoint, PyTorch
    makes them again. Exits 1 if a gate fails.
    """
    from vidc.compiler.validate.check import validate
    from vidc.compiler.validate.golden import Golden
    from vidc.runtime.bundle import load
    from vidc.runtime.manifest import read_manifest

    manifest = read_manifest(bundle)
    click.echo("checking files and loading engines", err=True)
    loaded = load(bundle, verify="full")
    golden = Golden.load(bundle)
    if given.any:
        from vidc.compiler.settings.tables import model_from_json
        from vidc.compiler.validate.recompute import recompute

        click.echo("computing the reference", err=True)
        _, sources = given.resolve(model_from_json(manifest.config))
        golden = recompute(manifest, sources, golden.scenario)
    click.echo(f"replaying {manifest.name}", err=True)
    validation = validate(manifest, loaded, golden)
    page = report or bundle.absolute().with_name(f"{bundle.absolute().name}.report.html")
    page.write_text(validation.html(), encoding="utf-8")
    if as_json:
        print_json({**validation.to_json(), "report": str(page)})
    else:
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
    failed = [gate for gate in validation.comparison.gates if not gate.passed]
    if not validation.passed:
        raise GateError(
            "VIDC-VALIDATE-FAILED",
            f"{bundle}: {len(failed)} of {len(validation.comparison.gates)} gates failed",
            f"open {page}; build the bundle again if its files are whole",
        )
