"""Attention of one query a sample is no call of an attention kernel on a GPU."""

import pytest
import torch
from oasis_models import pair
from torch.export import ExportedProgram

from vidc.compiler.backends.aoti import cuda
from vidc.exporters.program import export_program
from vidc.plugins.ops.ring import ring_attention


def results(program: ExportedProgram, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs and written states."""
    given = [argument.clone() for argument in arguments]
    (velocity,) = program.module()(*given)
    return [velocity, *given]


@pytest.mark.parametrize("fused", [False, True])
def test_lowered_program_is_what_it_was_without_attention(fused: bool) -> None:
    made = pair()
    component = made.model.transformer_part.components(made.transformer_network())["denoise"]
    program = export_program(component)
    generator = torch.Generator().manual_seed(1)
    arguments = [
        torch.randn(spec.shape, generator=generator)
        if spec.torch_dtype is torch.float32
        else torch.tensor([3])
        for spec in component.signature.arguments
    ]
    expected = results(program, arguments)
    calls = program.graph.find_nodes(op="call_function", target=ring_attention)
    assert len(calls) == made.model.transformer.layers
    cuda.lower(program, fused)
    assert not program.graph.find_nodes(op="call_function", target=ring_attention)
    for found, value in zip(results(program, arguments), expected, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


def test_queries_are_rotated_once_for_the_two_kernels_of_an_attention(monkeypatch) -> None:
    monkeypatch.setattr(cuda, "move_to_device_pass", lambda program, device: program)
    made = pair()
    components = made.model.transformer_part.components(made.transformer_network())
    lowered = cuda.for_cuda(export_program(components["denoise"]), False)
    assert lowered.inductor == cuda.WRITTEN_ONCE
