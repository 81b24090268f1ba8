"""LPIPS, if its package and weights are installed: nothing is downloaded.

Zhang, Isola, Efros, Shechtman and Wang, "The unreasonable effectiveness of deep features as a
perceptual metric" (2018), over AlexNet. The package holds the weights of LPIPS's linear layers.
AlexNet's weights are torchvision's, from the folder that torch.hub downloads to.
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
"""File of AlexNet's weights; its name ends in the first digits of its SHA-256."""
LEAST_SIDE = 31
"""Smallest side that AlexNet's third layer accepts."""
AT_ONCE = 4
"""Frames per batch; one of 480 x 832 takes about 100 MB."""


@dataclass(frozen=True)
class Unavailable:
    """Reason why LPIPS is not measured."""

    reason: str


class Lpips:
    """LPIPS metric; made by ``find_lpips``."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self._network = network.to(device)
        self._device = device

    @torch.no_grad()
    def __call__(self, actual: Tensor, reference: Tensor) -> float:
        """Returns the mean distance of frames uint8 [N, 3, H, W] from their references.

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


def find_lpips(size: tuple[int, int], device: torch.device) -> Lpips | Unavailable:
    """Returns LPIPS for frames of this height and width, or the reason it is unavailable."""
    for package in PACKAGES:
        if find_spec(package) is None:
            return Unavailable(f"the package {package} is not installed")
    path = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    if not path.is_file():
        return Unavailable(f"its weights {WEIGHTS} are not in {path.parent}")
    if min(size) < LEAST_SIDE:
        return Unavailable(f"frames of {size[0]} x {size[1]} are too small: it needs {LEAST_SIDE}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        return Unavailable(f"{path} does not match its name: its SHA-256 begins with {digest[:8]}")
    try:
        return Lpips(_network(path), device)
    except Exception as error:  # noqa: BLE001 - a package of any version may fail in any way
        return Unavailable(f"the package lpips cannot be used: {type(error).__name__}: {error}")


def _network(path: Path) -> Any:
    """Returns the package's network with local AlexNet weights."""
    made = import_module("lpips").LPIPS(net="alex", pnet_rand=True, verbose=False)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    # The package groups AlexNet's layers, with torchvision's numbers, into slices.
    for part in made.net.children():
        for number, layer in part.named_children():
            prefix = f"features.{number}."
            own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
            layer.load_state_dict(own)
    return made.eval()
