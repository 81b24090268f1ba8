"""A stand-in for Torch-TensorRT whose plans are ONNX graphs, which ``fake_tensorrt`` runs.

It names a plan's tensors as the package does, by the program's placeholders and ``output<N>``.
``test_plans.py`` of that backend holds it to the package where that is installed.
"""

import io
from types import ModuleType
from typing import Any

import torch

VERSION = "2.13.0"


class Input:
    def __init__(self, *, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype


def convert_exported_program_to_serialized_trt_engine(
    exported_program: torch.export.ExportedProgram,
    *,
    arg_inputs: list[Input],
    disable_tf32: bool = False,
    workspace_size: int = 0,
    offload_module_to_cpu: bool = False,
    attn_bias_is_causal: bool = True,
    cache_built_engines: bool = False,
    reuse_cached_engines: bool = False,
    timing_cache_path: str = "",
) -> bytes:
    names = exported_program.graph_signature.user_inputs
    placeholders = exported_program.graph.find_nodes(op="placeholder")
    values = [node.meta["val"] for node in placeholders if node.name in names]
    assert [(tuple(v.shape), v.dtype) for v in values] == [(i.shape, i.dtype) for i in arg_inputs]
    assert (disable_tf32, attn_bias_is_causal) == (True, False)
    assert (cache_built_engines, reuse_cached_engines) == (False, False)
    results = exported_program.graph.output_node().args[0]
    made = torch.onnx.export(
        exported_program,
        opset_version=24,
        input_names=list(names),
        output_names=[f"output{index}" for index in range(len(results))],
        optimize=False,
        verbose=False,
    )
    assert made is not None
    file = io.BytesIO()
    made.save(file)
    return file.getvalue()


def modules(product: str, registered: dict[Any, Any]) -> dict[str, ModuleType]:
    """The stand-in as modules, which builds with a product and keeps the converters it is given."""

    def dynamo_tensorrt_converter(key: Any, *, capability_validator: Any = None) -> Any:
        def register(converter: Any) -> Any:
            registered[key] = (converter, capability_validator)
            return converter

        return register

    parts: dict[str, dict[str, Any]] = {
        "torch_tensorrt": {
            "Input": Input,
            "__version__": VERSION,
            "tensorrt_package_name": product,
        },
        "torch_tensorrt.dynamo": {
            function.__name__: function
            for function in (convert_exported_program_to_serialized_trt_engine,)
        },
        "torch_tensorrt.dynamo.conversion": {
            "dynamo_tensorrt_converter": dynamo_tensorrt_converter
        },
    }
    made = {}
    for name, attributes in parts.items():
        made[name] = ModuleType(name)
        made[name].__dict__.update(attributes)
    return made
