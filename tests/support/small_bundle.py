"""A bundle made by hand in milliseconds: ONNX graphs that read all that a session gives them."""

import hashlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import onnx
import onnxruntime
import torch
from entries import file_entries
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.plugins.signature import Access, Role, Signature, TensorSpec, state_output
from vidc.runtime.manifest import (
    MANIFEST_NAME,
    PORTABLE,
    Engine,
    Manifest,
    Target,
    Validation,
    Weights,
    write_manifest,
)
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.record import Record

SPEC = StreamSpec(
    batch=1, block=1, window=3, sink=1, frame_tokens=1, grid=(1, 1), latent=(2, 2, 2),
    video=(4, 4), head_dim=4, text=(3, 3), timesteps=(1000.0, 500.0), sigmas=(1.0, 0.75),
    context_timestep=0.0, pending="kv_update",
)  # fmt: skip
GAINS = 16
ELEMENT_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


def _tensor(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, dtype, Role.INPUT)


def _output(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "float32", Role.OUTPUT)


def _states(kind: str, slots: int, access: Access) -> tuple[TensorSpec, ...]:
    shape = (1, slots, 1, SPEC.head_dim)
    return tuple(
        TensorSpec(f"{kind}.{part}.0", shape, "float32", Role.STATE, access) for part in "kv"
    )


def _pass(frames: int) -> tuple[TensorSpec, ...]:
    """Tensors of a pass of the transformer over some frames."""
    return (
        _tensor("latent", 1, frames, *SPEC.latent),
        _tensor("timestep", 1, frames),
        _tensor("rope_cos", frames, SPEC.head_dim // 2),
        _tensor("rope_sin", frames, SPEC.head_dim // 2),
        _tensor("position", 1, dtype="int64"),
        _tensor("valid_length", 1, dtype="int64"),
        *_states("text", SPEC.text[0], Access.READ),
        *_states("ring", SPEC.window, Access.READ_WRITE),
    )


def signatures() -> dict[str, Signature]:
    """The signatures of all components of ``SPEC``."""
    latent, cache = (1, SPEC.block, *SPEC.latent), (1, 2, 2, 2)

    def decoder(frames: int, access: Access) -> tuple[TensorSpec, ...]:
        state = TensorSpec("vae.cache", cache, "float32", Role.STATE, access)
        video = _output("frames", 1, frames, 3, *SPEC.video)
        return (_tensor("latent", *latent), state, video)

    tensors = {
        "text_encoder": (
            _tensor("input_ids", 1, SPEC.text[0], dtype="int64"),
            _tensor("attention_mask", 1, SPEC.text[0], dtype="int64"),
            _output("text_embeds", 1, *SPEC.text),
        ),
        "text_kv": (
            _tensor("text_embeds", 1, *SPEC.text),
            *_states("text", SPEC.text[0], Access.WRITE),
        ),
        "denoise": (*_pass(SPEC.block), _output("flow", *latent)),
        "kv_update": _pass(SPEC.block),
        **{f"recache_{frames}": _pass(frames) for frames in SPEC.recache_frames},
        "vae_decode_first": decoder(1, Access.WRITE),
        "vae_decode": decoder(4, Access.READ_WRITE),
    }
    return {name: Signature(each) for name, each in tensors.items()}


def graph(name: str, signature: Signature, group: str) -> onnx.ModelProto:
    """A graph in which every result depends on every input, on the weights and on its own name."""
    nodes, terms = [], []
    constants = [helper.make_tensor("axis", TensorProto.INT64, [], [-1]), _gains(group)]
    read = [spec for spec in signature if spec.reads]
    for index, spec in enumerate(read):
        given = spec.name
        constants.append(helper.make_tensor(f"{given}:i", TensorProto.INT64, [], [index]))
        nodes += [
            helper.make_node("Cast", [given], [f"{given}:f"], to=TensorProto.FLOAT),
            # A mean alone would not see two values that are exchanged.
            helper.make_node("CumSum", [f"{given}:f", "axis"], [f"{given}:c"]),
            helper.make_node("Sin", [f"{given}:c"], [f"{given}:s"]),
            helper.make_node("ReduceMean", [f"{given}:s"], [f"{given}:m"], keepdims=0),
            helper.make_node("Gather", [f"{group}.gains", f"{given}:i"], [f"{given}:g"]),
            helper.make_node("Mul", [f"{given}:m", f"{given}:g"], [f"{given}:t"]),
        ]
        terms.append(f"{given}:t")
    nodes.append(helper.make_node("Sum", terms, ["mixed"]))
    for spec in (tensor for tensor in signature if tensor.writes):
        result = state_output(spec.name) if spec.role is Role.STATE else spec.name
        salt = int.from_bytes(hashlib.sha256(f"{name}.{result}".encode()).digest()[:4], "little")
        noise = torch.randn(spec.shape, generator=torch.Generator().manual_seed(salt)).numpy()
        constants.append(numpy_helper.from_array(noise, f"{result}:n"))
        nodes.append(helper.make_node("Mul", [f"{result}:n", "mixed"], [f"{result}:p"]))
        nodes.append(helper.make_node("Tanh", [f"{result}:p"], [result]))
    made = helper.make_graph(
        nodes, name, [_value(spec.name, spec) for spec in read],
        [_value(spec.name, spec) for spec in signature.outputs]
        + [_value(state_output(s.name), s) for s in signature.states if s.writes],
        constants,
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def _value(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, ELEMENT_TYPES[spec.dtype], spec.shape)


def _gains(group: str) -> TensorProto:
    """The weights of a group, in its file."""
    tensor = TensorProto(name=f"{group}.gains", data_type=TensorProto.FLOAT, dims=[GAINS])
    tensor.data_location = TensorProto.EXTERNAL
    length = 4 * GAINS
    start = len(_file(group)) - length
    place = {"location": weights_path(group), "offset": start, "length": length}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _file(group: str) -> bytes:
    return save({"gains": torch.linspace(1.0, 2.0 if group == "vae" else 3.0, GAINS)})


def _tokenizer() -> str:
    tokenizer = Tokenizer(WordLevel({"<pad>": 0, "red": 1, "fox": 2, "?": 3}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(SPEC.text[0])
    tokenizer.enable_padding(length=SPEC.text[0], pad_token="<pad>")
    return str(tokenizer.to_str())


def save_bundle(folder: Path) -> None:
    """Writes the bundle into a folder."""
    (folder / "weights").mkdir(parents=True)
    groups = ("transformer", "vae")
    for group in groups:
        (folder / weights_path(group)).write_bytes(_file(group))
    (folder / "report.html").write_text("<html>")
    (folder / TOKENIZER).write_text(_tokenizer())
    engines = {}
    for name, signature in signatures().items():
        group = groups[name.startswith("vae")]
        (folder / f"{name}.onnx").write_bytes(graph(name, signature, group).SerializeToString())
        options = {"graph_optimization_level": "ORT_ENABLE_ALL", "disable_prepacking": True}
        engines[name] = Engine(
            "onnxruntime", "onnxruntime", onnxruntime.__version__, "fp32", (f"{name}.onnx",),
            signature, options, PORTABLE,
        )  # fmt: skip
    manifest = Manifest(
        name="small-cpu-fp32",
        preset="small",
        family="causal_video",
        program="causal_video",
        spec=SPEC,
        config={"sampler": {"steps": [1000, 500], "shift": 1.0}},
        target=Target("cpu", None, 0),
        engines=engines,
        weights={group: Weights(weights_path(group), {"random_weights": 1}) for group in groups},
        files=file_entries(folder),
        plugin_abi=PLUGIN_ABI,
        calibration=None,
        tools={"torch": torch.__version__, "vidc": version("vidc")},
        validation=Validation(True, 1, "report.html", "rollout", 0),
        stages={"export:denoise": "e" * 64},
    )
    write_recorded(manifest, folder)


def write_recorded(manifest: Manifest, folder: Path) -> None:
    """Writes a manifest into a folder as a build does: with its record and the files' digests."""
    (folder / MANIFEST_NAME).unlink(missing_ok=True)
    Record.of(manifest).write(folder)
    write_manifest(replace(manifest, files=file_entries(folder)), folder)
