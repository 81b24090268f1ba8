"""Plants faults in 8-bit bundles of the demo and has vidc find them: by which component, as JSON.

    vidc calibrate demo --gpu cpu --checkpoint configs/demo -o out/demo-calibration
    PYTHONPATH=benchmarks python -m demo_model.faults out/demo-calibration out/faults \
      > benchmarks/results/demo-faults.json

A fault is planted in the weights of a bundle that passes, whose manifest is then made to fit, and
`vidc validate` has to fail. A calibration on noise alone, whose prompts are the preset's and whose
latents are noise in every pass, must not become a bundle of quantized Linears; its weights in one
must fail too. Rings alone are not tried with it.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

from demo_model.evaluation.eager import eager_bundle
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.build.build import whole
from vidc.compiler.build.calibration_rollouts import Rollouts
from vidc.compiler.build.stages import package_step, slot, stages
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.cli.validate import command as validate
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.schema import CalibrateConfig
from vidc.compiler.config.tables import read_table
from vidc.compiler.quantize.artifact import read_calibration, write_calibration
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.store.run import run
from vidc.compiler.store.store import Store
from vidc.compiler.validate.reference import EagerEngine
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import write_weights
from vidc.exporters.families.causal_video import CausalVideo
from vidc.plugins.errors import VidcError
from vidc.plugins.names import weights_path
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import read_manifest, write_manifest
from vidc.runtime.states import Buffers, States

CHECKPOINT = Path(__file__).parents[2] / "configs/demo"
GROUP = "transformer"
RECIPES = (
    ("int8", "int8-static", "onnxruntime"),
    ("int8", "kv-int8", "onnxruntime"),
    ("fp8", "fp8-linear", "aoti"),
)
"""Precision, recipe and backend of bundles that pass."""
PROMPTS = 4
"""Of the calibration on noise."""
ON_NOISE = "calibration on noise alone"
Weights = dict[str, Tensor]


def scales(weights: Weights, layer: str) -> str:
    """The name of a layer's scales of output channels."""
    names = [f"{layer}.{name}" for name in ("weight_scale", "product_scale")]
    return next(name for name in names if name in weights)


def wrong(weights: Weights) -> None:
    """One layer's scales twice as large."""
    weights[scales(weights, "blocks.3.ffn.net.2")] *= 2


def skipped(weights: Weights) -> None:
    """One layer gives its bias alone."""
    weights[scales(weights, "blocks.3.ffn.net.2")] *= 0


def swapped(weights: Weights) -> None:
    """One layer's scales of keys and values."""
    exchange(weights, *(scales(weights, f"blocks.3.attn1.to_{part}") for part in "kv"))


def swapped_rings(weights: Weights) -> None:
    """Every ring's scales of keys and values."""
    for layer in range(8):
        exchange(weights, *(f"blocks.{layer}.attn1.{part}_scale" for part in ("key", "value")))


def update(others: Weights, weights: Weights) -> None:
    """All that another file has."""
    weights.update(others)


def exchange(weights: Weights, one: str, other: str) -> None:
    """Two tensors."""
    weights[one], weights[other] = weights[other], weights[one]


class OnNoise(EagerEngine):
    """A component that is given noise for a latent, whatever comes.

    Args:
        engine: of the component.
    """

    def __init__(self, engine: EagerEngine) -> None:
        self.module, self.signature = engine.module, engine.signature

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the module over other latents."""
        for spec in self.signature.arguments:
            if spec.name.startswith("latent"):
                buffers[spec.name].normal_()
        super().run(buffers, states)


def calibrate_on_noise(like: Path, folder: Path) -> Path:
    """Writes a calibration with the document of another one, whose latents were noise."""
    torch.manual_seed(0)
    with TemporaryDirectory() as loaded, torch.inference_mode():
        preset = load_preset("demo")
        sizes = preset.model
        assert isinstance(sizes, CausalVideo)
        config, bundle = eager_bundle(sizes, CHECKPOINT, Path(loaded))
        engines = {
            name: OnNoise(engine)
            for name, engine in bundle.engines.items()
            if isinstance(engine, EagerEngine) and not name.startswith("vae_")
        }
        encode = bundle.resources.shared
        texts = read_table(CalibrateConfig, preset.layer, "calibrate").prompts[: PROMPTS + 1]
        prompts = [encode(text)[0].clone() for text in texts]
        rollouts = Rollouts(config, engines, torch.device("cpu"), 0)
        ranges = rollouts.weights()
        for index in range(PROMPTS):
            pair = torch.stack(prompts[index : index + 2])
            ranges = merged(ranges, rollouts.ranges(index, pair))
        document = read_calibration(like, config).document
    folder.mkdir(parents=True)
    write_calibration(folder, document, finished(ranges))
    return folder


class Planter:
    """A recipe's bundle, and faults in it.

    Args:
        precision: of the recipe.
        recipe: its name.
        backend: that builds it.
        calibration: a good one.
        folder: a new one, for bundles.
    """

    def __init__(
        self, precision: str, recipe: str, backend: str, calibration: Path, folder: Path
    ) -> None:
        settings = resolve(
            "demo", gpu="cpu", precision=precision, recipe=recipe, backend=backend,
            environ=os.environ,
        )  # fmt: skip
        model, sources = SourceOptions(CHECKPOINT).resolve(settings.model)
        self._settings = replace(settings, model=model)
        self._sources = replace(sources, calibration=calibration)
        self._cache = cache_root(os.environ)
        self._recipe, self._folder = recipe, folder
        self._good = self._build(calibration, folder / "good")

    def row(self, fault: str, plant: Callable[[Weights], None]) -> dict[str, Any]:
        """What `vidc validate` says of a bundle whose weights this has changed."""
        bundle = shutil.copytree(self._good, self._folder / "bad")
        path = bundle / weights_path(GROUP)
        # Copies, for a file that is mapped is about to be overwritten.
        weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
        plant(weights)
        write_weights(path, {name: LazyTensor.of(tensor) for name, tensor in weights.items()})
        manifest = read_manifest(bundle)
        files = {name: file_entry(bundle / name) for name in manifest.files}
        write_manifest(replace(manifest, files=files), bundle)
        done = CliRunner().invoke(validate, [str(bundle), "--json"])
        shutil.rmtree(bundle)
        gates = json.loads(done.stdout)["gates"]
        failed = [gate for gate in gates if not gate["passed"]]
        frames = [gate["value"] for gate in gates if gate["metric"] == "psnr_db"]
        return {
            "recipe": self._recipe,
            "fault": fault,
            "exit": done.exit_code,
            "gates": len(gates),
            "failed": len(failed),
            "components": list(dict.fromkeys(g["component"] for g in failed if "block" not in g)),
            "denoise": _error(gates, "denoise"),
            "kv_update": _error(gates, "kv_update"),
            "worst block, dB": min(frames),
        }

    def build_on(self, calibration: Path) -> dict[str, Any]:
        """What a build says of a calibration."""
        try:
            self._build(calibration, self._folder / "built")
        except VidcError as error:
            return {"code": error.code, "said": error.message}
        return {"code": None, "said": "built"}

    def weights_of(self, calibration: Path) -> Weights:
        """The transformer's in 8 bits, by another calibration."""
        name = package_step(self._settings).weights[GROUP]
        sources = replace(self._sources, calibration=calibration)
        work = [s for s in stages(self._settings, sources) if s.name in (name, f"load:{GROUP}")]
        with Store(self._cache) as store:
            results = run(work, store, slot(self._settings), LineProgress())
            found: Weights = load_file(results[name].path / weights_path(GROUP))
            return found

    def _build(self, calibration: Path, output: Path) -> Path:
        sources = replace(self._sources, calibration=calibration)
        return whole(self._settings, sources).run(output, self._cache, LineProgress()).output


def _error(gates: list[dict[str, Any]], component: str) -> dict[str, float]:
    (gate,) = (
        gate
        for gate in gates
        if (gate["where"], gate["component"], gate["metric"])
        == ("component", component, "relative_l2")
    )
    return {"relative L2": gate["value"], "limit": gate["threshold"]}


def rows(calibration: Path, noise: Path, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each recipe and fault, and one without.

    Args:
        calibration: a good one.
        noise: one on noise alone.
        folder: a new one, for bundles.
    """
    for precision, recipe, backend in RECIPES:
        planter = Planter(precision, recipe, backend, calibration, folder / recipe)
        rings_alone = recipe.startswith("kv-")
        faults: dict[str, Callable[[Weights], None]] = {"none": lambda weights: None}
        if rings_alone:
            faults["scales of keys and values swapped"] = swapped_rings
        else:
            faults["a scale twice as large"] = wrong
            faults["a layer skipped"] = skipped
            faults["scales of keys and values swapped"] = swapped
            faults[ON_NOISE] = partial(update, planter.weights_of(noise))
        for fault, plant in faults.items():
            row = planter.row(fault, plant)
            if fault == ON_NOISE:
                row["build"] = planter.build_on(noise)
            print(json.dumps(row), file=sys.stderr, flush=True)
            yield row


def told_apart(row: Mapping[str, Any]) -> bool:
    """Whether a row says what it should: a bundle without a fault passes, no other does."""
    built = row.get("build", {"code": "not built"})["code"] is None
    return (row["fault"] == "none") == (row["exit"] == 0) and not built


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("folder", type=Path, help="a new one")
    options = parser.parse_args()
    noise = calibrate_on_noise(options.calibration, options.folder / "noise")
    document: dict[str, Any] = {
        "schema": 1,
        "rows": list(rows(options.calibration, noise, options.folder)),
        "fingerprint": fingerprint(torch.device("cpu")),
    }
    print(json.dumps(document, indent=1))
    missed = [row for row in document["rows"] if not told_apart(row)]
    if missed:
        sys.exit(f"not told apart: {[(row['recipe'], row['fault']) for row in missed]}")


if __name__ == "__main__":
    main()
