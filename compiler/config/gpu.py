"""Whether the GPU of a target is in this machine."""

import torch

from vidc.compiler.config.targets import Target


def absent(target: Target) -> str | None:
    """Why engines for a GPU cannot run here; None if they can."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device here"
    found = "{}.{}".format(*torch.cuda.get_device_capability())
    if found != target.compute_capability:
        name = torch.cuda.get_device_name()
        return f"the GPU here is {name}, of compute capability {found}"
    return None
