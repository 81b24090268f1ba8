"""The exported encoder, run as a bundle runs it, against transformers on its own."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.wan.pipeline_wan import prompt_clean
from torch import Tensor
from transformers import AutoTokenizer, UMT5EncoderModel

from vidc.exporters.checkpoint.lazy import cast
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.parts.umt5.folder import TextEncoderFolder, open_text_encoder
from vidc.exporters.parts.umt5.network import component, create
from vidc.exporters.parts.umt5.part import Umt5Part
from vidc.exporters.parts.umt5.tokenizer import tokenizer_json
from vidc.exporters.parts.umt5.weights import load_encoder_weights
from vidc.exporters.program import export_program
from vidc.runtime import manifest
from vidc.runtime.engines.onnxruntime import load
from vidc.runtime.files import Files
from vidc.runtime.text import TextEncoder
from vidc.runtime.weights import Weights

Configure = Callable[..., CausalVideo]
CPU = torch.device("cpu")
LENGTH = 24
PROMPTS = (
    "A cat runs over the grass",
    "the rain falls on " * 20,
    "Brücke 猫が眠る 🦙 ﬁne ㎏",
    "Tom &amp;amp; Jerry &lt;3 &eacute;t&eacute;",
    "itâ€™s “quoted”\u00a0and\n\nbroken\u200b",
    "",
)


def bundle(found: TextEncoderFolder, config: CausalVideo, precision: str, out: Path) -> TextEncoder:
    """The runtime's text encoder over what a build in this precision leaves in ``out``."""
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[precision]
    tensors = cast(
        load_encoder_weights(found.checkpoint, found.config, CausalVideo.layouts()).tensors, dtype
    )
    (out / "weights").mkdir(parents=True)
    write_weights(out / "weights" / "text_encoder.safetensors", tensors)
    (out / "tokenizer.json").write_text(tokenizer_json(found.tokenizer, found.config, LENGTH))
    made = component(Umt5Part(found.config, LENGTH), create(found.config, dtype, "meta"))
    placements = {"text_encoder": weight_layout(tensors)}
    path = out / "text_encoder.onnx"
    export_onnx(made.name, export_program(made), made.signature, placements, path)
    entry = manifest.Engine(
        backend="onnxruntime",
        loader="onnxruntime",
        version="1",
        precision=precision,
        files=(path.name,),
        signature=made.signature,
        options={"graph_optimization_level": "ORT_ENABLE_ALL", "disable_prepacking": True},
        requires=manifest.PORTABLE,
    )
    engine = load(Files(out), entry, Weights({}, CPU), CPU)
    return TextEncoder(engine, (out / "tokenizer.json").read_bytes(), CPU)


def reference(folder: Path, prompt: str) -> Tensor:
    """Embeddings as diffusers' Wan pipeline makes them."""
    tokens = AutoTokenizer.from_pretrained(folder.parent / "tokenizer")(
        [prompt_clean(prompt)],
        padding="max_length",
        truncation=True,
        max_length=LENGTH,
        return_tensors="pt",
    )
    model = UMT5EncoderModel.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        hidden = model(tokens.input_ids, tokens.attention_mask).last_hidden_state
    kept = hidden[0, : int(tokens.attention_mask.sum())]
    return torch.cat([kept, kept.new_zeros(LENGTH - len(kept), kept.shape[1])])[None]


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(scope="session")
def encoder(
    saved: Path, configure: Configure, tmp_path_factory: pytest.TempPathFactory
) -> TextEncoder:
    found = open_text_encoder(saved, 32)
    return bundle(found, configure(), "fp32", tmp_path_factory.mktemp("bundle") / "fp32")


@pytest.mark.parametrize("prompt", PROMPTS)
def test_embeds_a_prompt_as_transformers_does(
    encoder: TextEncoder, saved: Path, prompt: str
) -> None:
    found, expected = encoder(prompt), reference(saved, prompt)

    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert error(found, expected) < 1e-5
    assert torch.equal(found == 0, expected == 0)


def test_prompts_differ(encoder: TextEncoder) -> None:
    first, second = encoder(PROMPTS[0]).clone(), encoder(PROMPTS[0] + "!")

    assert error(first, second) > 0.05


def eager(umt5: Any, config: CausalVideo, folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """The component in this dtype with the weights of ``umt5``, run by PyTorch."""
    part = Umt5Part(open_text_encoder(folder, 32).config, config.transformer.text_len)
    network = create(part.config, dtype, "meta")
    weights = {name: umt5.state_dict()[name].to(dtype) for name in network.state_dict()}
    network.load_state_dict(weights, assign=True)
    return component(part, network).module


def random_tokens(length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.ones(1, length, dtype=torch.int64)
    mask[:, length * 3 // 4 :] = 0
    return torch.randint(3, 200, (1, length), generator=generator), mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equals_transformers_beyond_the_longest_distance(
    umt5: Any, saved: Path, configure: Configure, dtype: torch.dtype
) -> None:
    length = 300
    ids, mask = random_tokens(length)
    module = eager(umt5, configure(text_len=length), saved, dtype)
    expected = umt5(ids, mask).last_hidden_state * mask[..., None]

    (found,) = module(ids, mask)
    assert found.dtype == torch.float32
    assert error(found, expected) < {torch.float32: 1e-5, torch.bfloat16: 5e-2}.get(dtype, 5e-3)


def test_float16_does_not_overflow_where_the_plain_cast_does(
    umt5: Any, saved: Path, configure: Configure
) -> None:

    large = copy.deepcopy(umt5)
    for block in large.encoder.block:
        block.layer[-1].DenseReluDense.wo.weight.mul_(1e5)
    ids, mask = random_tokens(LENGTH)
    expected = large(ids, mask).last_hidden_state * mask[..., None]

    (found,) = eager(large, configure(), saved, torch.float16)(ids, mask)
    plain = copy.deepcopy(large).half()(ids, mask).last_hidden_state * mask[..., None]
    assert error(found, expected) < 5e-3
    assert error(plain.float(), expected) > 0.05


def test_exports_in_float16(saved: Path, configure: Configure, tmp_path: Path) -> None:
    encoder = bundle(open_text_encoder(saved, 32), configure(), "fp16", tmp_path / "fp16")

    assert error(encoder(PROMPTS[0]), reference(saved, PROMPTS[0])) < 5e-3


def test_the_graph_takes_no_logarithm(saved: Path, configure: Configure) -> None:
    config = open_text_encoder(saved, 32).config
    program = export_program(
        component(Umt5Part(config, LENGTH), create(config, torch.float32, "meta"))
    )

    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.log.default)
