"""Compares a transformer in fp32 and in INT8 on a CPU: size, seconds a block, error, and why.

    python benchmarks/quantized_cpu.py demo CALIBRATION > benchmarks/results/quantized-cpu-demo.json

CALIBRATION is what `vidc calibrate demo --gpu cpu --random-weights 1 -n 4` wrote: random weights.
A block is its denoising passes and the clean pass over a full window, without the VAE, which is not
quantized. Both run in one process with one thread and take turns, block by block.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime

from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.build.compile import read_engine
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import package_step, slot, stages
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.resolve import Settings, resolve
from vidc.compiler.store.run import run
from vidc.compiler.store.store import Store
from vidc.plugins.names import weights_path
from vidc.plugins.signature import Signature, state_output
from vidc.runtime.engines.integer_products import ask_exact_products

PARTS = ("text_kv", "denoise", "kv_update")
GROUP = "transformer"
PREDICTED = {
    "weights_ratio": 0.33,
    "block_speedup": 1.6,
    "why": "products with weights are about 65 % of a pass, and an integer Gemm of this size took "
    "a third of the float one's time when measured alone",
}
"""Written before the first run."""


class Model:
    """A transformer's components as sessions, and one stream's states."""

    def __init__(self, settings: Settings, sources: Sources, folder: Path) -> None:
        quantized = package_step(settings).weights[GROUP]
        wanted = {quantized, f"load:{GROUP}"}
        for name in PARTS:
            wanted |= {f"export:{name}", f"quantize:{name}", f"compile:{name}"}
        work = [stage for stage in stages(settings, sources) if stage.name in wanted]
        with Store(cache_root(os.environ)) as store:
            results = run(work, store, slot(settings), LineProgress())
        (folder / "weights").mkdir(parents=True)
        weights = folder / weights_path(GROUP)
        shutil.copyfile(results[quantized].path / weights_path(GROUP), weights)
        self.bytes = weights.stat().st_size
        self.folder, self.signatures = folder, {}
        for name in PARTS:
            built = results[f"compile:{name}"].path
            engine = read_engine(built)
            shutil.copyfile(built / engine["files"][0], folder / f"{name}.onnx")
            self.signatures[name] = Signature.from_json(engine["signature"])
        self.sessions = {name: self.session(name, profiled=False) for name in PARTS}
        self.states: dict[str, np.ndarray] = {}

    def session(self, name: str, profiled: bool) -> onnxruntime.InferenceSession:
        """As the runtime opens it, but on one thread."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.disable_prepacking", "1")
        ask_exact_products(options)
        options.optimized_model_filepath = str(self.folder / f"{name}.optimized.onnx")
        if profiled:
            options.enable_profiling = True
            options.profile_file_prefix = str(self.folder / name)
        return onnxruntime.InferenceSession(
            str(self.folder / f"{name}.onnx"), options, providers=["CPUExecutionProvider"]
        )

    def call(self, name: str, inputs: dict, session: onnxruntime.InferenceSession | None = None):
        """One call over the stream's states; its outputs."""
        signature = self.signatures[name]
        fed = {spec.name: inputs[spec.name] for spec in signature.inputs}
        for spec in signature.states:
            if spec.reads:
                empty = np.zeros(spec.shape, np.float32)
                fed[spec.name] = self.states.setdefault(spec.name, empty)
        outputs = [spec.name for spec in signature.outputs]
        written = [spec.name for spec in signature.states if spec.writes]
        names = [*outputs, *map(state_output, written)]
        values = (session or self.sessions[name]).run(names, fed)
        self.states |= dict(zip(written, values[len(outputs) :], strict=True))
        return dict(zip(outputs, values, strict=False))

    def block(self, passes: list[dict]) -> np.ndarray:
        """The flow of the last denoising pass."""
        *noisy, clean = passes
        for inputs in noisy:
            flow = self.call("denoise", inputs)["flow"]
        self.call("kv_update", clean)
        return flow

    def operators(self, name: str) -> dict[str, int]:
        """Counts the nodes of each type that ONNX Runtime makes of a graph."""
        import onnx

        graph = onnx.load(self.folder / f"{name}.optimized.onnx", load_external_data=False).graph
        kinds = ("Gemm", "QGemm", "QuantizeLinear", "DequantizeLinear")
        found = Counter(node.op_type for node in graph.node)
        return {kind: found[kind] for kind in kinds}

    def profile(self, inputs: dict, repeats: int) -> dict[str, float]:
        """Milliseconds of a denoising pass by type of node, those that take most."""
        session = self.session("denoise", profiled=True)
        for _ in range(repeats):
            self.call("denoise", inputs, session)
        spent: dict[str, float] = defaultdict(float)
        for event in json.loads(Path(session.end_profiling()).read_text()):
            if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
                spent[event["args"]["op_name"]] += event["dur"] / 1000 / repeats
        largest = sorted(spent.items(), key=lambda item: -item[1])[:9]
        return {kind: round(value, 3) for kind, value in largest}


def block_inputs(settings: Settings, model: Model, block: int) -> list[dict]:
    """The inputs of every pass of a block: noise, at the sampler's timesteps, and a clean pass."""
    drawn = np.random.default_rng(block)
    steps = [*settings.model.sampler.steps, settings.model.sampler.context_timestep]
    tokens = settings.model.stream.block * settings.model.frame_tokens
    window = settings.model.stream.window * settings.model.frame_tokens
    shapes = {spec.name: spec.shape for spec in model.signatures["denoise"].inputs}
    angles = drawn.uniform(0, np.pi, shapes["rope_cos"]).astype(np.float32)
    common = {
        "rope_cos": np.cos(angles),
        "rope_sin": np.sin(angles),
        "position": np.array([block * tokens]),
        "valid_length": np.array([min((block + 1) * tokens, window)]),
    }
    return [
        {
            **common,
            "latent": drawn.standard_normal(shapes["latent"], np.float32),
            "timestep": np.full(shapes["timestep"], step, np.float32),
        }
        for step in steps
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("preset")
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--blocks", type=int, default=24, help="after the window is full")
    given = parser.parse_args()
    seeded = Sources({}, seed=1)
    with tempfile.TemporaryDirectory() as scratch:
        models, chosen = {}, {}
        for precision in ("fp32", "int8"):
            settings = resolve(given.preset, gpu="cpu", precision=precision, environ={})
            sources = replace(seeded, calibration=given.calibration)
            models[precision] = Model(settings, sources, Path(scratch, precision))
            chosen[precision] = settings
        settings = chosen["fp32"]
        shape = models["fp32"].signatures["text_kv"].inputs[0].shape
        embeds = np.random.default_rng(99).standard_normal(shape, np.float32)
        for model in models.values():
            model.call("text_kv", {"text_embeds": embeds})
        filling = settings.model.stream.window // settings.model.stream.block
        seconds: dict[str, list[float]] = {name: [] for name in models}
        errors = []
        for block in range(filling + given.blocks):
            flows = {}
            order = list(models) if block % 2 else list(models)[::-1]
            for name in order:
                passes = block_inputs(settings, models[name], block)
                started = time.perf_counter()
                flows[name] = models[name].block(passes)
                if block >= filling:
                    seconds[name].append(time.perf_counter() - started)
            distance = np.linalg.norm(flows["int8"] - flows["fp32"])
            errors.append(float(distance / np.linalg.norm(flows["fp32"])))
        last = block_inputs(settings, models["fp32"], filling + given.blocks)[0]
        medians = {name: statistics.median(taken) for name, taken in seconds.items()}
        sizes = {name: model.bytes for name, model in models.items()}
        ratios = [a / b for a, b in zip(seconds["fp32"], seconds["int8"], strict=True)]
        result = {
            "preset": given.preset,
            "recipe": chosen["int8"].to_json()["quantization"]["recipe"],
            "predicted": PREDICTED,
            "weights_bytes": sizes,
            "weights_ratio": round(sizes["int8"] / sizes["fp32"], 4),
            "seconds_per_block": {
                name: {
                    "median": round(medians[name], 5),
                    "least": round(min(taken), 5),
                    "n": len(taken),
                    "raw": [round(value, 5) for value in taken],
                }
                for name, taken in seconds.items()
            },
            "block_speedup": {
                "of_medians": round(medians["fp32"] / medians["int8"], 3),
                "quartiles_of_pairs": [
                    round(value, 3) for value in statistics.quantiles(ratios, n=4)
                ],
            },
            "relative_l2_of_flow": {
                "median": round(statistics.median(errors), 5),
                "largest": round(max(errors), 5),
            },
            "denoise_nodes": {name: model.operators("denoise") for name, model in models.items()},
            "denoise_ms_by_node": {name: model.profile(last, 5) for name, model in models.items()},
            "fingerprint": fingerprint(),
        }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
