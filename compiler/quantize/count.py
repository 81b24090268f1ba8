"""Compares the quantized Linears that a component has with those that a recipe asks for."""

from collections.abc import Collection, Container, Mapping

from vidc.compiler.quantize.form import Form
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.tensors import linear_tensors, weight_name
from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError


def asked_linears(
    weights: Container[str], group: str, linears: Mapping[str, QuantizedLinear], form: Form
) -> list[LinearTensors]:
    """What a recipe asks of a component: those Linears whose weights it reads.

    Args:
        weights: names of the component's.
        group: of these weights.
        linears: all of the recipe's.
        form: of the component.
    """
    return [
        linear_tensors(group, linear, form)
        for name, linear in linears.items()
        if f"{group}.{weight_name(name)}" in weights
    ]


def require_asked(
    component: str, asked: Collection[LinearTensors], found: Collection[LinearTensors]
) -> None:
    """Refuses a component whose quantized Linears are not those of the recipe.

    Args:
        component: its name.
        asked: of those Linears whose weights it reads.
        found: in what was written.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first layer.
    """
    wanted = {linear.weight: linear for linear in asked}
    there = {linear.weight: linear for linear in found}
    differ = [n for n in [*wanted, *there] if wanted.get(n) != there.get(n)]
    if differ or len(found) != len(there):
        first = differ[0] if differ else "a Linear that is there twice"
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe asks for {_pairs(asked)}, the graph has {_pairs(found)}; "
            f"the first difference is {first}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


def _pairs(linears: Collection[LinearTensors]) -> str:
    inputs = sum(linear.computes for linear in linears)
    return f"{len(linears)} weights and {inputs} inputs of Linears in 8 bits"
