"""AOTInductor engines: native code that uses shared weights and writes states in place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

import vidc.plugins.ops.ring  # noqa: F401  packages call its operators by name
from vidc.plugins import engine_operators
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.ops.flash_attention import load_kernel
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.pickles import refuse_pickles
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

CAPTURABLE = True
# Positional arguments of torch's loader.
_MODEL = "model"
_RUN_SINGLE_THREADED = True
_RUNNERS = 1
_DEFAULT_DEVICE = -1
_USE_INACTIVE = False
_CHECK_FULL_UPDATE = True
_USER_MANAGED = True


@dataclass(frozen=True)
class Options:
    """Options of an engine in a manifest.

    Attributes:
        channels_last: names of convolution weights that the code reads in channels-last format.
        packed: by constant name, the weights that the code reads as one concatenated tensor.
    """

    channels_last: tuple[str, ...] = ()
    packed: dict[str, tuple[str, ...]] = field(default_factory=dict)


class AotInductorEngine:
    """A loaded package, and the weights that it reads.

    Args:
        package: torch's own loader of the package.
        signature: the engine's.
        constants: every tensor the package reads; the package only points to them.
    """

    def __init__(self, package: Any, signature: Signature, constants: Mapping[str, Tensor]) -> None:
        self.signature = signature
        self._package = package
        self._constants = dict(constants)
        package.load_constants(self._constants, _USE_INACTIVE, _CHECK_FULL_UPDATE, _USER_MANAGED)

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the code over these buffers; writes states in place."""
        results = self._package.boxed_run(
            [argument(spec, buffers, states) for spec in self.signature.arguments]
        )
        for spec, result in zip(self.signature.outputs, results, strict=True):
            buffers[spec.name].copy_(result)

    def weight(self, name: str) -> Tensor:
        """Returns a tensor that the package reads."""
        return self._constants[name]


def load(
    folder: Path, entry: manifest.Engine, weights: Weights, device: torch.device
) -> AotInductorEngine:
    """Loads ``entry``'s package without a compiler.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOAD``, torch cannot load it; ``VIDC-KERNEL-GPU``, the
                kernel library has no kernel for this GPU.
        GateError: ``VIDC-ENGINE-SIGNATURE``, it reads a tensor that the bundle lacks; as raised by
            ``refuse_pickles``.
    """
    file = folder / entry.files[0]
    refuse_pickles(file)
    _require_model(file, entry)
    operators = entry.requires.operators
    if operators and (fault := engine_operators.kernel_error(device, operators)) is not None:
        raise fault
    try:
        # aoti_load_package looks for a compiler and hides the reason of a failure.
        package = torch._C._aoti.AOTIModelPackageLoader(
            str(file), _MODEL, _RUN_SINGLE_THREADED, _RUNNERS, _DEFAULT_DEVICE
        )
    except RuntimeError as error:
        raise _not_loaded(entry, _first_line(error)) from error
    options: Options = read(entry.options, Options, f"options of {entry.files[0]}")
    own: dict[str, Tensor] = {}
    for path in entry.files[1:]:
        if path.endswith(".safetensors"):
            own |= load_file(folder / path, device=str(device))
        elif path.endswith(".cubin"):
            load_kernel(folder / path)
    constants = {}
    for name in package.get_constant_fqns():
        try:
            last = name in options.channels_last
            if name in own:
                constants[name] = own[name]
            elif name in options.packed:
                constants[name] = weights.packed(name, options.packed[name])
            else:
                constants[name] = weights.get(name, channels_last=last)
        except (KeyError, SafetensorError) as error:
            raise GateError(
                "VIDC-ENGINE-SIGNATURE",
                f"{entry.files[0]} asks for weight {name}, which the bundle does not have",
                "build the bundle again",
            ) from error
    return AotInductorEngine(package, entry.signature, constants)


def _require_model(file: Path, entry: manifest.Engine) -> None:
    """Refuses a package without a model; torch 2.11 crashes on one."""
    with ZipFile(file) as archive:
        if not any(f"/aotinductor/{_MODEL}/" in name for name in archive.namelist()):
            raise _not_loaded(entry, "it holds no compiled model")


def _not_loaded(entry: manifest.Engine, reason: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENGINE-LOAD",
        f"torch {torch.__version__} cannot load {entry.files[0]}: {reason}",
        f"run it with torch {entry.version}, which built it, or build the bundle again",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
