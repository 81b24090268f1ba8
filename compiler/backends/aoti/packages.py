"""Pickle-free, reproducible rewriting of PyTorch's ``.pt2`` packages."""

import shutil
import zipfile
from pathlib import Path

from vidc.runtime.pickles import is_sample_input, refuse_pickles

_CHUNK = 2**22


def strip_pickles(package: Path) -> None:
    """Removes the pickled sample inputs from a package, in place.

    Members are sorted, stored and dated 1980, so that equal members give equal bytes.
    ``torch.export.load`` needs the file of the sample inputs and accepts an empty one.

    Args:
        package: file of ``torch.export.save`` or ``aoti_compile_and_package``.

    Raises:
        GateError: ``VIDC-BUNDLE-PICKLE``, it has a pickle that loading needs, such as a custom
            object; the package is unchanged.
    """
    rewritten = package.with_name(f"{package.name}.stripped")
    try:
        with zipfile.ZipFile(package) as source, zipfile.ZipFile(rewritten, "w") as target:
            for member in sorted(source.infolist(), key=lambda member: member.filename):
                _copy(source, member, target)
        refuse_pickles(rewritten)
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
