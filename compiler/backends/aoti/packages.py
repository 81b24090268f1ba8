"""Pickle-free, reproducible rewriting of PyTorch's ``.pt2`` packages."""

import json
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.export import ExportedProgram

from vidc.plugins.signature import Signature
from vidc.runtime.engines.aoti import DESCRIPTION
from vidc.runtime.pickles import is_sample_input, open_package, refuse_pickles

_CHUNK = 2**22


def finish_package(
    package: Path, program: ExportedProgram, signature: Signature, options: Mapping[str, Any]
) -> None:
    """Removes pickles from an engine's package and writes its ``Description`` into it.

    Args:
        package: file of ``aoti_compile_and_package``.
        program: the compiled program, with names, dtypes and shapes of constants.
        signature: signature of the engine in the manifest.
        options: options of the loader in the manifest.

    Raises:
        GateError: as raised by ``strip_pickles``.
    """
    constants = {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in (program.state_dict | program.constants).items()
        if isinstance(tensor, Tensor)
    }
    value = {"signature": signature.to_json(), "constants": constants, "options": options}
    strip_pickles(package, {DESCRIPTION: json.dumps(value, sort_keys=True)})


def strip_pickles(package: Path, added: Mapping[str, str] | None = None) -> None:
    """Removes the pickled sample inputs from a package, in place.

    Members are sorted, stored and dated 1980, so that equal members give equal bytes.
    ``torch.export.load`` needs the file of the sample inputs and accepts an empty one.

    Args:
        package: file of ``torch.export.save`` or ``aoti_compile_and_package``.
        added: texts of further members by name below the package's own folder.

    Raises:
        GateError: ``VIDC-BUNDLE-PICKLE``, it has a pickle that loading needs, such as a custom
            object; the package is unchanged.
    """
    rewritten = package.with_name(f"{package.name}.stripped")
    try:
        with zipfile.ZipFile(package) as source, zipfile.ZipFile(rewritten, "w") as target:
            for member in sorted(source.infolist(), key=lambda member: member.filename):
                _copy(source, member, target)
            root = source.namelist()[0].partition("/")[0]
            for name, text in (added or {}).items():
                target.writestr(zipfile.ZipInfo(f"{root}/{name}"), text)
        refuse_pickles(open_package(rewritten))
        rewritten.replace(package)
    finally:
        rewritten.unlink(missing_ok=True)


def _copy(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo(member.filename)
    entry.file_size = 0 if is_sample_input(member.filename) else member.file_size
    with target.open(entry, "w") as sink:
        if entry.file_size:
            with source.open(member) as stream:
                shutil.copyfileobj(stream, sink, _CHUNK)
