"""Arguments that no kernel takes, and what the operators say of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from attention_16bit import arguments as attention_16bit_arguments
from operators import (
    FP8,
    Ring,
    frame_arguments,
    gelu_arguments,
    group_norm_arguments,
    qkv_arguments,
    sampler_arguments,
    winograd_arguments,
)
from operators_8bit import arguments as to_8bit_arguments
from operators_8bit import attention_arguments

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.temporal_attention import temporal_attention

RING = Ring(batch=2, tokens=5, heads=3, head_dim=32, window=16, sink=3, position=10)


OPERATORS: dict[str, tuple[torch._ops.OpOverload, Callable[[], dict[str, Any]]]] = {
    "gelu": (gelu_quantize, lambda: gelu_arguments(output=FP8)),
    "gelu to bf16": (gelu_quantize, gelu_arguments),
    "gelu less a mean": (gelu_quantize, lambda: gelu_arguments(output=FP8, centered=True)),
    "winograd": (norm_silu_winograd, lambda: winograd_arguments(batch=2, residual=True)),
    "winograd of frames": (norm_silu_winograd, lambda: winograd_arguments(products=False)),
    "qkv": (qk_norm_rope_ring_write, lambda: qkv_arguments(RING, torch.bfloat16, 3)),
    "static": (qk_norm_rope_ring_write_static, lambda: to_8bit_arguments(RING)),
    "as they are": (
        qk_norm_rope_ring_write_static, lambda: to_8bit_arguments(RING, transposed=False),
    ),
    "attention": (ring_attention_8bit, attention_arguments),
    "attention in 16 bits": (ring_attention_16bit, attention_16bit_arguments),
    "attention to FP8": (ring_attention_8bit, lambda: attention_arguments(output=FP8)),
    "group norm": (group_norm_silu, group_norm_arguments),
    "frames": (temporal_attention, frame_arguments),
    "sampler": (sampler_step, sampler_arguments),
    "sampler with noise": (sampler_step, lambda: sampler_arguments(1, fresh=True)),
}  # fmt: skip
"""Arguments of each operator, before one is changed."""
_TORCH_ALONE = ("winograd", "group norm", "frames", "sampler")
PLUGINS = {name: made for name, made in OPERATORS.items() if not name.startswith(_TORCH_ALONE)}
"""Operators with a TensorRT plugin; AOTInductor engines or programs alone call the rest."""
HOPPER = frozenset({"attention", "attention to FP8"})
"""Those with a kernel of their own for Hopper, which needs a workspace."""


@dataclass(frozen=True)
class Refusal:
    """An argument changed to one that is refused, and what is said of it, somewhere and at last."""

    of: str
    argument: str
    change: Callable[[Any], Any]
    message: str
    found: str = ""

    def call(self) -> tuple[torch._ops.OpOverload, dict[str, Any]]:
        """The operator, and what to call it with."""
        operator, arguments = OPERATORS[self.of]
        taken = arguments()
        taken[self.argument] = self.change(taken[self.argument])
        return operator, taken

    def __str__(self) -> str:
        return f"{self.of}: {self.message}{self.found}"

    def check(self, said: str) -> None:
        """Holds what was said to it: it names the operator and the argument, and what came."""
        operator, _ = OPERATORS[self.of]
        first = said.partition("\n")[0].removeprefix("[VIDC-KERNEL-ARGUMENT] ")
        assert first.startswith(f"{operator.name()}: "), said
        assert self.message in first, said
        assert first.endswith(self.found), said


def _of(operator: str, *cases: tuple[str, Callable[[Any], Any], str]) -> list[Refusal]:
    return [Refusal(operator, *case) for case in cases]


REFUSALS = [
    *_of(
        "gelu",
        ("x", lambda t: t[0], "x: expected shape [B, T, width], found [3, 16]"),
        ("x", lambda t: t[:, :0], "x: expected shape [B, T, width], found [1, 0, 16]"),
        ("x", lambda t: t.to(FP8), "bfloat16 or float16, found float8_e4m3fn"),
        ("x", lambda t: t.long(), "x: expected float32 or bfloat16 or float16, found int64"),
        ("x", lambda t: t[..., :9], "x: expected a width that is a multiple of 8, found 9"),
        ("dtype", lambda _: "int8", "bfloat16 or float16 or float8_e4m3fn, found int8"),
        ("dtype", lambda _: "float16", "expected none for float16, found a tensor"),
        ("output_scale", lambda _: None, "a tensor for float8_e4m3fn, found none"),
        ("output_scale", lambda t: t[0], "output_scale: expected shape [1], found []"),
        ("output_scale", lambda t: t.half(), "output_scale: expected float32, found float16"),
    ),
    *_of(
        "gelu to bf16",
        ("dtype", lambda _: "float8_e4m3fn", "a tensor for float8_e4m3fn, found none"),
    ),
    *_of(
        "gelu less a mean",
        ("output_mean", lambda t: t[1:], "output_mean: expected shape [16], found [15]"),
        ("output_mean", lambda t: t.half(), "output_mean: expected float32, found float16"),
    ),
    *_of(
        "winograd",
        (
            "past",
            lambda t: t[:, :1],
            "past: expected shape [B, 2, H, W, C], found [2, 1, 3, 5, 32]",
        ),
        (
            "past",
            lambda t: t[..., :31],
            "past: expected C among (32, 64, 96, 128, 192, 256, 384), found 31",
        ),
        ("past", lambda t: t.float(), "past: expected float16, found float32"),
        ("m0", lambda t: t[:3], "m0: expected a multiple of 2 tiles, found 3"),
        ("m0", lambda t: t[:, 1:], "m0: expected shape [B K, 3, 5, 32], found [4, 2, 5, 32]"),
        ("m1", lambda _: None, "m1: expected m1, m2, m3, or none of them, found m2, m3"),
        ("m4", lambda _: torch.zeros(1).half(), "or none of them, found m1, m2, m3, m4"),
        ("tile", lambda _: 3, "m1: expected m1, m2, m3, m4, or none of them, found m1, m2, m3"),
        ("tile", lambda _: 5, "tile: expected one of (2, 3, 4), found 5"),
        ("m3", lambda t: t[1:], "m3: expected shape [4, 3, 5, 32], found [3, 3, 5, 32]"),
        ("m2", lambda t: t.bfloat16(), "m2: expected float16, found bfloat16"),
        ("bias", lambda t: t[1:], "bias: expected shape [32], found [31]"),
        ("gamma", lambda t: t[1:], "gamma: expected shape [32], found [31]"),
        ("residual", lambda t: t[:, 1:], "expected shape [2, 4, 3, 5, 32], found [2, 3, 3, 5, 32]"),
    ),
    *_of(
        "winograd of frames",
        ("m0", lambda t: t[:, 1:], "m0: expected a multiple of 2 frames, found 3"),
        ("tile", lambda _: 3, "m0: expected a multiple of 3 frames, found 4"),
        ("keep_sum", lambda _: True, "keep_sum: expected False for frames, found True"),
        (
            "bias",
            lambda _: torch.zeros(32).half(),
            "bias: expected none for frames, found a tensor",
        ),
        (
            "residual",
            lambda _: torch.zeros(1, 4, 3, 5, 32).half(),
            "residual: expected none for frames, found a tensor",
        ),
    ),
    *[
        refusal
        for name, position in (("qkv", "key_cache"), ("static", "key_cache"))
        for refusal in _of(
            name,
            ("qkv", lambda t: t[..., 8:], "qkv: expected shape [2, T, 288], found [2, 5, 280]"),
            (position, lambda t: t[..., :24], "a head size of 32, 64 or 128, found 24"),
            (position, lambda t: t.repeat(1, 1, 100, 1), "at most 8192, found 9600"),
            (position, lambda t: t[0], "expected shape [B, S, H, D], found [16, 3, 32]"),
            ("key_weight", lambda t: t[1:], "key_weight: expected shape [96], found [95]"),
            ("query_weight", lambda t: t.half(), "expected bfloat16, found float16"),
            ("cos", lambda t: t[1:], "cos: expected shape [5, 16], found [4, 16]"),
            ("sin", lambda t: t.half(), "sin: expected float32, found float16"),
            ("position", lambda t: t[0], "position: expected shape [1], found []"),
            ("position", lambda t: t.float(), "position: expected int64, found float32"),
            ("sink", lambda _: 16, "sink: expected from 0 to 15, found 16"),
            ("sink", lambda _: -1, "sink: expected from 0 to 15, found -1"),
        )
    ],
    *_of(
        "qkv",
        ("qkv", lambda t: t.to(FP8), "bfloat16 or float16 or float32, found float8_e4m3fn"),
        ("key_cache", lambda t: t[:, :4], "qkv: expected at most 4 tokens, found 5"),
        ("key_cache", lambda t: t.half(), "key_cache: expected bfloat16, found float16"),
        ("value_cache", lambda t: t[:1], "shape [2, 16, 3, 32], found [1, 16, 3, 32]"),
        ("value_cache", lambda t: t.half(), "value_cache: expected bfloat16, found float16"),
    ),
    *_of(
        "static",
        ("qkv", lambda t: t.float(), "qkv: expected bfloat16 or float16, found float32"),
        ("key_cache", lambda t: t.half(), "expected float8_e4m3fn or int8, found float16"),
        ("key_cache", lambda t: t.repeat(1, 2, 1, 1), "of 16, at least 32, found 16"),
        ("value_cache", lambda t: t[..., 1:], "a multiple of 16, at least 16, found 15"),
        ("value_cache", lambda t: t[:, :, 1:], "shape [2, 3, 32, S'], found [2, 3, 31, 16]"),
        ("value_cache", lambda t: t.view(torch.int8), "expected float8_e4m3fn, found int8"),
        ("value_transposed", lambda _: False, "shape [2, 16, 3, 32], found [2, 3, 32, 16]"),
        ("key_scale", lambda t: t[1:], "key_scale: expected shape [3], found [2]"),
        ("value_scale", lambda t: t.half(), "value_scale: expected float32, found float16"),
        ("key_mean", lambda t: t[1:], "key_mean: expected shape [3, 32], found [2, 32]"),
        ("key_mean", lambda t: t.half(), "key_mean: expected float32, found float16"),
    ),
    *_of(
        "attention",
        ("query", lambda t: t[0], "query: expected shape [B, T, H, D], found [5, 3, 64]"),
        ("query", lambda t: t.half(), "expected float8_e4m3fn or int8, found float16"),
        ("query", lambda t: t[..., :32], "query: expected a head size of 64 or 128, found 32"),
        ("key_cache", lambda t: t[1:], "shape [2, S, 3, 64], found [1, 40, 3, 64]"),
        ("key_cache", lambda t: t[:, :, 1:], "shape [2, S, 3, 64], found [2, 40, 2, 64]"),
        ("key_cache", lambda t: t.view(torch.int8), "key_cache: expected float8_e4m3fn, found in"),
        ("key_cache", lambda t: t.repeat(1, 2, 1, 1), "of 16, from 80 to 1048576, found 48"),
        ("key_cache", lambda t: t[:1, :1].expand(2, 2**20 + 1, 3, 64), "at most 1048576 slots"),
        ("value_cache", lambda t: t[..., :40], "multiple of 16, from 40 to 1048576, found 40"),
        ("value_cache", lambda t: t[:, :, 1:], "shape [2, 3, 64, S'], found [2, 3, 63, 48]"),
        ("value_cache", lambda t: t.view(torch.int8), "value_cache: expected float8_e4m3fn, fou"),
        ("query_scale", lambda t: t.mT, "query_scale: expected shape [2, 3, 5], found [2, 5, 3]"),
        ("query_scale", lambda t: t.half(), "query_scale: expected float32, found float16"),
        ("key_scale", lambda t: t[1:], "key_scale: expected shape [3], found [2]"),
        ("key_scale", lambda t: t.half(), "key_scale: expected float32, found float16"),
        ("value_scale", lambda t: t[:, 0], "value_scale: expected shape [3, 64], found [3]"),
        ("value_scale", lambda t: t.half(), "value_scale: expected float32, found float16"),
        ("value_mean", lambda t: t[1:], "value_mean: expected shape [3, 64], found [2, 64]"),
        ("value_mean", lambda t: t.half(), "value_mean: expected float32, found float16"),
        ("valid_length", lambda t: t[0], "valid_length: expected shape [1], found []"),
        ("valid_length", lambda t: t.half(), "valid_length: expected int64, found float16"),
        ("dtype", lambda _: "float32", "or float16 or float8_e4m3fn, found float32"),
        ("dtype", lambda _: "float8_e4m3fn", "a tensor for float8_e4m3fn, found none"),
        ("output_scale", lambda _: torch.ones(1), "expected none for bfloat16, found a tensor"),
    ),
    *_of(
        "attention to FP8",
        ("output_scale", lambda _: None, "a tensor for float8_e4m3fn, found none"),
        ("output_scale", lambda t: t.half(), "output_scale: expected float32, found float16"),
    ),
    *_of(
        "attention in 16 bits",
        ("query", lambda t: t[0], "query: expected shape [B, T, H, D], found [5, 3, 64]"),
        ("query", lambda t: t.half(), "key_cache: expected float16, found bfloat16"),
        ("query", lambda t: t.float(), "query: expected bfloat16 or float16, found float32"),
        ("query", lambda t: t[..., :32], "query: expected a head size of 64 or 128, found 32"),
        ("key_cache", lambda t: t[:, :, 1:], "shape [2, S, 3, 64], found [2, 40, 2, 64]"),
        ("key_cache", lambda t: t[:, 1:], "shape [2, 39, 3, 64], found [2, 40, 3, 64]"),
        ("value_cache", lambda t: t.half(), "value_cache: expected bfloat16, found float16"),
        ("valid_length", lambda t: t[0], "valid_length: expected shape [1], found []"),
        ("valid_length", lambda t: t.half(), "valid_length: expected int64, found float16"),
    ),
    *_of(
        "group norm",
        ("x", lambda t: t[0], "x: expected shape [N, P, C], found [5, 32]"),
        ("x", lambda t: t[..., 1:], "x: expected C a multiple of 8, at most 2560, found 31"),
        ("x", lambda t: t.repeat(1, 1, 81), "C a multiple of 8, at most 2560, found 2592"),
        ("x", lambda t: t[:1, :1].expand(65536, 1, 32), "at most 65535 images, found 65536"),
        ("x", lambda t: t.float(), "x: expected bfloat16 or float16, found float32"),
        ("groups", lambda _: 5, "groups: expected a divisor of 32, at most 256, found 5"),
        ("groups", lambda _: 0, "groups: expected a divisor of 32, at most 256, found 0"),
        ("weight", lambda t: t[1:], "weight: expected shape [32], found [31]"),
        ("bias", lambda t: t.bfloat16(), "bias: expected float16, found bfloat16"),
        ("shift", lambda t: t[1:], "shift: expected shape [32], found [31]"),
        ("shift", lambda t: t.half(), "shift: expected float32, found float16"),
    ),
    *_of(
        "frames",
        ("query", lambda t: t[0], "query: expected shape [N, T, P, H, 64], found [3, 2, 2, 64]"),
        ("query", lambda t: t[..., :32], "shape [N, T, P, H, 64], found [2, 3, 2, 2, 32]"),
        ("query", lambda t: t.repeat(1, 11, 1, 1, 1), "at most 32 frames, found 33"),
        ("query", lambda t: t.float(), "query: expected bfloat16 or float16, found float32"),
        ("key", lambda t: t[:, 1:], "shape [2, 3, 2, 2, 64], found [2, 2, 2, 2, 64]"),
        ("value", lambda t: t.bfloat16(), "value: expected float16, found bfloat16"),
    ),
    *_of(
        "sampler",
        ("velocity", lambda t: t[0], "shape [N, T, C, h, w], found [3, 4, 2, 3]"),
        ("velocity", lambda t: t.repeat(2, 1, 1, 1, 1), "expected 1 or 2 predictions, found 4"),
        ("velocity", lambda t: t[:, :, :1], "expected C h w a multiple of 4, found 6"),
        ("velocity", lambda t: t.half(), "velocity: expected float32, found float16"),
        ("guidance", lambda t: t[1:], "guidance: expected shape [3], found [2]"),
        ("table", lambda t: t[:, 1:], "table: expected shape [S, 5], found [4, 4]"),
        ("progress", lambda t: t[:1], "progress: expected shape [2], found [1]"),
        ("latent", lambda t: t[:, 1:], "shape [1, 3, 4, 2, 3], found [1, 2, 4, 2, 3]"),
        ("sample", lambda t: t[:1], "shape [2, 3, 8, 2, 3], found [1, 3, 8, 2, 3]"),
        ("sample", lambda t: t[:, :, :4], "shape [2, 3, 8, 2, 3], found [2, 3, 4, 2, 3]"),
        ("timestep", lambda t: t[0], "timestep: expected shape [1], found []"),
    ),
    *_of(
        "sampler with noise",
        ("noise", lambda t: t[1:], "shape [4, 1, 3, 4, 2, 3], found [3, 1, 3, 4, 2, 3]"),
        ("noise", lambda t: t.half(), "noise: expected float32, found float16"),
    ),
    *_of("as they are", ("value_transposed", lambda _: True, "shape [2, 3, 32, S'], found [2,")),
]
"""Refusals of shapes and dtypes, in traces too."""


def of_kernels(refusals: list[Refusal]) -> dict[str, str]:
    """Messages of the library of kernels for each refusal; empty if it accepts."""
    cuda = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    said = {}
    for refusal in refusals:
        operator, taken = refusal.call()
        try:
            operator.redispatch(cuda, *taken.values())
            said[str(refusal)] = ""
        except RuntimeError as error:
            said[str(refusal)] = str(error)
    return said
