import json
import subprocess
import sys
import zipfile

import pytest
import torch
from tensors import empty_tensors
from torch import nn

from vidc.exporters.component import Component
from vidc.exporters.program import export_program, load_program, result_names, save_program
from vidc.plugins.signature import Access, Role, Signature, TensorSpec

COMPONENTS = ["text_kv", "denoise", "kv_update", "recache_6"]

EXPORT = """
import json, sys
from pathlib import Path
from vidc.compiler.bench.usage import peak_rss_bytes
from vidc.exporters.families.causal_video import *
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.exporters.program import export_program, load_program, save_program
sizes, path = json.loads(sys.argv[1]), Path(sys.argv[2])
config = CausalVideo(
    TransformerConfig(layers=2, **sizes),
    VaeConfig(base_dim=8),
    StreamConfig(height=16, width=32, window=6, sink=3, block=3),
    SamplerConfig(),
)
network = config.parts["transformer"].network("fp32")
component = config.parts["transformer"].components(network)["denoise"]
save_program(export_program(component), path)
load_program(path)
print(peak_rss_bytes() // 1024)
"""
SMALL = {"dim": 48, "ffn_dim": 96, "heads": 2, "freq_dim": 16, "text_len": 6, "text_dim": 20}
# Two layers of 400 M parameters.
LARGE = {"dim": 4096, "ffn_dim": 32768, "heads": 32}


def export_elsewhere(sizes, path) -> int:
    """Exports in a process of its own; returns its peak memory in KiB."""
    command = [sys.executable, "-c", EXPORT, json.dumps(sizes), str(path)]
    environment = {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}
    return int(subprocess.check_output(command, text=True, env=environment))


@pytest.mark.parametrize("name", COMPONENTS)
def test_a_saved_program_still_computes_its_component(make_wan, tmp_path, name):
    wan = make_wan()
    component = wan.components[name]
    path = tmp_path / "graph.pt2"
    save_program(export_program(component), path)
    program = load_program(path)
    for key, weight in component.module.state_dict().items():
        program.state_dict[key].data.copy_(weight)

    torch.manual_seed(0)
    arguments = [torch.rand(spec.shape) for spec in component.signature.arguments]
    arguments = [
        value.to(spec.torch_dtype)
        for value, spec in zip(arguments, component.signature.arguments, strict=True)
    ]
    expected = [value.clone() for value in arguments]
    outputs = program.module()(*arguments)
    expected_outputs = component.module(*expected)
    for found, value in zip((*outputs, *arguments), (*expected_outputs, *expected), strict=True):
        torch.testing.assert_close(found, value)


def test_results_are_named_by_the_signature(make_wan):
    signature = make_wan().components["denoise"].signature
    program = export_program(make_wan(device="meta").components["denoise"])
    assert result_names(program, signature) == (
        "ring.k.0",
        "ring.v.0",
        "ring.k.1",
        "ring.v.1",
        "flow",
    )


def test_export_leaves_a_meta_module_as_it_was(make_wan):
    component = make_wan(device="meta").components["text_kv"]
    program = export_program(component)
    assert all(weight.is_meta for weight in component.module.parameters())
    assert all(weight.device.type == "cpu" for weight in program.state_dict.values())


def test_a_program_is_not_pinned_to_the_device_it_was_traced_on(make_wan):
    program = export_program(make_wan().components["denoise"])
    targets = {str(node.target) for node in program.graph.nodes}
    assert "aten._assert_tensor_metadata.default" not in targets


def test_saving_leaves_the_program_usable(make_wan, tmp_path):
    program = export_program(make_wan().components["text_kv"])
    before = dict(program.state_dict)
    save_program(program, tmp_path / "graph.pt2")
    assert all(program.state_dict[name] is weight for name, weight in before.items())
    assert program.example_inputs is not None


def test_equal_components_give_equal_bytes_in_any_process(make_wan, tmp_path):
    here, there = tmp_path / "here.pt2", tmp_path / "there.pt2"
    save_program(export_program(make_wan(device="meta").components["denoise"]), here)
    export_elsewhere(SMALL, there)
    assert here.read_bytes() == there.read_bytes()


def test_weights_take_no_memory_and_no_space(tmp_path):
    path = tmp_path / "graph.pt2"
    peak = export_elsewhere(LARGE, path)
    assert peak < 2 * 2**20, "KiB, of which torch for CUDA takes 0.9; the weights would be 3.2 GB"
    assert path.stat().st_size < 2**20


def test_the_file_holds_no_pickle_and_no_paths(make_wan, tmp_path):
    path = tmp_path / "graph.pt2"
    save_program(export_program(make_wan().components["denoise"]), path)
    with zipfile.ZipFile(path) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        contents = b"".join(archive.read(name) for name in sizes)
    assert sum(size for name, size in sizes.items() if name.endswith(".pt")) == 0
    assert b"layers.py" not in contents
    assert b'"use_pickle": true' not in contents


class Accumulate(nn.Module):
    """A state that takes the sum of what comes, and what came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x, total):
        total.copy_(total + x)
        return (total * self.weight,)


class Accumulator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.file = Accumulate()

    def forward(self, x, total):
        return self.file(x, total)


def accumulator(access=Access.READ_WRITE, outputs=("y",), shape=(2,), module=Accumulator):
    return Component(
        "accumulator",
        module(),
        Signature(
            (
                TensorSpec("x", (2,), "float32", Role.INPUT),
                TensorSpec("total", (2,), "float32", Role.STATE, access),
                *(TensorSpec(name, shape, "float32", Role.OUTPUT) for name in outputs),
            )
        ),
    )


def test_a_component_that_keeps_its_signature_is_exported():
    program = export_program(accumulator())
    state = empty_tensors([accumulator().signature["total"]])[0] + 1
    (y,) = program.module()(torch.tensor([1.0, 2.0]), state)
    assert state.tolist() == [2.0, 3.0] == y.tolist()


@pytest.mark.parametrize(
    ("component", "message"),
    [
        (accumulator(access=Access.READ), "results"),
        (accumulator(access=Access.WRITE), "reads of overwritten states"),
        (accumulator(outputs=("y", "z")), "number of outputs"),
        (accumulator(shape=(3,)), "results"),
        (accumulator(module=Accumulate), "weights outside a file"),
    ],
)
def test_a_component_that_breaks_its_signature_is_refused(component, message):
    with pytest.raises(ValueError, match=f"accumulator: {message}"):
        export_program(component)
