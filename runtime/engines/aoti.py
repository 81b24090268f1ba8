"""AOTInductor engines: native code that uses shared weights and writes states in place."""

import json
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

import vidc.plugins.ops.padded_attention_sm90
import vidc.plugins.ops.ring  # noqa: F401  packages call these operators by name
from vidc.plugins import engine_operators
from vidc.plugins.archive import Archive
from vidc.plugins.environment import variable
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.ops.flash_attention import load_kernel
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.document import AGAIN
from vidc.runtime.faults import engine_error
from vidc.runtime.files import Files
from vidc.runtime.pickles import refuse_pickles
from vidc.runtime.states import Buffers, States, argument
from vidc.runtime.strict import plain, read
from vidc.runtime.weights import Weights

CAPTURABLE = True
VERSION = torch.__version__
DESCRIPTION = "extra/vidc.json"
"""Member of a package, below its own folder, that holds its ``Description``."""
_UNPACK = "TMPDIR"
"""Environment variable that names the folder in which torch unpacks."""
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
        products: by constant name, the two weights whose element-wise product the code reads; the
            first may be a packed one.
    """

    channels_last: tuple[str, ...] = ()
    packed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    products: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Constant:
    """A tensor that a package reads: its dtype by torch's name, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class Description:
    """A package's tensors and options, written by the build into the package.

    Attributes:
        signature: the engine's.
        constants: by name; a packed one as a whole, and a product as its result.
        options: options of the loader.
    """

    signature: Signature
    constants: dict[str, Constant]
    options: Options


class AotInductorEngine:
    """A loaded package, and the weights that it reads.

    Args:
        file: path of the package in the bundle.
        package: torch's own loader of the package.
        signature: the engine's.
        constants: every tensor that the package reads; the package only points to them.
        folder: folder that the package is unpacked into; removed with the engine.
    """

    def __init__(
        self,
        file: str,
        package: Any,
        signature: Signature,
        constants: Mapping[str, Tensor],
        folder: TemporaryDirectory[str],
    ) -> None:
        self.signature = signature
        self._file = file
        self._folder = folder
        self._package = package
        self._constants = dict(constants)
        # torch 2.11 to 2.13 keeps the tensors that it gets here for good. So it gets other tensor
        # objects over the same memory, and _let_go takes the memory from them.
        handed = {name: tensor.detach() for name, tensor in constants.items()}
        package.load_constants(handed, _USE_INACTIVE, _CHECK_FULL_UPDATE, _USER_MANAGED)
        weakref.finalize(self, _let_go, list(handed.values())).atexit = False

    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the code over these buffers; writes states in place."""
        arguments = [argument(spec, buffers, states) for spec in self.signature.arguments]
        try:
            results = self._package.boxed_run(arguments)
        except (torch.AcceleratorError, torch.OutOfMemoryError):
            raise  # gpu_faults names the cause.
        except RuntimeError as error:
            raise engine_error(self._file, error) from error
        for spec, result in zip(self.signature.outputs, results, strict=True):
            buffers[spec.name].copy_(result)

    def weight(self, name: str) -> Tensor:
        """Returns a tensor that the package reads."""
        return self._constants[name]


def _let_go(tensors: Sequence[Tensor]) -> None:
    """Takes their memory from tensors that torch keeps."""
    with torch.inference_mode():  # Allows it for tensors that were made in either mode.
        for tensor in tensors:
            tensor.set_()  # type: ignore[call-overload]  # Its stub lacks the form without source.


def load(
    files: Files, entry: manifest.Engine, weights: Weights, device: torch.device
) -> AotInductorEngine:
    """Loads ``entry``'s package without a compiler.

    Raises:
        UnavailableError: ``VIDC-ENGINE-LOAD``, torch cannot load it; ``VIDC-KERNEL-GPU``, the
                kernel library has no kernel for this GPU.
        GateError: ``VIDC-ENGINE-SIGNATURE``, its tensors are not those of the manifest or of the
            bundle's weights; ``VIDC-BUNDLE-MALFORMED``; as raised by ``refuse_pickles``.
    """
    options: Options = read(entry.options, Options, f"options of {entry.files[0]}")
    described = _described(files, entry, options)
    operators = entry.requires.operators
    if operators and (fault := engine_operators.kernel_error(device, operators)) is not None:
        raise fault
    own: dict[str, Tensor] = {}
    for path in entry.files[1:]:
        if path.endswith(".safetensors"):
            own |= _own_constants(files, path, device)
        elif path.endswith(".cubin"):
            facts = str(PurePosixPath(path).with_suffix(".json"))
            load_kernel(Path(files.sealed(path)), Path(files.sealed(facts)))
    package, folder = _loaded(files, entry)
    constants = {
        name: _constant(entry, name, own, weights, options, described.constants)
        for name in package.get_constant_fqns()
    }
    return AotInductorEngine(entry.files[0], package, entry.signature, constants, folder)


def _described(files: Files, entry: manifest.Engine, options: Options) -> Description:
    """Returns a package's description after comparing it with the manifest.

    The package's code checks neither shapes nor dtypes: it would read beyond a smaller tensor.
    """
    archive = Archive(files.read(entry.files[0]), entry.files[0])
    refuse_pickles(archive)
    # Torch 2.11 crashes on a package without a model.
    if not any(f"/aotinductor/{_MODEL}/" in name for name in archive.members):
        raise _not_loaded(entry, "it holds no compiled model")
    member = next((n for n in archive.members if n.endswith(f"/{DESCRIPTION}")), None)
    if member is None:
        raise _other(entry, "it does not describe its tensors")
    try:
        value = json.loads(archive.read(member))
    except (ValueError, RecursionError) as error:
        raise _other(entry, f"its description cannot be read: {error}") from error
    described: Description = read(value, Description, f"description of {entry.files[0]}")
    if plain(described.signature) != plain(entry.signature):
        raise _other(entry, "its inputs, outputs or states are not those of the manifest")
    if described.options != options:
        raise _other(entry, "its options are not those of the manifest")
    return described


def _loaded(files: Files, entry: manifest.Engine) -> tuple[Any, TemporaryDirectory[str]]:
    """Returns torch's loader of the package, and the folder that it unpacks into."""
    folder = TemporaryDirectory(prefix="vidc-engine-", ignore_cleanup_errors=True)
    sealed = files.sealed(entry.files[0])
    try:
        # aoti_load_package looks for a compiler and hides the reason of a failure.
        with variable(_UNPACK, folder.name):
            package = torch._C._aoti.AOTIModelPackageLoader(
                sealed, _MODEL, _RUN_SINGLE_THREADED, _RUNNERS, _DEFAULT_DEVICE
            )
    except (RuntimeError, UnicodeDecodeError) as error:  # The second: a message with broken text.
        folder.cleanup()
        raise _not_loaded(entry, _first_line(error)) from error
    return package, folder


def _own_constants(files: Files, path: str, device: torch.device) -> dict[str, Tensor]:
    try:
        found = load_tensors(files.read(path))
    except SafetensorError as error:
        text = f"{path} is not a file of safetensors: {str(error)[:200]}"
        raise GateError("VIDC-BUNDLE-MALFORMED", text, AGAIN) from error
    return {name: tensor.to(device) for name, tensor in found.items()}


def _constant(
    entry: manifest.Engine,
    name: str,
    own: Mapping[str, Tensor],
    weights: Weights,
    options: Options,
    described: Mapping[str, Constant],
) -> Tensor:
    """Returns a tensor that the package reads, of the dtype and shape that its code expects."""
    try:
        if name in own:
            tensor = own[name]
        elif name in options.products:
            first, second = options.products[name]
            if first in options.packed:
                weights.packed(first, options.packed[first])
            tensor = weights.product(name, first, second)
        elif name in options.packed:
            tensor = weights.packed(name, options.packed[name])
        else:
            tensor = weights.get(name, channels_last=name in options.channels_last)
    except KeyError as error:
        raise GateError(
            "VIDC-ENGINE-SIGNATURE",
            f"{entry.files[0]} asks for weight {name}, which the bundle does not have",
            "build the bundle again",
        ) from error
    expected = described.get(name)
    found = Constant(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    if found != expected:
        raise _other(entry, f"weight {name} is {found}, and its code reads {expected}")
    return tensor


def _other(entry: manifest.Engine, why: str) -> GateError:
    return GateError("VIDC-ENGINE-SIGNATURE", f"{entry.files[0]}: {why}", "build the bundle again")


def _not_loaded(entry: manifest.Engine, reason: str) -> UnavailableError:
    return UnavailableError(
        "VIDC-ENGINE-LOAD",
        f"torch {torch.__version__} cannot load {entry.files[0]}: {reason}",
        f"run it with torch {entry.version}, which built it, or build the bundle again",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
