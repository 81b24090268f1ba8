"""Tests that need an NVIDIA GPU; elsewhere each of them is skipped by name.

Kernels are compiled here, or taken from the folder in ``VIDC_TEST_KERNELS`` where another machine
compiled them.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from vidc.plugins import loading

HOPPER = (9, 0)


@pytest.fixture(scope="session", autouse=True)
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA GPU")
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(scope="session")
def hopper(gpu: torch.device) -> torch.device:
    found = torch.cuda.get_device_capability(gpu)
    if found != HOPPER:
        pytest.skip(f"the GPU has compute capability {found}, not {HOPPER}")
    return gpu


@pytest.fixture(scope="session")
def library(gpu: torch.device) -> torch.device:
    """The device, where the library of kernels is there to serve it."""
    fault = loading.torch_library_error()
    if fault is not None:
        pytest.skip(fault.message)
    return gpu


@pytest.fixture(scope="session")
def attention_cubin(hopper, tmp_path_factory) -> Callable[..., Path]:
    """The compiled attention kernel for a dtype and head size, its facts beside it."""
    given = os.environ.get("VIDC_TEST_KERNELS")
    folder = Path(given) if given else tmp_path_factory.mktemp("kernels")

    def cubin(dtype: str, head_dim: int, operator: str = "flash_attention_sm90") -> Path:
        file = folder / f"{operator}_{dtype}_{head_dim}.cubin"
        if not file.exists():
            if find_spec("cutlass") is None:
                pytest.skip("the extra cuda is not installed, VIDC_TEST_KERNELS has no kernel")
            from vidc.compiler.backends.aoti.kernels.flash_attention import compile_kernel

            compile_kernel(dtype, head_dim, folder)
        return file

    return cubin
