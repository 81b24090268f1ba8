"""QK norm and rotary embedding in ONNX Runtime on a CPU, against the operator's reference."""

from collections import Counter

import onnxruntime
import pytest
import torch

from vidc.exporters.onnx.export import OPSET
from vidc.exporters.onnx.rotary import ROTARY
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference

HEADS, WIDTH, TOKENS, EPS = 3, 24, 5, 1e-6


class Rotation(torch.nn.Module):
    def forward(self, query, key, query_weight, key_weight, cos, sin):
        return ROTARY[qk_norm_rope](query, key, query_weight, key_weight, cos, sin, HEADS, EPS)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 1e-3)], ids=str
)
def test_matches_the_reference_with_one_node_for_each_rotation(dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    query, key = (torch.randn(2, TOKENS, WIDTH, generator=generator).to(dtype) for _ in range(2))
    weights = [torch.rand(WIDTH, generator=generator).to(dtype) + 0.5 for _ in range(2)]
    angles = torch.randn(TOKENS, WIDTH // HEADS // 2, generator=generator)
    given = (query, key, *weights, angles.cos(), angles.sin())
    program = torch.onnx.export(Rotation().eval(), given, opset_version=OPSET, verbose=False)
    counts = Counter(node.op_type for node in program.model.graph)
    assert (counts["RotaryEmbedding"], counts["RMSNormalization"]) == (2, 2)
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in session.get_inputs()]
    feeds = dict(zip(names, (tensor.numpy() for tensor in given), strict=True))
    wanted = qk_norm_rope_reference(*given, HEADS, EPS)
    for found, expected in zip(session.run(None, feeds), wanted, strict=True):
        assert found.shape == expected.shape
        error = (torch.from_numpy(found).double() - expected.double()).norm()
        assert error / expected.double().norm() < tolerance
