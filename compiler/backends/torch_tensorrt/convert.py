"""Converts a component's program into a plan."""

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import fx
from torch.export import ExportedProgram

from vidc.compiler.backends import GraphError, Means
from vidc.compiler.backends.torch_tensorrt.converters import (
    CACHE_UPDATE,
    SYMBOLIC,
    copied_ring_write,
    register,
)
from vidc.compiler.backends.torch_tensorrt.package import Package
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.onnx.functional import functional_program
from vidc.exporters.onnx.native_ring import native_form
from vidc.exporters.program import argument_placeholders, load_program
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.ring import ring_write
from vidc.plugins.signature import Access, Signature, state_output

_BUILDER = "torch_tensorrt [TensorRT Conversion Context]"
"""The logger of what TensorRT says."""
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "bad_alloc")
_WHILE = "\n\nWhile executing "
"""Begins what FX adds to an error, in which it quotes the node and the lines that it kept."""
_NODE = re.compile(r"While executing (.{1,200})")
_VALUE = re.compile(r"Original traceback:\nvalue ([A-Za-z0-9_]{1,128})")


@dataclass(frozen=True)
class Converted:
    """A plan.

    Attributes:
        plan: its bytes.
        names: of its tensors, with their names in the bundle.
        signature: of the engine, with the states that it writes in place.
    """

    plan: bytes
    names: Mapping[str, str]
    signature: Signature


def convert(component: ExportedComponent, package: Package, means: Means) -> Converted:
    """Makes a plan of a component's program, with weights as inputs and states returned.

    The ring is in TensorRT's own layers, and written in place, where blocks do not straddle its
    wrap; else a copy of it is written.

    Raises:
        UnavailableError: ``VIDC-ENV-TORCH-TENSORRT``, ``VIDC-ENV-TENSORRT``.
        GraphError: ``VIDC-TORCH-TENSORRT-CONVERT``, with the component, the node and the package's
            reason.
        BuildError: ``VIDC-TENSORRT-MEMORY``.
    """
    package.module()  # Before a minute of tracing.
    register(package.product)
    program = load_program(component.program)
    functional, inputs, signature = given_program(program, component.signature, component.aligned)
    placeholders = argument_placeholders(functional)
    given = {node.name: name for node, name in zip(placeholders, inputs, strict=True)}
    results = enumerate(signature.graph_outputs())
    return Converted(
        plan=_plan(component.name, functional, placeholders, package, means),
        names=given | {f"output{index}": name for index, name in results},
        signature=signature.with_in_place(_written_in_place(functional, signature)),
    )


def given_program(
    program: ExportedProgram, signature: Signature, aligned: bool
) -> tuple[ExportedProgram, tuple[str, ...], Signature]:
    """What the package is given of a component's program.

    Returns:
        The program, the names of its inputs, and the signature with its states as they lie there.
    """
    signature, operators = native_form(program, signature, aligned)
    if not aligned:
        operators = {**operators, ring_write: copied_ring_write}
    functional, inputs = functional_program(program, signature, operators)
    return functional, inputs, signature


def _plan(
    component: str,
    program: ExportedProgram,
    placeholders: tuple[fx.Node, ...],
    package: Package,
    means: Means,
) -> bytes:
    from torch_tensorrt import Input
    from torch_tensorrt.dynamo import convert_exported_program_to_serialized_trt_engine

    for node in program.graph.nodes:
        # Programs keep no lines of Python. What stands in their place outlives the package's own
        # lowering, which gives nodes other names, and is in what FX says of one that fails.
        node.meta["stack_trace"] = f"value {node.name}"
    values = [node.meta["val"] for node in placeholders]
    inputs = [Input(shape=tuple(value.shape), dtype=value.dtype) for value in values]
    with _said() as errors, redirect_stdout(sys.stderr), TemporaryDirectory() as folder:
        try:
            plan: bytes = convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=inputs,
                disable_tf32=True,  # float32 is float32, as everywhere.
                workspace_size=means.workspace_bytes or 0,
                offload_module_to_cpu=True,
                # By default a pass may take any mask for a causal one.
                attn_bias_is_causal=False,
                # Keys of its cache leave out edges of the graph, the GPU and TensorRT's version.
                cache_built_engines=False,
                reuse_cached_engines=False,
                # By default one file for all users of the machine.
                timing_cache_path=str(Path(folder) / "timings"),
            )
        except Exception as error:
            raise _refused(component, package, error, errors) from error
    return plan


def _written_in_place(program: ExportedProgram, signature: Signature) -> frozenset[str]:
    """States that nothing reads, and those that are updated where they lie."""
    results = dict(zip(signature.graph_outputs(), program.graph.output_node().args[0], strict=True))

    def updated(name: str) -> bool:
        result = results[state_output(name)]
        return result.target is SYMBOLIC and result.args[1] == CACHE_UPDATE

    return frozenset(
        state.name
        for state in signature.states
        if state.access is Access.WRITE
        or (state.access is Access.READ_WRITE and updated(state.name))
    )


@contextmanager
def _said() -> Iterator[list[str]]:
    """The errors that TensorRT logs meanwhile; pages of graphs and warnings are not shown."""
    errors: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    handler = Handler(logging.ERROR)
    builder, package = logging.getLogger(_BUILDER), logging.getLogger("torch_tensorrt")
    before = [(logger, logger.propagate) for logger in (builder, package)]
    builder.addHandler(handler)
    package.addHandler(silent := logging.NullHandler())
    try:
        for logger, _ in before:
            logger.propagate = False
        yield errors
    finally:
        for logger, propagate in before:
            logger.propagate = propagate
        builder.removeHandler(handler)
        package.removeHandler(silent)


def _refused(component: str, package: Package, error: Exception, errors: list[str]) -> BuildError:
    # It wraps what went wrong, and may quote the whole graph around it.
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    cause = chain[-1]
    said = _text(cause).partition(_WHILE)[0].strip()
    first = f"{type(cause).__name__}: {said[:300]}"
    reason = "; ".join([first, *errors[:1]])
    if any(word in reason.lower() for word in _OUT_OF_MEMORY):
        return BuildError(
            "VIDC-TENSORRT-MEMORY",
            f"{component}: {package.distribution} ran out of memory: {reason[:400]}",
            "free memory, or build with a smaller stream; what other components gave is kept",
        )
    node, value = (_first(pattern, chain) for pattern in (_NODE, _VALUE))
    where = "" if node is None else f" at node {value or node}"
    return GraphError(
        "VIDC-TORCH-TENSORRT-CONVERT",
        f"{component}: {package.distribution} {package.version()} with {package.product.title} "
        f"{package.product.version()} makes no plan of its program{where}: {reason[:500]}",
        "pass --backend tensorrt, which builds for the same targets",
        component,
        () if value is None else (value,),
    )


def _first(pattern: re.Pattern[str], chain: Iterable[BaseException]) -> str | None:
    """What a pattern finds in the text of an error, or of one behind it."""
    matches = (pattern.search(_text(error)) for error in chain)
    return next((match[1] for match in matches if match is not None), None)


def _text(error: BaseException) -> str:
    """What an error says; a KeyError puts quotes around it, and escapes its lines."""
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
