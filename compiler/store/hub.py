"""Files of the Hugging Face Hub, named as ``hf:ORG/NAME[@REVISION][:FILE]``."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Self

from vidc.plugins.errors import UnavailableError, UsageError
from vidc.plugins.installation import install_extra

_REFERENCE = re.compile(r"hf:([\w.-]+/[\w.-]+)(?:@([^:@]+))?(?::([^:]+))?")
_BESIDE = ("*.json", "*.yaml")
"""Small files beside a checkpoint that may hold its settings; they are always fetched."""
_INDEX = ".index.json"


@dataclass(frozen=True)
class Reference:
    """A repository of the hub, and a file or folder in it.

    Attributes:
        repository: such as ``ORG/NAME``.
        revision: a branch, tag or commit; None is the default branch.
        file: a path in the repository; None is all of it.
    """

    repository: str
    revision: str | None = None
    file: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a reference.

        Raises:
            UsageError: ``VIDC-HUB-REFERENCE``.
        """
        found = _REFERENCE.fullmatch(text)
        if found is None or ".." in text:
            raise UsageError(
                "VIDC-HUB-REFERENCE",
                f"{text!r} names no file of the hub",
                "write hf:ORG/NAME, hf:ORG/NAME@REVISION or hf:ORG/NAME@REVISION:FILE",
            )
        return cls(found[1], found[2], found[3])

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repository}{revision}{f':{self.file}' if self.file else ''}"

    @property
    def patterns(self) -> Sequence[str] | None:
        """Patterns of the files to fetch for a checkpoint, None for all."""
        if self.file is None:
            return None
        shards: tuple[str, ...] = ()
        if self.file.endswith(_INDEX):
            shards = (f"{self.file.rpartition('/')[0]}/*.safetensors".lstrip("/"),)
        return (*_BESIDE, self.file, f"{self.file}/*", *shards)


def fetch(reference: Reference) -> Path:
    """Returns the path of a checkpoint in huggingface_hub's cache, downloaded if it is not there.

    Raises:
        UsageError: ``VIDC-HUB-MISSING``, ``VIDC-HUB-REFERENCE``.
        UnavailableError: ``VIDC-ENV-HUB``, ``VIDC-HUB-UNREACHABLE``.
    """
    hub = huggingface_hub()
    with hub_errors(reference):
        folder = Path(
            hub.snapshot_download(
                reference.repository, revision=reference.revision, allow_patterns=reference.patterns
            )
        )
    path = folder / (reference.file or "")
    if not path.exists():
        raise UsageError(
            "VIDC-HUB-MISSING",
            f"{reference.repository} has no {reference.file}",
            f"look at the files of {reference.repository}, and check the path after the colon",
        )
    return path


def huggingface_hub() -> ModuleType:
    """Returns the library.

    Raises:
        UnavailableError: ``VIDC-ENV-HUB``.
    """
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise UnavailableError(
            "VIDC-ENV-HUB",
            f"names that begin with hf: need the package huggingface_hub: {error}",
            install_extra("hub"),
        ) from error


@contextmanager
def hub_errors(reference: Reference) -> Iterator[None]:
    """Turns errors of the hub and of the network into coded ones.

    Raises:
        UsageError: ``VIDC-HUB-MISSING``, ``VIDC-HUB-REFERENCE``.
        UnavailableError: ``VIDC-HUB-UNREACHABLE``.
    """
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        # The hub answers alike for a repository that does not exist and for one without access.
        raise UsageError(
            "VIDC-HUB-MISSING",
            f"the hub has no {reference}, or you may not read or write it: {_first_line(error)}",
            "check the name; for a private or gated repository, hf auth login",
        ) from error
    except errors.HFValidationError as error:
        raise UsageError(
            "VIDC-HUB-REFERENCE", f"{reference}: {_first_line(error)}", "check the name"
        ) from error
    except (errors.HTTPError, errors.EntryNotFoundError, OSError) as error:
        response = getattr(error, "response", None)
        if response is not None and response.status_code in (401, 403):
            raise UsageError(
                "VIDC-HUB-MISSING",
                f"the hub refuses access to {reference}: {_first_line(error)}",
                "hf auth login with a token that may read it, and write it for vidc push",
            ) from error
        raise UnavailableError(
            "VIDC-HUB-UNREACHABLE",
            f"{reference} was not reached, and is not whole in the local cache: "
            f"{_first_line(error)}",
            "check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or give a path of this machine",
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
