"""Errors of 8-bit attention against float64 under candidate schemes, emulated on the CPU.

    export PYTHONPATH=benchmarks
    python -m attention_8bit.numerics > benchmarks/attention_8bit/numerics.json

Prints a table to stderr and the same as JSON. Errors are relative L2 over all queries, one number
for each head of ``inputs.draw``.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from attention_8bit.calibration import calibrate
from attention_8bit.emulation import E4M3_AT_REFERENCE, E4M3_SLACK, e4m3_weights
from attention_8bit.inputs import SINKS, Inputs, draw
from attention_8bit.ring import RingScales
from vidc.plugins.quantize import LARGEST as LARGEST_OF

BLOCK = 128
DEPTH = 32
LARGEST = LARGEST_OF[torch.int8]
E4M3_LARGEST = LARGEST_OF[torch.float8_e4m3fn]
WEIGHT_SCALE = 256.0
"""Scale of weights in e4m3: the largest power of two that keeps them in range."""
DRAIN = 0.05


def e4m3(x: Tensor) -> Tensor:
    return x.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).float()


def e4m3_scaled(x: Tensor, scale: Tensor | float) -> Tensor:
    return e4m3(x / scale) * scale


def int8_scaled(x: Tensor, scale: Tensor | float) -> Tensor:
    return (x / scale).round().clamp(-LARGEST, LARGEST) * scale


def exact(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def fourteen_bits(a: Tensor, b: Tensor) -> Tensor:
    """A product whose sums are cut off to 14 bits after each instruction; see ``accumulation``."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], DEPTH):
        mantissa, exponent = torch.frexp(total + a[:, k : k + DEPTH] @ b[k : k + DEPTH])
        total = torch.ldexp(torch.trunc(mantissa * 2**14) / 2**14, exponent)
    return total


Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Head:
    """One head: queries ``[T, D]``, keys and values ``[S, D]``, and its static scales."""

    query: Tensor
    key: Tensor
    value: Tensor
    scales: RingScales

    def smoothed(self) -> tuple[Tensor, Tensor]:
        key = (self.key - self.scales.key_mean[0]) / self.scales.smooth[0]
        return self.query * self.scales.smooth[0], key


@dataclass(frozen=True)
class Scheme:
    """Rounding of logits, weights and values, by the names that the functions below match."""

    name: str
    logits: str
    weights: str
    values: str
    accumulators: str = "exact"
    sums: str = "of rounded weights"
    balance: float = 0.5


def logits(head: Head, scheme: Scheme) -> Tensor:
    product = fourteen_bits if scheme.accumulators == "14 bits" else exact
    query, key = head.query, head.key
    match scheme.logits:
        case "float32":
            pass
        case "e4m3, unit scales":
            query, key = e4m3(query), e4m3(key)
        case "e4m3, scales per tensor":
            query = e4m3_scaled(query, query.abs().amax() / E4M3_LARGEST)
            key = e4m3_scaled(key, key.abs().amax() / E4M3_LARGEST)
        case "e4m3, centered":
            key = key - head.scales.key_mean[0]
            query = e4m3_scaled(query, query.abs().amax(1, keepdim=True) / E4M3_LARGEST)
            key = e4m3_scaled(key, key.abs().amax() / E4M3_LARGEST)
        case "e4m3, centered and smoothed":
            query, key = head.smoothed()
            query = e4m3_scaled(query, query.abs().amax(1, keepdim=True) / E4M3_LARGEST)
            key = e4m3_scaled(key, key.abs().amax() / E4M3_LARGEST)
        case "int8, centered":
            key = key - head.scales.key_mean[0]
            query = int8_scaled(query, query.abs().amax(1, keepdim=True) / LARGEST)
            key = int8_scaled(key, key.abs().amax() / LARGEST)
        case "int8, centered and smoothed":
            query, key = head.smoothed()
            query = int8_scaled(query, query.abs().amax(1, keepdim=True) / LARGEST)
            key = int8_scaled(key, head.scales.key_scale[0])
        case "int8, centered and smoothed, keys per token":
            query, key = head.smoothed()
            query = int8_scaled(query, query.abs().amax(1, keepdim=True) / LARGEST)
            key = int8_scaled(key, key.abs().amax(1, keepdim=True) / LARGEST)
        case other:
            raise ValueError(other)
    return product(query, key.T) / math.sqrt(query.shape[1])


def values(head: Head, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Values that weights multiply, and the mean that is added to the output."""
    value, mean = head.value, torch.zeros(head.value.shape[1])
    match scheme.values:
        case "float32":
            return value, mean
        case "e4m3, unit scales":
            return e4m3(value), mean
        case "e4m3, scales per tensor":
            return e4m3_scaled(value, value.abs().amax() / E4M3_LARGEST), mean
        case "int8, scales per tensor":
            return int8_scaled(value, value.abs().amax() / LARGEST), mean
    mean = head.scales.value_mean[0]
    centered = value - mean
    if scheme.values == "e4m3, centered, scales per channel":
        return e4m3_scaled(centered, centered.abs().amax(0) / E4M3_LARGEST), mean
    if scheme.values == "int8, centered, scales per channel":
        return int8_scaled(centered, head.scales.value_scale[0]), mean
    raise ValueError(scheme.values)


def rounded_weights(block: Tensor, running: Tensor, scheme: Scheme) -> Tensor:
    """Weights of a block of logits relative to the rows' maxima so far, rounded."""
    match scheme.weights:
        case "float32":
            return torch.exp(block - running)
        case "e4m3":
            return e4m3(torch.exp(block - running))
        case "e4m3 times 2^8":
            return e4m3_scaled(torch.exp(block - running), 1 / WEIGHT_SCALE)
        case "e4m3 times 2^7 of a reference":
            return e4m3_scaled(torch.exp(block - running), 2.0**-E4M3_AT_REFERENCE)
        case "e4m3 times 2^7, half by line, of a reference":
            logarithm = (block - running) / math.log(2) + E4M3_AT_REFERENCE
            return e4m3_weights(logarithm) * 2.0**-E4M3_AT_REFERENCE
        case "uint8 of the running maximum":
            return (255 * torch.exp(block - running)).round() / 255
        case "uint8 of the block's maximum":
            own = block.amax(1, keepdim=True)
            return (255 * torch.exp(block - own)).round() / 255 * torch.exp(own - running)
        case other:
            raise ValueError(other)


def attend(head: Head, scheme: Scheme) -> Tensor:
    product = fourteen_bits if scheme.accumulators == "14 bits" else exact
    scores = logits(head, scheme)
    value, mean = values(head, scheme)
    output, total = torch.zeros_like(head.query), torch.zeros(head.query.shape[0], 1)
    running = torch.full_like(total, -torch.inf)
    for start in range(0, scores.shape[1], BLOCK):
        block = scores[:, start : start + BLOCK]
        raised = torch.maximum(running, block.amax(1, keepdim=True))
        if scheme.weights.endswith("of a reference"):
            raised = torch.where(raised - running > E4M3_SLACK * math.log(2), raised, running)
        shrink = torch.exp(running - raised)
        running = raised
        weight = rounded_weights(block, running, scheme)
        output = output * shrink + product(weight, value[start : start + BLOCK])
        if scheme.sums == "exact":
            weight = torch.exp(block - running)
        total = total * shrink + weight.sum(1, keepdim=True)
    return output / total + mean


def truth(head: Head) -> Tensor:
    scores = head.query.double() @ head.key.double().T / math.sqrt(head.query.shape[1])
    return torch.softmax(scores, dim=1) @ head.value.double()


CHOSEN = Scheme(
    "INT8 throughout, weights by block",
    "int8, centered and smoothed",
    "uint8 of the block's maximum",
    "int8, centered, scales per channel",
)
PLAIN = Scheme(
    "plain FP8, scales per tensor",
    "e4m3, scales per tensor",
    "e4m3 times 2^8",
    "e4m3, scales per tensor",
)
E4M3_VALUES = "e4m3, centered, scales per channel"
SCHEMES = (
    PLAIN,
    replace(PLAIN, name="the same, sums of 128 keys in 14 bits", accumulators="14 bits"),
    Scheme("plain FP8, unit scales", "e4m3, unit scales", "e4m3", "e4m3, unit scales"),
    Scheme(
        "FP8, centered and smoothed",
        "e4m3, centered and smoothed",
        "e4m3 times 2^8",
        E4M3_VALUES,
    ),
    Scheme(
        "the same, weights relative to a reference",
        "e4m3, centered and smoothed",
        "e4m3 times 2^7 of a reference",
        E4M3_VALUES,
        sums="exact",
    ),
    Scheme(
        "the same, half of the weights by line",
        "e4m3, centered and smoothed",
        "e4m3 times 2^7, half by line, of a reference",
        E4M3_VALUES,
    ),
    Scheme(
        "INT8 logits, FP8 weights and values",
        "int8, centered and smoothed",
        "e4m3 times 2^8",
        E4M3_VALUES,
    ),
    replace(CHOSEN, name="INT8 throughout", weights="uint8 of the running maximum"),
    CHOSEN,
    replace(CHOSEN, name="the same, balance 0.3", balance=0.3),
    replace(CHOSEN, name="the same, balance 0.7", balance=0.7),
    replace(CHOSEN, name="the same, not smoothed", logits="int8, centered"),
    replace(
        CHOSEN,
        name="the same, a key scale for each token",
        logits="int8, centered and smoothed, keys per token",
    ),
    Scheme(
        "FP8 as engines have it",
        "e4m3, centered",
        "e4m3 times 2^7, half by line, of a reference",
        "e4m3, scales per tensor",
    ),
    replace(
        CHOSEN,
        name="INT8 as engines have it",
        logits="int8, centered",
        values="int8, scales per tensor",
    ),
    replace(CHOSEN, name="only logits rounded: INT8", weights="float32", values="float32"),
    Scheme(
        "only logits rounded: FP8, centered and smoothed",
        "e4m3, centered and smoothed",
        "float32",
        "float32",
    ),
    Scheme("only weights and values rounded: FP8", "float32", "e4m3 times 2^8", E4M3_VALUES),
    replace(CHOSEN, name="only weights and values rounded: INT8", logits="float32"),
)


def heads(drawn: Inputs, balance: float) -> Iterator[Head]:
    # From half of the slots: a calibration has not seen the keys that it is used on.
    half = drawn.key.shape[1] // 2
    scales = calibrate(drawn.query, drawn.key[:, :half], drawn.value[:, :half], balance=balance)
    for h in range(drawn.query.shape[2]):
        own = RingScales(**{name: x[h : h + 1] for name, x in vars(scales).items()})
        yield Head(drawn.query[0, :, h], drawn.key[0, :, h], drawn.value[0, :, h], own)


def study(drawn: Inputs) -> list[dict[str, object]]:
    truths = [truth(head) for head in heads(drawn, CHOSEN.balance)]
    rows = []
    for scheme in SCHEMES:
        errors = [
            float((attend(head, scheme).double() - wanted).norm() / wanted.norm())
            for head, wanted in zip(heads(drawn, scheme.balance), truths, strict=True)
        ]
        rows.append({**asdict(scheme), "errors": [round(error, 5) for error in errors]})
        print(f"{scheme.name:48}" + "".join(f"{e:9.4f}" for e in errors), file=sys.stderr)
    return rows


def drained(drawn: Inputs) -> Inputs:
    """The same, but sinks have hardly any value, as is reported of language models."""
    value = drawn.value.clone()
    value[:, :SINKS] *= DRAIN
    return replace(drawn, value=value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--slots", type=int, default=18720)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=128)
    args = parser.parse_args()
    drawn = draw(args.queries, args.slots, args.heads, args.head_dim)
    result: dict[str, object] = {"arguments": vars(args), "torch": torch.__version__}
    print("inputs.draw", file=sys.stderr)
    result["schemes"] = study(drawn)
    print(f"sinks' values times {DRAIN}", file=sys.stderr)
    result["drained"] = study(drained(drawn))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
