"""Changes of bundles for ``fuzzing``, and what must come of them."""

import json
import random
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from entries import file_entries
from fuzzing import mutate_file, nudge
from small_bundle import write_recorded
from torch import Tensor

from vidc.compiler.store.workers import Worker
from vidc.plugins.errors import BuildError, VidcError
from vidc.runtime import load
from vidc.runtime.manifest import MANIFEST_NAME, read_manifest, write_manifest
from vidc.runtime.programs.causal_video import TEXT_ENCODER

SIGNED_ALONE = ("spec.timesteps", "spec.sigmas", "spec.context_timestep", "spec.sink")
"""Fields that decide frames and are compared with nothing but the record, as SECURITY.md says."""
BYTES = 16 * 2**30
"""Address space of a process that plays damaged files."""


class OtherFramesError(Exception):
    """A changed bundle was accepted and played other frames."""


def play(folder: Path) -> Tensor:
    """Three blocks of a bundle, the last under a second prompt.

    The first prompt is a text where there is an encoder.
    """
    with load(folder) as bundle, bundle.session(seed=3) as session:
        generator = torch.Generator().manual_seed(1)
        embeds = torch.randn(bundle.spec.prompt_shape, generator=generator)
        session.prompt("a red fox" if TEXT_ENCODER in bundle.engines else embeds)
        frames = [*session.stream(blocks=2)]
        session.switch_prompt(embeds)
        return torch.cat([*frames, session.step()])


class Played:
    """Plays bundles; refuses frames that differ from those of the first one.

    Args:
        forgeable: fields whose change may play other frames.
    """

    def __init__(self, *forgeable: str) -> None:
        self._forgeable = forgeable
        self._frames: Tensor | None = None
        self._document: Any = None

    def __call__(self, folder: Path) -> str:
        frames = play(folder)
        document = json.loads((folder / MANIFEST_NAME).read_text())
        if self._frames is None:
            self._frames, self._document = frames, document
        if torch.equal(frames, self._frames):
            return "same frames"
        changed = {path for path in differences(self._document, document) if path != "files"}
        if changed <= {*self._forgeable}:
            return f"other frames: {', '.join(sorted(changed))}"
        raise OtherFramesError(", ".join(sorted(changed)))


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of the fields of two manifests that differ, two levels deep at most."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and path.count(".") < 1 and path != "files":
        for name in sorted(old.keys() | new.keys()):
            yield from differences(old.get(name), new.get(name), f"{path}.{name}".strip("."))
    else:
        yield path


class PlayedApart:
    """Plays bundles in another process, which damaged files may end."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def __call__(self, folder: Path) -> str:
        worker = self._worker or Worker()
        self._worker = None
        done = False
        try:
            worker.submit(_play_bounded, folder)
            frames = worker.result("play")
            done = True
        except BuildError as error:
            if error.code == "VIDC-BUILD-STAGE":
                return "process ended"
            raise
        except VidcError:
            done = True
            raise
        finally:
            if done:
                self._worker = worker
            else:
                worker.kill()
        return f"played {frames} frames"

    def close(self) -> None:
        """Ends the process."""
        if self._worker is not None:
            self._worker.kill()


def _play_bounded(folder: Path) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    return len(play(folder))


def edit_document(path: Path, rng: random.Random) -> str:
    """Changes a JSON document in any way."""
    if rng.random() < 0.5:
        return mutate_file(path, rng)
    return ", ".join(differences(*nudge(path, rng)))


def nudge_manifest(folder: Path, rng: random.Random) -> str:
    """Changes a value of a manifest that a reader accepts, most often."""
    return ", ".join(differences(*nudge(folder / MANIFEST_NAME, rng)))


def forge_manifest(folder: Path, rng: random.Random) -> str:
    """Changes a manifest, and its record as well if the reader accepts it."""
    done = nudge_manifest(folder, rng)
    try:
        write_recorded(read_manifest(folder), folder)
    except VidcError:
        return done
    return f"{done}, recorded"


def damage_file(folder: Path, rng: random.Random) -> str:
    """Changes another file than the manifest."""
    names = sorted(read_manifest(folder).files)
    path = folder / rng.choice(names)
    before = path.read_bytes()
    while path.read_bytes() == before:
        done = mutate_file(path, rng)
    return done


def forge_file(folder: Path, rng: random.Random) -> str:
    """Changes another file than the manifest, and its digest as well."""
    document = read_manifest(folder)
    done = damage_file(folder, rng)
    manifest = (folder / MANIFEST_NAME).read_bytes()
    (folder / MANIFEST_NAME).unlink()
    files = file_entries(folder)
    (folder / MANIFEST_NAME).write_bytes(manifest)
    write_manifest(replace(document, files=files), folder)
    return done
