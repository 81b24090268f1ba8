"""Compiles convolutions, or runs what was compiled, in a process of its own.

OMP_NUM_THREADS=2 python tests/support/convolving.py compile PACKAGE
OMP_NUM_THREADS=1 python tests/support/convolving.py run PACKAGE
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from vidc.compiler.backends.aoti.convolutions import bind_implementations
from vidc.compiler.backends.aoti.inductor import compile_package


class Between(nn.Module):
    """Convolutions that are large enough for threads to decide who does them."""

    def __init__(self) -> None:
        super().__init__()
        self.temporal = nn.Conv3d(96, 96, (3, 1, 1))
        self.pointwise = nn.Conv3d(96, 48, 1)
        self.plane = nn.Conv2d(48, 8, 1, stride=1, padding=0, dilation=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.pointwise(self.temporal(x).sigmoid()) * 2
        return self.wide(self.plane(inner[:, :, 0]))


def exported() -> tuple[nn.Module, Tensor, ExportedProgram]:
    """The module, an input of it, and its program."""
    torch.manual_seed(0)
    module = Between().eval()
    x = torch.randn(1, 96, 6, 64, 64).to(memory_format=torch.channels_last_3d)
    return module, x, torch.export.export(module, (x,))


@torch.no_grad()
def main() -> None:
    what, package = sys.argv[1], Path(sys.argv[2])
    module, x, program = exported()
    if what == "compile":
        bind_implementations(program)
        compile_package(program, package)
        return
    engine = torch._inductor.aoti_load_package(str(package))
    engine.load_constants(module.state_dict(), check_full_update=True)
    torch.testing.assert_close(engine(x), module(x))


if __name__ == "__main__":
    main()
