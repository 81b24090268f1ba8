"""GELUs in the epilogues of matmuls."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vidc.compiler.backends.aoti.gelu_epilogues import use_epilogues

ADDMM = torch.ops.aten._addmm_activation.default


class Feed(nn.Module):
    def __init__(self, bias: bool = True, read: bool = False, approximate: str = "tanh") -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64, bias), nn.Linear(64, 16)
        self.read, self.approximate = read, approximate

    def forward(self, x):
        wide = self.up(x)
        result = self.down(F.gelu(wide, approximate=self.approximate))
        return result + wide[..., :16] if self.read else result


def lowered(module, dtype, shape=(2, 5, 16)):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    module = module.to(dtype).eval()
    program = torch.export.export(module, (x,))
    moved = use_epilogues(program)
    return moved, program, module, x


@pytest.mark.parametrize("shape", [(2, 5, 16), (3, 16), (1, 1, 1, 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gelu_after_a_layer_is_its_matmuls(dtype, shape):
    moved, program, module, x = lowered(Feed(), dtype, shape)
    assert moved == 1
    assert len(program.graph.find_nodes(op="call_function", target=ADDMM)) == 1
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)
    found = program.module()(x)
    assert found.shape == shape
    torch.testing.assert_close(found, module(x), rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("module", "dtype", "shape"),
    [
        (Feed(), torch.float32, (2, 5, 16)),
        (Feed(bias=False), torch.bfloat16, (2, 5, 16)),
        (Feed(read=True), torch.bfloat16, (2, 5, 16)),
        (Feed(approximate="none"), torch.bfloat16, (2, 5, 16)),
        (Feed(), torch.bfloat16, (16,)),
    ],
    ids=["float32", "no bias", "another reader", "exact GELU", "one row"],
)
def test_other_gelus_stay(module, dtype, shape):
    moved, program, *_ = lowered(module, dtype, shape)
    assert moved == 0
    assert program.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)
