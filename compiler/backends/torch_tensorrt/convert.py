"""Conversion of a component's program to a plan."""

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

from vidc.compiler.backends import CompileOptions, GraphError
from vidc.compiler.backends.tensorrt.build import OUT_OF_MEMORY
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
"""Name of TensorRT's logger."""
_WHILE = "\n\nWhile executing "
"""Start of FX's addition to an error, which quotes the node and its stack trace."""
_NODE = re.compile(r"While executing (.{1,200})")
_VALUE = re.compile(r"Original traceback:\nvalue ([A-Za-z0-9_]{1,128})")


@dataclass(frozen=True)
class Converted:
    """Converted plan.

    Attributes:
        plan: its bytes.
        names: names of its tensors, with those in the bundle.
        signature: the engine's signature, with the states that it writes in place.
    """

    plan: bytes
    names: Mapping[str, str]
    signature: Signature


def convert(component: ExportedComponent, package: Package, options: CompileOptions) -> Converted:
    """Converts a component's program to a plan, with weights as inputs and states as outputs.

    TensorRT's own layers update the ring in place if blocks do not straddle its wrap; otherwise the
    ring is copied.

    Raises:
        UnavailableError: ``VIDC-ENV-TORCH-TENSORRT``, ``VIDC-ENV-TENSORRT``.
        GraphError: ``VIDC-TORCH-TENSORRT-CONVERT``, with the component, the node and the package's
            reason.
        BuildError: ``VIDC-TENSORRT-MEMORY``.
    """
    package.module()  # Fails before a minute of tracing.
    register(package.product)
    program = load_program(component.program)
    functional, inputs, signature = functional_form(program, component.signature, component.aligned)
    placeholders = argument_placeholders(functional)
    given = {node.name: name for node, name in zip(placeholders, inputs, strict=True)}
    results = enumerate(signature.graph_outputs())
    return Converted(
        plan=_plan(component.name, functional, placeholders, package, options),
        names=given | {f"output{index}": name for index, name in results},
        signature=signature.with_in_place(_written_in_place(functional, signature)),
    )


def functional_form(
    program: ExportedProgram, signature: Signature, aligned: bool
) -> tuple[ExportedProgram, tuple[str, ...], Signature]:
    """Returns the functional program for the package, its inputs' names and its signature."""
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
    options: CompileOptions,
) -> bytes:
    from torch_tensorrt import Input
    from torch_tensorrt.dynamo import convert_exported_program_to_serialized_trt_engine

    for node in program.graph.nodes:
        # Lowering renames nodes but keeps stack traces, which FX quotes in its errors. Exported
        # programs have none, so this one carries the node's name.
        node.meta["stack_trace"] = f"value {node.name}"
    values = [node.meta["val"] for node in placeholders]
    inputs = [Input(shape=tuple(value.shape), dtype=value.dtype) for value in values]
    with _said() as errors, redirect_stdout(sys.stderr), TemporaryDirectory() as folder:
        try:
            plan: bytes = convert_exported_program_to_serialized_trt_engine(
                program,
                arg_inputs=inputs,
                disable_tf32=True,
                workspace_size=options.workspace_bytes or 0,
                offload_module_to_cpu=True,
                # By default a pass may treat any mask as causal.
                attn_bias_is_causal=False,
                # Its cache keys omit graph edges, the GPU and TensorRT's version.
                cache_built_engines=False,
                reuse_cached_engines=False,
                # By default all users of the machine share one file.
                timing_cache_path=str(Path(folder) / "timings"),
            )
        except Exception as error:
            raise _refused(component, package, error, errors) from error
    return plan


def _written_in_place(program: ExportedProgram, signature: Signature) -> frozenset[str]:
    """Returns the names of write-only states and of states that a node updates in place."""
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
    """Collects TensorRT's logged errors and silences the package's other output."""
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
    # The root cause, because the outer errors may quote the whole graph.
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    cause = chain[-1]
    said = _text(cause).partition(_WHILE)[0].strip()
    first = f"{type(cause).__name__}: {said[:300]}"
    reason = "; ".join([first, *errors[:1]])
    if any(word in reason.lower() for word in OUT_OF_MEMORY):
        return BuildError(
            "VIDC-TENSORRT-MEMORY",
            f"{component}: {package.distribution} ran out of memory: {reason[:400]}",
            "free memory, or build with a smaller stream; finished components are reused",
        )
    node, value = (_first(pattern, chain) for pattern in (_NODE, _VALUE))
    where = "" if node is None else f" at node {value or node}"
    return GraphError(
        "VIDC-TORCH-TENSORRT-CONVERT",
        f"{component}: {package.distribution} {package.version()} with {package.product.title} "
        f"{package.product.version()} cannot convert its program{where}: {reason[:500]}",
        "pass --backend tensorrt, which builds for the same targets",
        component,
        () if value is None else (value,),
    )


def _first(pattern: re.Pattern[str], chain: Iterable[BaseException]) -> str | None:
    """Returns a pattern's first match in the texts of a chain of errors."""
    matches = (pattern.search(_text(error)) for error in chain)
    return next((match[1] for match in matches if match is not None), None)


def _text(error: BaseException) -> str:
    """Returns an error's text without the quotes and escapes of a KeyError."""
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
