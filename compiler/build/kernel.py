"""Stage ``kernel``: compiles a kernel that AOTInductor engines call, without a GPU."""

from dataclasses import dataclass
from functools import partial
from importlib import import_module

from vidc.compiler.store.sources import versions
from vidc.compiler.store.stage import Key, Stage, Workspace


@dataclass(frozen=True)
class CompileKernel(Stage):
    """Writes a kernel's cubin and its launch parameters.

    Attributes:
        kernel: a module of ``vidc.compiler.backends.aoti.kernels``.
        dtype: dtype of its tensors, by torch's name.
        head_dim: channels of an attention head.
    """

    kernel: str
    dtype: str
    head_dim: int

    @property
    def name(self) -> str:
        """``kernel:<kernel>``."""
        return f"kernel:{self.kernel}"

    @property
    def module(self) -> str:
        """The kernel's module, by its whole name."""
        return f"vidc.compiler.backends.aoti.kernels.{self.kernel}"

    def key(self) -> Key:
        """Returns the key; the kernel's module is named in it."""
        packages = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels")
        return Key(
            (__name__, self.module),
            {"dtype": self.dtype, "head_dim": self.head_dim},
            tools=partial(versions, *packages, extra="cuda"),
        )

    def run(self, workspace: Workspace) -> None:
        """Compiles the kernel."""
        import_module(self.module).compile_kernel(self.dtype, self.head_dim, workspace.output)
