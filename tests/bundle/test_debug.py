"""`vidc validate --debug` on bundles whose graphs were tampered with."""

import io
import json
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import onnxruntime
import polygraphy_tool
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import load_file

from vidc.compiler.backends import aoti
from vidc.compiler.backends.aoti.convolutions import bind_implementations
from vidc.compiler.backends.aoti.cxx import Defect
from vidc.compiler.cli.main import main
from vidc.compiler.config.targets import targets
from vidc.compiler.debug.debug import INPUTS, require_debuggable
from vidc.exporters.export import export_component
from vidc.plugins.errors import UnavailableError
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import MANIFEST_NAME, read_manifest
from vidc.runtime.strict import plain


def tampered(project, folder: Path, component: str, edit) -> Path:
    """A copy of the project's bundle with a component's graph edited and its digest renewed."""
    bundle = folder / "bundle"
    shutil.copytree(project.bundle, bundle)
    graph = bundle / f"{component}.onnx"
    model = onnx.load(graph, load_external_data=False)
    edit(model.graph)
    onnx.save(model, graph)
    document = json.loads((bundle / MANIFEST_NAME).read_text())
    entry = file_entry(graph)
    document["files"][graph.name] = plain(entry)
    (bundle / MANIFEST_NAME).write_text(json.dumps(document))
    return bundle


def nodes(graph, op_type):
    return [node for node in graph.node if node.op_type == op_type]


def set_attribute(node, name, value):
    others = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def wrong_epsilon(graph):
    set_attribute(nodes(graph, "LayerNormalization")[3], "epsilon", 3.0)


def wrong_scale(graph):
    set_attribute(nodes(graph, "Attention")[-1], "scale", 2.0)


def wrong_gelu(graph):
    (node,) = nodes(graph, "Gelu")
    node.op_type = "Relu"
    del node.attribute[:]


def wrong_padding(graph):
    """All of a convolution's padding before a row and none behind it."""
    pads = [a.ints for node in nodes(graph, "Conv") for a in node.attribute if a.name == "pads"]
    padding = next(each for each in pads[2:] if each[-1] == 1)
    padding[len(padding) // 2 - 1], padding[-1] = 2, 0


PLANTED = {"denoise": wrong_epsilon, "kv_update": wrong_scale, "vae_decode": wrong_padding}


@pytest.fixture(scope="module")
def debugged(project, tmp_path_factory):
    """Validates a tampered bundle with ``--debug``: its folder and its findings by component."""

    @cache
    def run(component: str, edit) -> tuple[Path, dict]:
        bundle = tampered(project, tmp_path_factory.mktemp(component), component, edit)
        said = io.StringIO()
        with redirect_stdout(said), pytest.raises(SystemExit) as ended:
            main(["validate", str(bundle), "--debug", "--json"])
        assert ended.value.code == 1
        findings = json.loads(said.getvalue())["debug"]
        return bundle, {entry["component"]: entry for entry in findings}

    return run


@pytest.mark.parametrize(
    ("component", "operator", "line"),
    [
        ("denoise", "LayerNormalization", "causal_wan/layers.py"),
        ("kv_update", "Attention", "causal_wan/layers.py"),
        ("vae_decode", "Conv", "autoencoder_kl_wan.py"),
    ],
)
def test_the_planted_fault_is_found_and_shown(debugged, component, operator, line):
    bundle, found = debugged(component, PLANTED[component])
    finding, shown = found[component]["finding"], found[component]["reproduction"]
    assert finding["operator"].startswith(f"{operator} ")
    assert finding["error"] > finding["limit"]
    assert line in finding["line"]
    assert finding["right"] > 0

    tensors = load_file(shown["tensors"])
    session = onnxruntime.InferenceSession(shown["graph"], providers=["CPUExecutionProvider"])
    feeds = {node.name: tensors[node.name].numpy() for node in session.get_inputs()}
    (result,) = session.run(None, feeds)
    expected = tensors["expected"]
    error = (torch.from_numpy(result) - expected).norm() / expected.norm()
    assert error == pytest.approx(shown["error"], rel=1e-3)
    assert shown["nodes"] <= 5  # Attention reads three Reshapes, and one reads it.
    assert Path(shown["graph"]).parent == bundle.with_name("bundle.debug")
    model = onnx.load(shown["graph"], load_external_data=False)
    assert not any(t.external_data for t in model.graph.initializer)
    assert all(numpy_helper.to_array(t).size for t in model.graph.initializer)


def test_polygraphy_reduces_what_was_found(debugged):
    bundle, found = debugged("denoise", wrong_epsilon)
    shown = found["denoise"]
    done = polygraphy_tool.run(shown["reduce"], bundle.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    model = onnx.load(Path(shown["reproduction"]["graph"]).with_suffix(".reduced.onnx"))
    (node,) = (node for node in model.graph.node if node.op_type == "LayerNormalization")
    assert node.output[0] == shown["finding"]["name"]


def test_the_text_says_where_to_look(project, tmp_path, vidc):
    bundle = tampered(project, tmp_path, "denoise", wrong_epsilon)
    status, out, err = vidc("validate", str(bundle), "--debug")
    assert (status, "looking for the first values" in err) == (1, True)
    assert "denoise: the first wrong value is" in out
    assert "shown by 1 node in" in out
    assert "reduced further by polygraphy debug reduce" in out


@pytest.mark.parametrize(
    ("component", "edit"),
    [pytest.param("text_kv", wrong_gelu, marks=pytest.mark.deep), ("kv_update", wrong_scale)],
)
def test_a_component_is_not_blamed_for_states_it_was_given(debugged, component, edit):
    _, found = debugged(component, edit)
    assert found[component]["finding"] is not None
    assert "denoise" in found
    others = [entry for name, entry in found.items() if name != component]
    assert {entry["cause"] for entry in others} == {INPUTS}
    assert all(entry["finding"] is None for entry in others)


def test_the_report_is_there_before_what_may_fail(project, tmp_path, vidc):
    bundle = tampered(project, tmp_path, "denoise", wrong_epsilon)
    (tmp_path / "bundle.debug").write_text("a file in the way")
    status, out, err = vidc("validate", str(bundle), "--debug")
    assert status == 2
    assert "VIDC-VALIDATE-REPORT" in err
    assert "FAILED" in out
    assert (tmp_path / "bundle.report.html").is_file()


def of_backend(bundle, name, target=None):
    """The manifest of a bundle as if a backend had built its engines."""
    document = read_manifest(bundle)
    engines = {
        component: replace(engine, backend=name, loader=name)
        for component, engine in document.engines.items()
    }
    config = {**document.config, "backend": name}
    if target is not None:
        precision = dict.fromkeys(config["precision"], "fp16")
        config |= {"target": targets()[target].to_json(), "precision": precision}
        capability = targets()[target].compute_capability
        made_for = replace(document.target, name=target, compute_capability=capability)
        document = replace(document, target=made_for)
    return replace(document, engines=engines, config=config)


def test_an_engine_that_cannot_be_built_here_is_refused_first(project, tmp_path, vidc, monkeypatch):
    bundle = tmp_path / "bundle"
    shutil.copytree(project.bundle, bundle)
    document = json.loads((bundle / MANIFEST_NAME).read_text())
    document["engines"]["denoise"] |= {"backend": "aoti", "loader": "aoti"}
    (bundle / MANIFEST_NAME).write_text(json.dumps(document))
    defect = Defect("c++ is not there", "install one")
    monkeypatch.setattr("vidc.compiler.backends.aoti.backend.cxx_defect", lambda: defect)
    status, out, err = vidc("validate", str(bundle), "--debug")
    assert (status, out) == (3, "")
    assert "VIDC-VALIDATE-DEBUG" in err
    assert "denoise" in err
    assert "c++ is not there" in err


@pytest.mark.parametrize(
    ("backend", "target"), [("aoti", "h100"), ("tensorrt", "h100"), ("torch_tensorrt", "rtx4090")]
)
def test_what_to_do_where_an_engine_cannot_be_built_is_said(project, backend, target):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UnavailableError, match=f"{backend} cannot build for {target}") as caught:
        require_debuggable(of_backend(project.bundle, backend, target))
    assert caught.value.code == "VIDC-VALIDATE-DEBUG"
    assert "--backend onnxruntime --gpu cpu" in caught.value.hint
    assert f"what {backend} made of them is not" in caught.value.hint


def test_engines_that_can_be_built_here_are_looked_into(project):
    require_debuggable(of_backend(project.bundle, "onnxruntime"))
    require_debuggable(of_backend(project.bundle, "aoti"))


def wrong_activation(program):
    """The first GELU of a program as another activation."""
    for node in program.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default):
        node.target, node.kwargs = torch.ops.aten.relu.default, {}
        break
    program.graph_module.recompile()


@pytest.mark.deep
def test_the_operator_that_a_compiler_gets_wrong_is_found(project, tmp_path, vidc, monkeypatch):
    """A backend that miscompiles one operator, whenever it is asked."""

    def miscompile(program):
        wrong_activation(program)
        bind_implementations(program)

    monkeypatch.setattr("vidc.compiler.backends.aoti.backend.bind_implementations", miscompile)
    bundle = tmp_path / "bundle"
    shutil.copytree(project.bundle, bundle)
    settings, _ = project.resolve(backend="aoti")
    exported, built = tmp_path / "exported", tmp_path / "built"
    exported.mkdir()
    component = export_component(settings.model.parts["transformer"], "fp32", "text_kv", exported)
    engine = aoti.backend.compile(component, settings.target, {}, built)
    document = json.loads((bundle / MANIFEST_NAME).read_text())
    for name in engine.files:
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        entry = file_entry(shutil.copy(built / name, bundle / name))
        document["files"][name] = plain(entry)
    document["engines"]["text_kv"] |= {
        "backend": "aoti",
        "loader": engine.loader,
        "version": engine.version,
        "files": list(engine.files),
        "signature": engine.signature.to_json(),
        "options": dict(engine.options),
        "requires": plain(engine.requires),
    }
    (bundle / MANIFEST_NAME).write_text(json.dumps(document))

    status, out, _ = vidc("validate", str(bundle), "--debug", "--json")
    assert status == 1
    found = {entry["component"]: entry for entry in json.loads(out)["debug"]}
    assert {entry["cause"] for name, entry in found.items() if name != "text_kv"} == {INPUTS}
    finding, shown = found["text_kv"]["finding"], found["text_kv"]["reproduction"]
    assert finding["operator"] == f"aten.gelu.default {finding['name']!r}"
    assert finding["error"] > finding["limit"]
    assert "self.activation(self.linear_1(x))" in finding["line"]
    assert shown["nodes"] == 1

    # The graph says what is right; what the engine of that part alone makes of it lies beside.
    tensors = load_file(shown["tensors"])
    session = onnxruntime.InferenceSession(shown["graph"], providers=["CPUExecutionProvider"])
    feeds = {node.name: tensors[node.name].numpy() for node in session.get_inputs()}
    right = torch.from_numpy(session.run(None, feeds)[0])
    torch.testing.assert_close(right, tensors["expected"])
    error = (tensors["found"] - right).norm() / right.norm()
    assert error == pytest.approx(shown["error"], rel=1e-3)


def test_where_nothing_failed_there_is_nothing_to_debug(project, tmp_path, vidc):
    bundle = tmp_path / "bundle"
    shutil.copytree(project.bundle, bundle)
    status, out, err = vidc("validate", str(bundle), "--debug", "--json")
    assert (status, json.loads(out)["debug"]) == (0, [])
    assert "nothing to debug" in err
    assert not (tmp_path / "bundle.debug").exists()
