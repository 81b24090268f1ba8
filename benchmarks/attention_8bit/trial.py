"""Tests and times 8-bit ring attention on a Hopper GPU in one run.

    export PYTHONPATH=benchmarks
    python -m attention_8bit.trial build/cuda/libvidc_ring_attention.so > trial.json

Builds nothing. Groups whose names end in ``_int8`` or ``_fp8`` are of one format; ``timing``
compares both with the other attention kernels on the machine. Each group runs in a process of its
own with a time limit, so that a kernel that hangs or faults costs one group. Progress goes to
stderr, the results to stdout as JSON. ``--emulate`` runs the kernel's emulation on the CPU instead,
which tests this script.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from attention_8bit.checks import (
    Problem,
    check_output,
    check_products,
    check_single_keys,
    problem,
)
from attention_8bit.kernel import Attention, Emulation, Library
from attention_8bit.rivals import rivals
from attention_8bit.timing import Contender, compare, ours
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state

FORMATS = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LENGTHS = (1, 127, 128, 129, 4680, 9360, 14040, 18720)
SLOTS = 18720
QUERIES = (1, 64, 100, 4680)
SHAPES = ((1, 1), (1, 2), (1, 12), (2, 2), (2, 12))
"""Batch and heads."""
HEAD_DIMS = (128, 64)
SINGLE = (1, 1)
SHARES_DIFFER = {torch.int8: 0.003, torch.float8_e4m3fn: 0.006}
REPEATS = 30
REPEATS_SMALL = 2
PROGRAM = ("-m", "attention_8bit.trial")
SMALL_SLOTS = 700
SMALL_LENGTHS = (1, 127, 129, 700)
SMALL_QUERIES = (1, 100, 300)
SMALL_SHAPES = ((1, 1), (2, 3))

Record = dict[str, Any]


class Trial:
    """State that the groups of checks share."""

    def __init__(self, library: Path | None) -> None:
        self.small = library is None
        self.device = torch.device("cpu" if library is None else "cuda")
        self.attend: Attention = Emulation() if library is None else Library(library)
        torch.backends.cuda.matmul.allow_tf32 = False
        self.slots = SMALL_SLOTS if self.small else SLOTS
        self.lengths = SMALL_LENGTHS if self.small else LENGTHS
        self.queries = SMALL_QUERIES if self.small else QUERIES
        self.shapes = SMALL_SHAPES if self.small else SHAPES

    def problem(self, dtype: torch.dtype, head_dim: int, batch: int, heads: int) -> Problem:
        queries = max(self.queries)
        return problem(queries, self.slots, heads, head_dim, batch, self.device, dtype)

    def length(self, valid: int) -> torch.Tensor:
        return torch.tensor([valid], device=self.device)

    def run(self, at: Problem, length: torch.Tensor, **options: Any) -> torch.Tensor:
        return self.attend(at.query, at.query_scale, at.ring, at.scales, length, **options)


def environment(trial: Trial) -> Iterator[Record]:
    yield {"fingerprint": fingerprint(trial.device), "gpu_state": gpu_state(trial.device)}


def products(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    for head_dim in HEAD_DIMS:
        at = trial.problem(dtype, head_dim, 1, 1)
        for count in trial.queries:
            problems = list(check_products(trial.attend, at.first_queries(count)))
            yield {"head_dim": head_dim, "queries": count, "problem": "; ".join(problems) or None}


def single_keys(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    for head_dim in HEAD_DIMS:
        problems = list(check_single_keys(trial.attend, head_dim, trial.device, dtype))
        yield {"head_dim": head_dim, "problem": "; ".join(problems) or None}


def first_outputs(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    """The easiest first: a fault here says more than one among hundreds of results."""
    whole = trial.problem(dtype, 128, 1, 1)
    for count in trial.queries[1:]:
        for valid in trial.lengths:
            found = check_output(trial.attend, whole.first_queries(count), valid)
            yield {"queries": count, "valid_length": valid, **vars(found)}


def outputs(trial: Trial, dtype: torch.dtype, head_dim: int) -> Iterator[Record]:
    for batch, heads in trial.shapes:
        whole = trial.problem(dtype, head_dim, batch, heads)
        for count in trial.queries:
            at = whole.first_queries(count)
            for valid in trial.lengths:
                found = check_output(trial.attend, at, valid)
                yield {
                    "head_dim": head_dim, "batch": batch, "heads": heads, "queries": count,
                    "valid_length": valid, **vars(found),
                }  # fmt: skip


def types(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    at = trial.problem(dtype, 128, 1, 2)
    for output in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        found = vars(check_output(trial.attend, at, trial.slots, output))
        if output == torch.float8_e4m3fn:
            # Its own rounding is 0.025, so only gross errors show.
            found["problem"] = None if found["against_emulation"] < 0.035 else "far off"
        yield {"dtype": str(output), **found}


def repeats(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    """Bit for bit the same, run after run."""
    most, few = trial.queries[-1], trial.queries[1]
    for (batch, heads), count in ((trial.shapes[-1], most), (trial.shapes[1], most), (SINGLE, few)):
        at = trial.problem(dtype, 128, batch, heads).first_queries(count)
        for valid in (trial.lengths[2], trial.lengths[-1]):
            length = trial.length(valid)
            first = trial.run(at, length).view(torch.int16)
            differ = [
                int((trial.run(at, length).view(torch.int16) != first).sum())
                for _ in range(REPEATS_SMALL if trial.small else REPEATS)
            ]
            wrong = f"runs differ in {differ} elements" if any(differ) else None
            yield {
                "batch": batch, "heads": heads, "queries": count, "valid_length": valid,
                "problem": wrong,
            }  # fmt: skip


def shares(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    """However many blocks share the work: only the order of a few sums and, in FP8, roundings."""
    whole = trial.problem(dtype, 128, 1, trial.shapes[-1][1])
    length = trial.length(trial.slots)
    for count in trial.queries:
        at = whole.first_queries(count)
        first = trial.run(at, length).float()
        for ctas in (1, 7, 16, 64, 131):
            if ctas < 7 and count > 1000:
                continue
            again = trial.run(at, length, ctas=ctas).float()
            error = float((again - first).norm() / first.norm())
            wrong = not error < SHARES_DIFFER[dtype]
            yield {"queries": count, "ctas": ctas, "problem": f"{error}" if wrong else None}


def replays(trial: Trial, dtype: torch.dtype) -> Iterator[Record]:
    """One CUDA graph, with a length that changes between replays."""
    at = trial.problem(dtype, 128, 1, trial.shapes[-1][1])
    length = trial.length(trial.slots)
    if trial.device.type == "cpu":
        yield {"problem": None, "skipped": "there are no graphs on the CPU"}
        return
    trial.run(at, length)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = trial.run(at, length)
    for valid in (*LENGTHS, *reversed(LENGTHS)):
        length.fill_(valid)
        graph.replay()
        wanted = trial.run(at, trial.length(valid))
        differ = int((output.view(torch.int16) != wanted.view(torch.int16)).sum())
        yield {"valid_length": valid, "problem": f"{differ} elements differ" if differ else None}


def timing(trial: Trial) -> Iterator[Record]:
    if trial.device.type == "cpu":
        yield {"problem": None, "skipped": "times on the CPU mean nothing"}
        return
    for valid in reversed(LENGTHS[4:]):
        contenders: dict[str, Contender] = {}
        for name, dtype in FORMATS.items():
            at = trial.problem(dtype, 128, 1, 12)
            contenders |= ours(name, trial.attend, at, valid)
        found, missing = rivals(at.inputs, valid)
        yield {**compare({**contenders, **found}, at.inputs, valid), "missing": missing}


OF_FORMAT: dict[str, tuple[Callable[[Trial, torch.dtype], Iterator[Record]], int]] = {
    "products": (products, 60),
    "single_keys": (single_keys, 60),
    "first_outputs": (first_outputs, 60),
    "repeats": (repeats, 60),
    "replays": (replays, 60),
    "outputs_128": (partial(outputs, head_dim=128), 150),
    "types": (types, 60),
    "shares": (shares, 60),
    "outputs_64": (partial(outputs, head_dim=64), 150),
}
GROUPS: dict[str, tuple[Callable[[Trial], Iterator[Record]], int]] = {
    "environment": (environment, 60),
    "timing": (timing, 180),
    **{
        f"{name}_{format}": (partial(group, dtype=dtype), seconds)
        for name, (group, seconds) in OF_FORMAT.items()
        for format, dtype in FORMATS.items()
    },
}
"""With the seconds that each may take: what is needed most comes first."""


def run_group(name: str, library: Path | None) -> None:
    """In a process of its own: one JSON line for each result."""
    records = GROUPS[name][0](Trial(library))
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        print(json.dumps(record), flush=True)


def collect(name: str, arguments: list[str], scale: float) -> Record:
    command = [sys.executable, *PROGRAM, *arguments, "--group", name]
    started = time.monotonic()
    ended: str | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            out, err = process.communicate(timeout=GROUPS[name][1] * scale)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            ended = "took too long"
    if ended is None and process.returncode:
        ended = f"ended with {process.returncode}"
    lines = out.decode().splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    problems = [record for record in records if record.get("problem")]
    result: Record = {
        "results": len(records),
        "problems": len(problems),
        "ended": ended,
        "seconds": round(time.monotonic() - started, 1),
        "records": records,
    }
    print(f"{name}: {len(records)} results, {len(problems)} problems", file=sys.stderr, flush=True)
    for wrong in problems[:5]:
        print(f"  {json.dumps(wrong)}", file=sys.stderr, flush=True)
    if ended:
        result["stderr"] = err.decode(errors="replace")[-3000:]
        last = records[-1] if records else None
        print(f"  {ended} after {json.dumps(last)}", file=sys.stderr)
        print(f"  {result['stderr']}", file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", type=Path, nargs="?", help="the prebuilt shared library")
    parser.add_argument("--emulate", action="store_true", help="the emulation in its place")
    parser.add_argument("--group", choices=GROUPS, help="only this one, in this process")
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the time limits")
    args = parser.parse_args()
    if args.emulate == (args.library is not None):
        parser.error("either a library or --emulate")
    if args.group:
        try:
            run_group(args.group, args.library)
        except Exception:  # noqa: BLE001 (Told to whoever started the process.)
            traceback.print_exc()
            return 1
        return 0
    arguments = ["--emulate"] if args.emulate else [str(args.library)]
    result = {name: collect(name, arguments, args.patience) for name in args.only}
    print(json.dumps(result, indent=1))
    return int(any(group["ended"] or group["problems"] for group in result.values()))


if __name__ == "__main__":
    sys.exit(main())
