"""LPIPS where it lies on this machine, and never from elsewhere."""

import hashlib
import socket
import sys

import pytest
import torch

from vidc.compiler.validate import perceptual
from vidc.compiler.validate.perceptual import Lpips, Unavailable, find_lpips

CPU = torch.device("cpu")
SIZE = (64, 96)
LPIPS = """
import socket
import torch
from torch import nn

class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.slice1 = nn.Sequential()
        self.slice1.add_module("0", nn.Conv2d(3, 4, 3))
        self.slice1.add_module("1", nn.ReLU())
        self.slice2 = nn.Sequential()
        self.slice2.add_module("3", nn.Conv2d(4, 4, 3))

class LPIPS(nn.Module):
    # As the real package: without pnet_rand the weights of AlexNet are downloaded.
    def __init__(self, net="alex", pnet_rand=False, verbose=True):
        super().__init__()
        if verbose:
            print("Setting up")
        if not pnet_rand:
            socket.create_connection(("download.pytorch.org", 443))
        self.net = Trunk()

    def forward(self, one, other):
        assert one.dtype == torch.float32 and -1 <= one.min() and one.max() <= 1
        parts = [self.net.slice2(self.net.slice1(x)) for x in (one, other)]
        return (parts[0] - parts[1]).square().mean((1, 2, 3), keepdim=True)
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Whatever reaches for the network fails."""

    def refuse(*arguments, **_):
        raise AssertionError(f"something reaches for the network: {arguments}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Puts modules of this source on the path, alone of their names."""

    def place(**sources):
        for name, source in sources.items():
            (tmp_path / f"{name}.py").write_text(source)
        for name in perceptual.PACKAGES:
            monkeypatch.delitem(sys.modules, name, raising=False)

    monkeypatch.syspath_prepend(tmp_path)
    # What is installed here does not count.
    installed = perceptual.find_spec

    def find_spec(name):
        spec = installed(name)
        return spec if spec and str(spec.origin).startswith(str(tmp_path)) else None

    monkeypatch.setattr(perceptual, "find_spec", find_spec)
    yield place
    for name in perceptual.PACKAGES:
        sys.modules.pop(name, None)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "checkpoints"

    def save(**weights):
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({name.replace("_", "."): value for name, value in weights.items()}, folder / "w")
        digest = hashlib.sha256((folder / "w").read_bytes()).hexdigest()
        path = (folder / "w").rename(folder / f"alexnet-owt-{digest[:8]}.pth")
        monkeypatch.setattr(perceptual, "WEIGHTS", path.name)
        return path

    return save


def weights():
    generator = torch.Generator().manual_seed(0)
    return {
        "features_0_weight": torch.randn(4, 3, 3, 3, generator=generator),
        "features_0_bias": torch.randn(4, generator=generator),
        "features_3_weight": torch.randn(4, 4, 3, 3, generator=generator),
        "features_3_bias": torch.randn(4, generator=generator),
        "classifier_1_weight": torch.zeros(2),
    }


def frames(seed, count=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, *SIZE), dtype=torch.uint8, generator=generator)


def test_a_missing_package_is_named(packages):
    packages()
    assert find_lpips(SIZE, CPU) == Unavailable("the package lpips is not installed")
    packages(lpips=LPIPS)
    assert find_lpips(SIZE, CPU) == Unavailable("the package torchvision is not installed")


def test_missing_weights_are_named_and_not_downloaded(packages, hub, tmp_path):
    packages(lpips=LPIPS, torchvision="")
    found = find_lpips(SIZE, CPU)
    assert isinstance(found, Unavailable)
    assert "alexnet-owt-7be5be79.pth" in found.reason
    assert str(tmp_path / "hub" / "checkpoints") in found.reason
    assert not (tmp_path / "hub").exists()


def test_the_metric_takes_the_local_weights(packages, hub, capsys):
    packages(lpips=LPIPS, torchvision="")
    hub(**weights())
    metric = find_lpips(SIZE, CPU)
    assert isinstance(metric, Lpips), metric
    one, other = frames(1), frames(2)
    own = {name.split("_", 1)[1]: value for name, value in weights().items()}

    def trunk(x):
        x = torch.nn.functional.conv2d(x / 127.5 - 1, own["0_weight"], own["0_bias"]).relu()
        return torch.nn.functional.conv2d(x, own["3_weight"], own["3_bias"])

    expected = (trunk(one.float()) - trunk(other.float())).square().mean().item()
    assert metric(one, other) == pytest.approx(expected, rel=1e-5)
    assert metric(one, one) == 0
    assert metric(one, other) == pytest.approx(metric(other, one))
    with pytest.raises(ValueError, match="cannot compare"):
        metric(one, other[:5])
    # stdout carries results only.
    assert capsys.readouterr().out == ""


def test_rejects_weights_with_wrong_digest(packages, hub):
    packages(lpips=LPIPS, torchvision="")
    path = hub(**weights())
    path.write_bytes(path.read_bytes() + b"x")
    found = find_lpips(SIZE, CPU)
    assert isinstance(found, Unavailable)
    assert "does not match its name" in found.reason


def test_pictures_that_are_too_small_are_named(packages, hub):
    packages(lpips=LPIPS, torchvision="")
    hub(**weights())
    assert find_lpips((16, 32), CPU) == Unavailable("frames of 16 x 32 are too small: it needs 31")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('operator torchvision::nms does not exist')", "nms does not exist"),
        ("class LPIPS:\n    def __init__(self, **_): raise TypeError('changed')", "changed"),
    ],
)
def test_a_package_that_fails_is_named(packages, hub, source, reason):
    packages(lpips=source, torchvision="")
    hub(**weights())
    found = find_lpips(SIZE, CPU)
    assert isinstance(found, Unavailable)
    assert reason in found.reason


def test_the_network_is_out_of_reach_here():
    with pytest.raises(AssertionError, match="network"):
        socket.create_connection(("localhost", 1))
