"""LPIPS, where its package and its weights lie on this machine: nothing is ever downloaded.

Zhang, Isola, Efros, Shechtman and Wang, "The unreasonable effectiveness of deep features as a
perceptual metric" (2018), over AlexNet. The package holds the weights of its linear layers; those
of AlexNet are torchvision's, where torch.hub keeps what it once downloaded.
"""

import hashlib
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGES = ("lpips", "torchvision")
WEIGHTS = "alexnet-owt-7be5be79.pth"
"""Its name ends in how the SHA-256 of the file begins, as torch.hub names files."""
LEAST_SIDE = 31
"""Of smaller pictures AlexNet's third layer sees nothing."""
AT_ONCE = 4
"""Frames that are compared at the same time: 480 x 832 ones take some 100 MB each."""


@dataclass(frozen=True)
class Absent:
    """Why LPIPS is not measured."""

    reason: str


class Lpips:
    """The metric; made by ``find_lpips``."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self._network = network.to(device)
        self._device = device

    @torch.no_grad()
    def __call__(self, actual: Tensor, reference: Tensor) -> float:
        """The mean distance of frames uint8 [N, 3, H, W] from their references, 0 where equal.

        Raises:
            ValueError: if the shapes differ.
        """
        if actual.shape != reference.shape:
            raise ValueError(f"cannot compare {list(actual.shape)} with {list(reference.shape)}")
        total = 0.0
        pairs = zip(actual.split(AT_ONCE), reference.split(AT_ONCE), strict=True)
        for pair in pairs:
            one, other = (frames.to(self._device).float() / 127.5 - 1 for frames in pair)
            total += float(self._network(one, other).double().sum())
        return total / len(actual)


def find_lpips(size: tuple[int, int], device: torch.device) -> Lpips | Absent:
    """LPIPS for frames of this height and width, or why this machine does not measure it."""
    for package in PACKAGES:
        if find_spec(package) is None:
            return Absent(f"the package {package} is not installed")
    path = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    if not path.is_file():
        return Absent(f"its weights {WEIGHTS} are not in {path.parent}")
    if min(size) < LEAST_SIDE:
        return Absent(f"frames of {size[0]} x {size[1]} are too small: it needs {LEAST_SIDE}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        return Absent(f"{path} is not what its name says: its SHA-256 begins with {digest[:8]}")
    try:
        return Lpips(_network(path), device)
    except Exception as error:  # noqa: BLE001 - a package of any version may fail in any way
        return Absent(f"the package lpips cannot be used: {type(error).__name__}: {error}")


def _network(path: Path) -> Any:
    """The package's network; left to itself it would download AlexNet's weights."""
    made = import_module("lpips").LPIPS(net="alex", pnet_rand=True, verbose=False)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    # The package keeps AlexNet's layers by their numbers in torchvision, in slices of its own.
    for part in made.net.children():
        for number, layer in part.named_children():
            prefix = f"features.{number}."
            own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            layer.load_state_dict(own)
    return made.eval()
