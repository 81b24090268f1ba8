"""Precision of each weights group, from layers with defaults, groups and targets."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from vidc.compiler.config.backend import BUILDERS
from vidc.compiler.config.layers import Layer, Setting
from vidc.compiler.config.schema import PRECISIONS
from vidc.compiler.config.targets import Target
from vidc.exporters.families.family import Family
from vidc.exporters.part import Part
from vidc.plugins.errors import UnavailableError, UsageError, nearest


def resolve_precision(
    layers: Sequence[Layer], target: Target, family: type[Family]
) -> dict[str, Setting]:
    """Returns the precision of every weights group of a family on a target.

    The highest layer with a setting for a group decides. Within a layer, settings for the target
    (``precision.cpu.default``) precede general ones, and a group's precede the default.

    Args:
        layers: lowest precedence first.
        target: target of the engines.
        family: family of the model.

    Raises:
        UsageError: ``VIDC-CONFIG-PRECISION`` for an unknown precision, or none at all.
        UnavailableError: ``VIDC-TARGET-PRECISION`` for one that the target does not have.
    """
    return {group: asked_precision(layers, target, group) for group in family.groups}


def instead_of_bf16(
    precisions: Mapping[str, Setting],
    layers: Sequence[Layer],
    parts: Mapping[str, Part],
    target: Target,
    built: Collection[str],
) -> dict[str, Setting]:
    """Returns the precisions, with bf16 replaced for parts that prefer another one on a GPU.

    A part names that precision as ``Part.instead_of_bf16``.

    Args:
        precisions: precision of each weights group.
        layers: lowest precedence first; a group that one of them names keeps its precision.
        parts: parts of the model, by group.
        target: target of the engines.
        built: precisions that the backend builds for the target; no other replaces bf16.
    """
    result = dict(precisions)
    for group in parts:  # A model may lack a group of its family, such as the text encoder.
        setting, half = precisions[group], parts[group].instead_of_bf16
        names = (f"precision.{target.name}.{group}", f"precision.{group}")
        named = any(name in layer for layer in layers for name in names)
        if target.is_gpu and setting.value == "bf16" and half in built and not named:
            result[group] = Setting(half, setting.origin)
    return result


def require_built(precisions: Iterable[Setting], name: str, target: Target) -> None:
    """Refuses precisions that a backend does not build.

    Args:
        precisions: precision of each weights group.
        name: a known backend.
        target: target of the engines.

    Raises:
        UnavailableError: ``VIDC-BACKEND-PRECISION``, with those that it builds for the target.
    """
    builds = BUILDERS[name]().precisions(target)
    both = [precision for precision in target.precisions if precision in builds]
    for precision in precisions:
        if precision.value not in both:
            raise UnavailableError(
                "VIDC-BACKEND-PRECISION",
                f"backend {name} has no {precision.value} ({precision.origin}) on {target.name}; "
                f"it has {', '.join(both) or 'none there'}",
                f"pass --precision {instead(both)} or {_elsewhere(precision, name, target)}"
                if both
                else "pass --backend",
            )


def _elsewhere(precision: Setting, name: str, target: Target) -> str:
    """Returns a hint on other backends."""
    others = [each for each in BUILDERS if each != name]
    builds = (each for each in others if precision.value in BUILDERS[each]().precisions(target))
    return " or ".join(f"--backend {each}" for each in builds) or "another backend"


def require_exported(precisions: Mapping[str, Setting]) -> None:
    """Refuses precisions that no graph can be exported in.

    Raises:
        UnavailableError: ``VIDC-EXPORT-PRECISION``, with those that are exported.
    """
    from vidc.exporters.models import PRECISIONS as EXPORTED

    for precision in precisions.values():
        if precision.value not in EXPORTED:
            raise UnavailableError(
                "VIDC-EXPORT-PRECISION",
                f"there is no export in {precision.value} ({precision.origin}); there is "
                f"{', '.join(EXPORTED)}",
                "pass --precision with one of these",
            )


def instead(precisions: Sequence[str]) -> str:
    """Returns bf16 or else fp16 if it is among the precisions, else the first of them."""
    return next((each for each in ("bf16", "fp16") if each in precisions), precisions[0])


def _said(names: Sequence[str], layers: Sequence[Layer]) -> Setting | None:
    """Returns the first of these settings in the highest layer that has any."""
    for layer in layers[::-1]:
        for name in names:
            if name in layer:
                return layer[name]
    return None


def asked_precision(layers: Sequence[Layer], target: Target, group: str) -> Setting:
    """Returns a weights group's requested precision, which may be of 8 bits.

    Raises:
        VidcError: as ``resolve_precision``.
    """
    names = (
        f"precision.{target.name}.{group}",
        f"precision.{target.name}.default",
        f"precision.{group}",
        "precision.default",
    )
    found = _said(names, layers)
    if found is None:
        raise UsageError(
            "VIDC-CONFIG-PRECISION",
            f"no precision for {group}",
            'pass --precision or add default = "bf16" to the preset\'s [precision]',
        )
    _require_available(found, target)
    return found


def _require_available(precision: Setting, target: Target) -> None:
    if precision.value not in PRECISIONS:
        raise UsageError(
            "VIDC-CONFIG-PRECISION",
            f"no precision {precision.value!r} ({precision.origin})",
            nearest(str(precision.value), PRECISIONS),
        )
    if precision.value not in target.precisions:
        raise UnavailableError(
            "VIDC-TARGET-PRECISION",
            f"{target.name} has no {precision.value} ({precision.origin}); it has "
            f"{', '.join(target.precisions)}",
            f"pass --precision {target.precisions[0]} or another of these",
        )
