"""YAML files of a DIAMOND download: ``config/agent/*.yaml`` and ``config/env/*.yaml``."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vidc.plugins.errors import BuildError, UnavailableError, UsageError
from vidc.plugins.installation import install_extra
from vidc.plugins.untrusted_files import require_regular

if TYPE_CHECKING:
    from vidc.exporters.parts.diamond_unet.config import UNetConfig
    from vidc.exporters.parts.diamond_unet.part import DiamondUNetPart


_TABLE = "a table"
"""Expected value of a setting that has settings of its own."""


def require_agent_config(checkpoint: Path, part: "DiamondUNetPart") -> None:
    """Compares the YAML files of a checkpoint with the preset's sizes.

    A download has ``model/NAME.pt``, ``config/agent/NAME.yaml`` and ``config/env/NAME.yaml`` in one
    folder; both YAML files may also lie beside the checkpoint, as ``agent.yaml`` and ``env.yaml``.
    A file that is missing is not compared.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-CONFIG``, a file differs from the preset or is no YAML.
        UsageError: ``VIDC-CHECKPOINT-MISSING``, a file cannot be read.
        UnavailableError: ``VIDC-ENV-BUILD``, PyYAML is not installed.
    """
    agent, environment = (_find(checkpoint, kind) for kind in ("agent", "env"))
    if agent is not None:
        _compare(agent, _agent_settings(part))
    if environment is not None:
        _compare(environment, _environment_settings(part))


def _find(checkpoint: Path, kind: str) -> Path | None:
    name = f"{checkpoint.stem}.yaml"
    beside = checkpoint.parent
    found = (beside.parent / "config" / kind / name, beside / f"{kind}.yaml")
    return next((path for path in found if path.is_file()), None)


def _agent_settings(part: "DiamondUNetPart") -> dict[str, Any]:
    settings = _network_settings("denoiser", part.config)
    settings["denoiser.noise_previous_obs"] = part.config.noised_past
    if part.upsampler.factor == 1:
        return settings | {"upsampler": None}
    settings |= {"upsampler": _TABLE} | _network_settings("upsampler", part.upsampler)
    return settings | {"upsampler.upsampling_factor": part.upsampler.factor}


def _network_settings(name: str, config: "UNetConfig") -> dict[str, Any]:
    inner = f"{name}.inner_model"
    return {
        f"{name}.sigma_data": config.sigma_data,
        f"{name}.sigma_offset_noise": config.sigma_offset,
        f"{inner}.img_channels": 3,
        f"{inner}.num_steps_conditioning": config.past,
        f"{inner}.cond_channels": config.cond,
        f"{inner}.depths": [*config.depths],
        f"{inner}.channels": [*config.channels],
        f"{inner}.attn_depths": [int(each) for each in config.attention],
    }


def _environment_settings(part: "DiamondUNetPart") -> dict[str, Any]:
    factor = part.upsampler.factor
    return {
        "num_actions": part.config.actions,
        "train.size": [factor * part.height, factor * part.width],
    }


def _compare(path: Path, expected: Mapping[str, Any]) -> None:
    found = dict(_flat(_read(path)))
    wrong = [
        f"{name} = {found[name]}, the preset {value}"
        for name, value in expected.items()
        if name in found and not _same(found[name], value)
    ]
    if not found.keys() & expected.keys():
        _refuse(f"{path} sets none of {', '.join([*expected][:4])}, …")
    if wrong:
        _refuse(f"{path} has {'; '.join(wrong)}"[:1000])


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value of nested tables, and the tables, by dotted name."""
    if prefix:
        yield prefix, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{prefix}.{key}" if prefix else str(key))


def _same(found: Any, expected: Any) -> bool:
    if expected is _TABLE:
        return isinstance(found, dict)
    if isinstance(expected, list):
        return isinstance(found, list) and [*map(_number, found)] == expected
    return bool(_number(found) == expected)


def _number(value: Any) -> Any:
    """Returns a number that YAML 1.1 reads as text, such as ``2e-3``."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _read(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "VIDC-ENV-BUILD", f"{path} cannot be read without PyYAML", install_extra("build")
        ) from error
    try:
        require_regular(path)
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            "VIDC-CHECKPOINT-MISSING",
            f"cannot read {path}: {error.strerror}",
            "check its permissions",
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        _refuse(f"{path} is no YAML: {' '.join(str(error).split())[:300]}")
    if not isinstance(document, dict):
        _refuse(f"{path} is not a table")
    return document


def _refuse(what: str) -> NoReturn:
    raise BuildError(
        "VIDC-CHECKPOINT-CONFIG",
        what,
        "choose the preset of this model, or --set what differs; a YAML file of another model must "
        "not lie beside the checkpoint",
    )
