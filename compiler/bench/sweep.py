"""Sweeps of a setting: variants of a bundle, built and measured beside it."""

import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import vidc.compiler.backends  # noqa: F401  A variant's settings name one of them.
from vidc.compiler.bench.measure import Protocol, measure
from vidc.compiler.bench.metrics import Metric, Samples, summaries
from vidc.compiler.bench.streams import OURS, load_bundle, of_bundle
from vidc.compiler.bench.verdict import Verdict, judge
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.resolve import Settings, resolve
from vidc.compiler.config.schema import build_tables, require_setting
from vidc.compiler.config.tables import model_from_json
from vidc.compiler.config.toml import to_toml
from vidc.compiler.store.run import Progress
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.metrics import compare, compare_pixels
from vidc.compiler.validate.play import Played, Player
from vidc.exporters.families import find_family
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UsageError
from vidc.plugins.names import weights_path
from vidc.runtime.bundle import Bundle
from vidc.runtime.manifest import Manifest

_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_PRECISION = "precision.default"


@dataclass(frozen=True)
class Dimension:
    """Setting by dotted name and its values in ``--set`` syntax."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, family: type[Family]) -> "Dimension":
        """Reads ``window=6,9,12`` or ``sampler.steps=[1000,500],[1000,250]``.

        Raises:
            UsageError: ``VIDC-BENCH-SWEEP``, it is not of this form;
                ``VIDC-CONFIG-SETTING``, there is no such setting.
        """
        name, equals, listed = (part.strip() for part in text.partition("="))
        values = tuple(dict.fromkeys(v.strip() for v in _OUTSIDE_BRACKETS.split(listed)))
        if not equals or not all(values):
            raise UsageError(
                "VIDC-BENCH-SWEEP",
                f"--sweep {text} is not a setting with values",
                "write it like --sweep window=6,9,12",
            )
        homes = [f"{table}.{name}" for table, kind in build_tables(family).items()
                 if name in {field.name for field in fields(kind)}]  # fmt: skip
        key = homes[0] if len(homes) == 1 else _PRECISION if name == "precision" else name
        require_setting(key, f"--sweep {name}", family)
        return cls(key, values)


@dataclass(frozen=True)
class Change:
    """Distance of a variant's output from the bundle's over one rollout with a prompt switch.

    Attributes:
        relative_l2: relative L2 over the latents of all blocks.
        psnr_db: PSNR of the frames, infinite if they are equal.
        ssim: SSIM of the frames.
    """

    relative_l2: float
    psnr_db: float
    ssim: float

    def to_json(self) -> dict[str, float | None]:
        """Returns plain JSON values; PSNR is null if nothing differs."""
        psnr = self.psnr_db if math.isfinite(self.psnr_db) else None
        return {"relative_l2": self.relative_l2, "psnr_db": psnr, "ssim": self.ssim}


@dataclass(frozen=True)
class Row:
    """Result for one value of the setting.

    Attributes:
        value: value of the setting.
        samples: samples of the variant.
        verdicts: variant against bundle, measured in turn, by metric.
        change: distance from the bundle's output; None if block sizes differ.
    """

    value: str
    samples: Samples
    verdicts: Mapping[str, Verdict]
    change: Change | None

    def to_json(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {
            "value": self.value,
            "metrics": summaries(self.samples, metrics),
            "verdicts": {name: verdict.to_json() for name, verdict in self.verdicts.items()},
            "change": None if self.change is None else self.change.to_json(),
        }


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: the setting, and a row for each value."""

    key: str
    rows: tuple[Row, ...]

    def to_json(self, metrics: Mapping[str, Metric]) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"key": self.key, "rows": [row.to_json(metrics) for row in self.rows]}


@dataclass(frozen=True)
class Base:
    """Bundle that variants are built from and compared with, and the decoder that all use."""

    folder: Path
    manifest: Manifest
    bundle: Bundle
    decoder: str | None


def sweep(
    base: Base,
    key: str,
    wanted: Mapping[str, Settings],
    protocol: Protocol,
    progress: Progress,
    tick: Callable[[], None],
) -> Sweep:
    """Builds a variant for each value from the bundle's weights and measures both in turn.

    Args:
        base: the bundle.
        key: dotted name of the setting.
        wanted: settings of each variant by value.
        protocol: numbers of rounds and samples.
        progress: progress of each build.
        tick: called after each round of each value.

    Raises:
        VidcError: as builds, ``load`` and ``measure``.
    """
    golden = Golden.load(base.folder)
    own = _played(base.bundle, golden)
    rows = []
    for value, settings in wanted.items():
        with _built(base, settings, progress) as variant:
            contestants = {
                OURS: of_bundle(base.bundle, protocol.seed),
                value: of_bundle(variant, protocol.seed),
            }
            prompts = golden.inputs.prompts
            found = measure(contestants, base.bundle.device, prompts, protocol, tick)
            verdicts = {
                name: judge(found[value][name], found[OURS][name])
                for name, metric in contestants[OURS].decoding.metrics.items()
                if metric.judged and name in found[value]
            }
            change = _change(variant, golden, base.bundle, own)
            rows.append(Row(value, found[value], verdicts, change))
    return Sweep(key, tuple(rows))


def variant_settings(manifest: Manifest, key: str, value: str) -> Settings:
    """Returns the settings of a bundle without text encoder and with one setting changed.

    Raises:
        VidcError: as ``resolve``.
    """
    config = manifest.config
    tables = {
        name: {key: value for key, value in config[name].items() if value is not None}
        for name in build_tables(find_family(manifest.family))
    }
    model = model_from_json(config)
    precision = {"default": config["precision"][model.quantized_group]}
    if key != _PRECISION:
        # The precisions of groups would override the swept default.
        precision |= {group: config["precision"][group] for group in _groups(model)}
    document = {"description": "A variant of a bundle", "family": manifest.family, **tables}
    with tempfile.TemporaryDirectory(prefix="vidc-sweep-") as folder:
        # A manifest of unknown origin may name a path.
        preset = Path(folder, Path(f"{manifest.preset}.toml").name)
        preset.write_text(to_toml(document | {"precision": precision}) + "\n", encoding="utf-8")
        return resolve(
            str(preset),
            gpu=manifest.target.name,
            backend=config["backend"],
            assignments=(f"{key}={value}",),
            environ={},
        )


def _groups(model: Family) -> list[str]:
    """Returns the weights groups of a variant; its prompts are embeddings, so no text encoder."""
    return [group for group in model.parts if group != model.text_group]


@contextmanager
def _built(base: Base, settings: Settings, progress: Progress) -> Iterator[Bundle]:
    """Yields a loaded variant and removes its folder afterwards."""
    # Builds need packages that the base install lacks.
    from vidc.compiler.build.build import whole
    from vidc.compiler.build.sources import Sources

    groups = _groups(model_from_json(base.manifest.config))
    weights = {group: base.folder / weights_path(group) for group in groups}
    with tempfile.TemporaryDirectory(prefix="vidc-sweep-") as folder:
        output = Path(folder, "variant")
        whole(settings, Sources(weights)).run(output, cache_root(os.environ), progress)
        yield load_bundle(output, base.decoder, verify="off")


def _played(bundle: Bundle, golden: Golden) -> Played:
    """Plays the golden rollout; with more sampler steps, a block's noise is used repeatedly."""
    noise, steps = golden.inputs.noise, bundle.spec.noise_shape[0]
    inputs = replace(golden.inputs, noise=noise[:, torch.arange(steps) % noise.shape[1]])
    blocks = range(golden.scenario.blocks)
    player = Player(bundle.program, bundle.resources)
    return player.rollout(golden.scenario, inputs.to(bundle.device), keep=blocks)


def _change(variant: Bundle, golden: Golden, base: Bundle, own: Played) -> Change | None:
    if variant.spec.noise_shape[1:] != base.spec.noise_shape[1:]:
        return None
    found = _played(variant, golden)
    latents = compare(torch.cat(found.latents), torch.cat(own.latents))
    pixels = compare_pixels(_pictures(found), _pictures(own))
    return Change(latents.relative_l2, pixels.psnr_db, pixels.ssim)


def _pictures(played: Played) -> Tensor:
    """Returns all frames, uint8 ``[N, 3, H, W]``."""
    frames = [block.flatten(0, 1) for block in played.frames.values()]
    return torch.cat(frames).permute(0, 3, 1, 2)
