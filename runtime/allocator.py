"""Settings of PyTorch's CUDA allocator."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = "expandable_segments"


@contextmanager
def growing_segments() -> Iterator[None]:
    """Makes the CUDA allocator use expandable segments inside the block.

    Captured graphs keep their workspace. Segments of fixed sizes fragment it: a VAE decoder that
    needs 5 GB kept 11 GB. The process's own setting returns after the block.
    """
    before = _settings()
    torch._C._accelerator_setAllocatorSettings(",".join(filter(None, (before, f"{_SETTING}:True"))))
    try:
        yield
    finally:
        after = (
            before if _SETTING in before else ",".join(filter(None, (before, f"{_SETTING}:False")))
        )
        torch._C._accelerator_setAllocatorSettings(after)


def _settings() -> str:
    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        return torch._C._accelerator_getAllocatorSettings()
    # torch 2.11 has no getter for its settings; it reads them from here.
    environ = os.environ
    return environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
