"""The ring in TensorRT's layers, run by ONNX Runtime, against the components themselves."""

from dataclasses import replace

import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tensors import random_inputs

from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.native_ring import NATIVE, native_signature
from vidc.exporters.program import export_program
from vidc.plugins.signature import Access, state_output

WINDOWS = [
    pytest.param({"window": 6}, id="6-turning-over-a-block"),
    pytest.param({"window": 9, "batch": 2}, id="9-batch-2"),
    pytest.param({"window": 12}, id="12", marks=pytest.mark.deep),
]


class Native:
    """A component's graph of this form, and the component; each has states of its own."""

    def __init__(self, component, folder) -> None:
        self.component = component
        self.path = folder / f"{component.name}.onnx"
        program = export_program(component)
        self.signature = native_signature(program, component.signature)
        export_onnx(component.name, program, self.signature, None, self.path, NATIVE)
        self.weights = {name: w.detach() for name, w in component.module.state_dict().items()}

    def hold(self, eager, native, inputs) -> None:
        """Runs both on the same inputs and compares all that they write."""
        arguments = [
            inputs.get(t.name, eager.get(t.name)) for t in self.component.signature.arguments
        ]
        outputs = self.component.module(*arguments)
        found = self.run(inputs | native | self.weights)
        for spec, expected in zip(self.signature.outputs, outputs, strict=True):
            torch.testing.assert_close(found[spec.name], expected, rtol=1e-4, atol=1e-4)
        for state in self.signature.states:
            if state.writes:
                native[state.name] = found[state_output(state.name)]
            expected = eager[state.name]
            if state.name.startswith("ring."):
                expected = expected.transpose(1, 2)
            torch.testing.assert_close(native[state.name], expected, rtol=1e-4, atol=1e-4)

    def run(self, values) -> dict[str, torch.Tensor]:
        """All that the graph returns."""
        session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        given = {i.name: values[i.name].numpy() for i in session.get_inputs()}
        names = [output.name for output in session.get_outputs()]
        assert names == list(self.signature.graph_outputs())
        return dict(zip(names, map(torch.from_numpy, session.run(names, given)), strict=True))

    @property
    def layers(self) -> int:
        """Layers of the transformer."""
        return sum(s.name.startswith("ring.k.") for s in self.signature.states)


@pytest.mark.parametrize("sizes", WINDOWS)
def test_native_form_matches_the_components(make_wan, tmp_path, sizes):
    torch.manual_seed(2)
    wan = make_wan(**sizes)
    config, tokens = wan.config, wan.config.frame_tokens
    window, block = config.stream.window, config.stream.block
    names = [
        "denoise",
        "kv_update",
        *(f"recache_{n}" for n in config.transformer_part.recache_frames),
    ]
    made = {n: Native(wan.components[n], tmp_path) for n in names}
    eager, native = {}, {}
    for state in wan.components["denoise"].signature.states:
        values = (
            torch.randn(state.shape) if state.access is Access.READ else torch.zeros(state.shape)
        )
        eager[state.name] = values
        turned = values.transpose(1, 2) if state.name.startswith("ring.") else values
        native[state.name] = turned.contiguous()

    def run(name, first, frames, timestep):
        end = min(first + frames, window) * tokens
        inputs = random_inputs(made[name].signature, first * tokens, end, timestep)
        made[name].hold(eager, native, inputs)

    turning = window - config.stream.sink
    for first in range(0, window + 3 * block, block):
        run("denoise", first, block, 750.0)
        run("kv_update", first, block, 0.0)
        end = first + block
        frames = end if end <= window else turning
        if frames > block:
            run(f"recache_{frames}", end - frames, frames, 0.0)


def test_the_ring_is_updated_in_place_and_has_no_mask(make_wan, tmp_path):
    component = make_wan(window=12).components["denoise"]
    made = Native(component, tmp_path)
    graph = ir.load(made.path).graph
    rings = [s.name for s in made.signature.states if s.name.startswith("ring.")]
    assert rings
    for name in rings:
        (output,) = (value for value in graph.outputs if value.name == state_output(name))
        producer = output.producer()
        assert (producer.op_type, producer.inputs[0].name) == ("TensorScatter", name)
        (use,) = producer.inputs[0].uses()
        assert use.node is producer
    attentions = [node for node in graph if node.op_type == "Attention"]
    assert len(attentions) == 2 * made.layers
    reads_length = [node for node in attentions if len(node.inputs) > 6]
    assert len(reads_length) == made.layers
    assert all(node.inputs[3] is None for node in reads_length)
    named = [value.name for value in graph.inputs]
    assert named == [*(n for n in named if n in made.weights), *made.signature.graph_inputs()]
    assert not graph.initializers.keys() & made.weights.keys()


@pytest.mark.parametrize(
    ("window", "sink", "block", "aligned"),
    [(12, 3, 3, True), (6, 3, 3, True), (8, 3, 3, False), (12, 2, 3, False), (6, 0, 3, True)],
)
def test_a_stream_is_aligned_where_no_block_straddles(configure, window, sink, block, aligned):
    part = replace(configure().transformer_part, window=window, sink=sink, block=block)
    turning = (window - sink) * 2
    slots = [
        [p if p < sink else sink + (p - sink) % (window - sink) for p in range(b, b + block)]
        for b in range(0, 12 * turning, block)
    ]
    assert aligned == all(each == list(range(each[0], each[0] + block)) for each in slots)
    assert part.aligned is aligned
