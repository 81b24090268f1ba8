"""Measures the export of a preset's components: time, peak memory and file sizes.

Each component is exported in a process of its own, as a build does it, without weights:

    python benchmarks/export_memory.py longlive-1.3b --precision bf16
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(preset: str, precision: str, component: str) -> dict[str, object]:
    """Exports one component in this process."""
    start = time.perf_counter()
    from vidc.compiler.settings.presets import load_preset
    from vidc.compiler.settings.tables import read_model
    from vidc.exporters.checkpoint import weight_layout
    from vidc.exporters.components import component_groups
    from vidc.exporters.models import components, meta_network
    from vidc.exporters.onnx.export import export_onnx
    from vidc.exporters.program import export_program, save_program

    config = read_model(load_preset(preset).layer)
    group = component_groups(config)[component]
    network = meta_network(config, group, precision)
    placements = {group: weight_layout(network.state_dict())}
    imported = time.perf_counter()
    part = components(config, group, network, precision)[component]
    with tempfile.TemporaryDirectory() as folder:
        pt2, onnx = Path(folder, "graph.pt2"), Path(folder, "graph.onnx")
        program = export_program(part)
        save_program(program, pt2)
        exported = time.perf_counter()
        export_onnx(component, program, part.signature, placements, onnx)
        end = time.perf_counter()
        return {
            "component": component,
            "seconds": {
                "imports": round(imported - start, 1),
                "program": round(exported - imported, 1),
                "onnx": round(end - exported, 1),
                "total": round(end - start, 1),
            },
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "pt2_bytes": pt2.stat().st_size,
            "onnx_bytes": onnx.stat().st_size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="longlive-1.3b")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--component", help="this one alone, in this process")
    options = parser.parse_args()
    if options.component:
        print(json.dumps(measure(options.preset, options.precision, options.component)))
        return

    from vidc.compiler.bench.fingerprint import fingerprint
    from vidc.compiler.settings.presets import load_preset
    from vidc.compiler.settings.tables import read_model
    from vidc.exporters.components import component_groups

    results = []
    for component in component_groups(read_model(load_preset(options.preset).layer)):
        command = [sys.executable, __file__, options.preset, "--precision", options.precision]
        output = subprocess.check_output([*command, "--component", component], text=True)
        results.append(json.loads(output))
        print(f"{component}: {results[-1]['seconds']['total']} s", file=sys.stderr)
    document = {
        "preset": options.preset,
        "precision": options.precision,
        "fingerprint": fingerprint(),
        "seconds": round(sum(r["seconds"]["total"] for r in results), 1),
        "peak_rss_mb": max(r["peak_rss_mb"] for r in results),
        "components": results,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
