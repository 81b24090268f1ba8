"""Commands that install what is missing, for the way in which vidc itself was installed."""

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from shutil import which
from typing import Any, Self
from urllib.parse import unquote, urlsplit

_NAME = "vidc"


@dataclass(frozen=True)
class Installation:
    """Record of what installed vidc, and from where.

    Attributes:
        install: words before a requirement, such as ``("pip", "install")``.
        inject: the same for a package other than vidc; it differs with pipx and ``uv tool``, which
            give each application an environment of its own.
        remove: words that uninstall a package.
        source: source of vidc: its name for a package index, or a folder, a wheel or a URL.
        editable: True if it runs from that folder.
        extras: extras that vidc was installed with, if installing it again would drop them: with
            pipx and ``uv tool``.
    """

    install: tuple[str, ...]
    inject: tuple[str, ...]
    remove: tuple[str, ...]
    source: str
    editable: bool = False
    extras: tuple[str, ...] = ()

    @classmethod
    def of(cls, prefix: Path, python: Path, installer: str, direct_url: str | None) -> Self:
        """Reads an installation from its records.

        Args:
            prefix: the environment's folder, ``sys.prefix``.
            python: its interpreter.
            installer: the program that its record names, such as ``pip`` or ``uv``.
            direct_url: text of ``direct_url.json`` (PEP 610); None for a package of an index.
        """
        source, editable = _source(json.loads(direct_url)) if direct_url else (_NAME, False)
        return cls(*_words(prefix, python, installer), source, editable, _extras(prefix))

    def extra(self, extra: str) -> str:
        """Returns the command that installs an extra of vidc, or vidc itself for an empty name."""
        extras = sorted({*self.extras, *filter(None, [extra])})
        chosen = f"[{','.join(extras)}]" if extras else ""
        wanted = f"{self.source}{chosen}"
        if "://" in self.source:  # A direct reference needs the name before it.
            wanted = f"{_NAME}{chosen} @ {self.source}"
        return shlex.join([*self.install, *(["--editable"] if self.editable else []), wanted])

    def packages(self, *requirements: str, options: Sequence[str] = ()) -> str:
        """Returns the command that installs other packages beside vidc.

        Args:
            requirements: such as ``click>=8``.
            options: of ``pip install``; ``uv pip`` has the same.
        """
        if options and self.inject[0] == "pipx":
            options = (f"--pip-args={' '.join(options)}",)
        return shlex.join([*self.inject, *options, *requirements])

    def without(self, package: str) -> str:
        """Returns the command that uninstalls a package."""
        return shlex.join([*self.remove, package])


@cache
def installation() -> Installation:
    """Returns how the running vidc was installed."""
    try:
        record = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:  # Folders on the path, without a record.
        return Installation.of(Path(sys.prefix), Path(sys.executable), "pip", None)
    return Installation.of(
        Path(sys.prefix),
        Path(sys.executable),
        (record.read_text("INSTALLER") or "pip").strip(),
        record.read_text("direct_url.json"),
    )


def install_extra(extra: str) -> str:
    """Returns the command that adds an extra to the running vidc."""
    return installation().extra(extra)


def install_packages(*requirements: str, options: Sequence[str] = ()) -> str:
    """Returns the command that installs packages beside the running vidc: see ``Installation``."""
    return installation().packages(*requirements, options=options)


def _source(record: dict[str, Any]) -> tuple[str, bool]:
    url = record["url"]
    if "vcs_info" in record:
        vcs = record["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}", False
    if not url.startswith("file:"):
        return url, False
    return unquote(urlsplit(url).path), record.get("dir_info", {}).get("editable", False)


def _extras(prefix: Path) -> tuple[str, ...]:
    """Returns the extras in a record of pipx or ``uv tool``."""
    record, receipt = prefix / "pipx_metadata.json", prefix / "uv-receipt.toml"
    if record.is_file():
        named = json.loads(record.read_text())["main_package"]["package_or_url"]
        found = re.search(r"\[([^]]*)\]", named)
        return tuple(each.strip() for each in found[1].split(",")) if found else ()
    if receipt.is_file():
        for requirement in tomllib.loads(receipt.read_text())["tool"]["requirements"]:
            if requirement["name"] == _NAME:
                return tuple(requirement.get("extras", ()))
    return ()


_Words = tuple[str, ...]


def _words(prefix: Path, python: Path, installer: str) -> tuple[_Words, _Words, _Words]:
    """Returns the words that install vidc again, install a package and uninstall one."""
    here = ("-p", str(prefix))
    uv = ("uv", "pip", "install", *here), ("uv", "pip", "uninstall", *here)
    if (prefix / "pipx_metadata.json").is_file():
        inject, remove = ("pipx", "inject", _NAME), ("pipx", "runpip", _NAME, "uninstall", "-y")
        return ("pipx", "install", "--force"), inject, remove
    if (prefix / "uv-receipt.toml").is_file():
        return ("uv", "tool", "install", "--force"), *uv
    # Not importlib's find_spec: setuptools' finder takes a search for pip as a sign to step aside.
    if installer == "uv" or PathFinder.find_spec("pip") is None:
        return uv[0], *uv
    pip: _Words = ("pip",)
    if Path(which("pip") or "").parent != python.parent:
        pip = (str(python), "-m", "pip")  # Another environment's pip, or none, comes first in PATH.
    return (*pip, "install"), (*pip, "install"), (*pip, "uninstall", "-y")
