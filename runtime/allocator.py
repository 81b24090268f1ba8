"""How PyTorch takes a GPU's memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_SETTING = "expandable_segments"


@contextmanager
def growing_segments() -> Iterator[None]:
    """Memory that is taken inside comes in segments that grow, on GPUs.

    Captured graphs keep what they worked in. In segments of fixed sizes most of that would be
    gaps that nothing fits: a VAE decoder of 5 GB kept 11 GB. Outside, the process keeps the
    setting that it had.
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
    # torch 2.11 takes settings and does not tell them; this is where they come from.
    environ = os.environ
    return environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
