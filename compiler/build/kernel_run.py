"""Stage ``kernel``: a kernel that engines call, for a GPU that need not be there."""

from importlib import import_module

from vidc.compiler.store.stage import Workspace


def run(workspace: Workspace, kernel: str, dtype: str, head_dim: int) -> None:
    """Writes the kernel's code and what launches it.

    Args:
        workspace: where to.
        kernel: a module of ``vidc.compiler.backends.aoti.kernels``.
        dtype: of the tensors it works on, by torch's name.
        head_dim: channels of an attention head.
    """
    module = import_module(f"vidc.compiler.backends.aoti.kernels.{kernel}")
    module.compile_kernel(dtype, head_dim, workspace.output)
