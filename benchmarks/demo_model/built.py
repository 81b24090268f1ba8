"""What `vidc build` measures of the demo model in 8 bits, recipe by recipe, as JSON.

    vidc calibrate demo --gpu cpu --checkpoint configs/demo -o out/demo-calibration
    PYTHONPATH=benchmarks python -m demo_model.built out/demo-calibration out/built \
      benchmarks/results/demo-8bit.json

Each recipe is built for a CPU, and the figures are those of the build's own validation: 12 blocks
against float32 with the same noise. They are kept whether its gates pass, and the bundle is
published, or not. Recipes that are named are built alone, and the file's other rows stay. What
is printed are the rows of the table in docs/evidence/quality.md.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.document import DOCUMENT
from vidc.compiler.validate import check
from vidc.compiler.validate.check import Validation, validate
from vidc.compiler.validate.golden import Golden
from vidc.plugins.errors import GateError
from vidc.runtime.bundle import load
from vidc.runtime.manifest import read_manifest

CHECKPOINT = Path(__file__).parents[2] / "configs/demo"
RECIPES = {
    "int8-static": ("int8", "onnxruntime"),
    "fp8-linear": ("fp8", "aoti"),
    "fp8-int8-attention": ("fp8", "aoti"),
    "fp8": ("fp8", "aoti"),
    "int8-attention": ("int8", "aoti"),
    "fp8-dynamic": ("fp8", "aoti"),
    "kv-int8": ("int8", "aoti"),
    "kv-fp8": ("fp8", "aoti"),
    "int8": ("int8", "aoti"),
    "int8-weight-only": ("int8", "onnxruntime"),
}
"""Precision and backend of each."""


def validated(recipe: str, calibration: Path, output: Path) -> tuple[Validation, float]:
    """Builds the demo by a recipe.

    Args:
        recipe: one of ``RECIPES``.
        calibration: of the demo's weights; a recipe that takes no ranges does not read it.
        output: the bundle's folder.

    Returns:
        the build's validation, and the share of the Linears' products that are in 8 bits.
    """
    precision, backend = RECIPES[recipe]
    settings = resolve(
        "demo", gpu="cpu", precision=precision, recipe=recipe, backend=backend, environ=os.environ
    )
    model, sources = SourceOptions(CHECKPOINT).resolve(settings.model)
    settings = replace(settings, model=model)
    assert settings.quantization is not None
    if settings.quantization.calibrated:
        sources = replace(sources, calibration=calibration)
    found: list[Validation] = []

    def recorded(*arguments: Any) -> Validation:
        found.append(validate(*arguments))
        return found[-1]

    # A build that its gates stop leaves its figures in a page alone.
    with patch.object(check, "validate", recorded):
        try:
            whole(settings, sources).run(output, cache_root(os.environ), LineProgress())
        except GateError:
            if not found:
                raise
    if not found:
        # The bundle was there already.
        found.append(validate(read_manifest(output), load(output), Golden.load(output)))
    return found[-1], apply_recipe(settings.quantization.recipe, model).flops_share


def figures(validation: Mapping[str, Any]) -> dict[str, Any]:
    """The compact part of what ``vidc validate --json`` has.

    Args:
        validation: the document.
    """
    limits = {
        gate["component"]: gate["threshold"]
        for gate in validation["gates"]
        if (gate["where"], gate["metric"]) == ("component", "relative_l2")
    }
    components = {
        row["component"]: {
            "relative L2": row["relative_l2"],
            "limit": limits.get(row["component"]),
            "PyTorch's": validation["eager"]["components"].get(row["component"]),
        }
        for row in validation["components"]
    }
    blocks = [{"dB": row["psnr_db"], "SSIM": row["ssim"]} for row in validation["rollout"]]
    return {
        "passed": validation["passed"],
        "gates": len(validation["gates"]),
        "failed": sum(not gate["passed"] for gate in validation["gates"]),
        "worst component": max(components, key=lambda name: components[name]["relative L2"]),
        "components": components,
        "worst block": {name: min(block[name] for block in blocks) for name in ("dB", "SSIM")},
        "blocks": blocks,
    }


def table_row(row: Mapping[str, Any]) -> str:
    """A row of the file as docs/evidence/quality.md has it."""
    worst, component = row["worst block"], row["worst component"]
    error = row["components"][component]["relative L2"]
    judged = "passes" if row["passed"] else f"**misses** {row['failed']} of {row['gates']} gates"
    return (
        f"| `{row['recipe']}` | `{row['backend']}` | {error:.3f}, `{component}` | "
        f"{worst['dB']:.1f} dB | {worst['SSIM']:.4f} | {judged} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("folder", type=Path, help="a new one, for bundles and reports")
    parser.add_argument("results", type=Path)
    parser.add_argument("recipes", nargs="*")
    options = parser.parse_args()
    tensors = json.loads((options.calibration / DOCUMENT).read_text())["tensors"]["sha256"]
    options.folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    if options.recipes and options.results.exists():
        rows = {row["recipe"]: row for row in json.loads(options.results.read_text())["rows"]}
    for recipe in options.recipes or RECIPES:
        precision, backend = RECIPES[recipe]
        validation, share = validated(recipe, options.calibration, options.folder / recipe)
        rows[recipe] = {
            "recipe": recipe,
            "precision": precision,
            "backend": backend,
            "share of Linears' products": share,
            **figures(validation.to_json()),
            "calibration": tensors,
            "fingerprint": fingerprint(torch.device("cpu")),
        }
        shown = {name: rows[recipe][name] for name in ("recipe", "passed", "worst block")}
        print(json.dumps(shown), file=sys.stderr, flush=True)
        ordered = [rows[name] for name in RECIPES if name in rows]
        # One that is interrupted keeps what it has.
        options.results.write_text(json.dumps({"schema": 1, "rows": ordered}, indent=1) + "\n")
    print("\n".join(map(table_row, ordered)))


if __name__ == "__main__":
    main()
