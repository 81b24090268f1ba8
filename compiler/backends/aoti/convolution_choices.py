"""Chosen forms of an engine's convolutions: measured, from the build cache, or by rule.

``convolution_forms`` has the forms and the rule. A measured form replaces the rule's form only if
it is faster by more than ``MARGIN``, so that noise does not decide. The build cache keeps measured
choices for each GPU model. A later build with the same software takes them from there. A build with
other software measures again; if its choice differs, a note gives the times of both builds.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule, candidates
from vidc.compiler.store.atomic import FileLock, Mode, read_json, write_json
from vidc.compiler.store.sources import source_digest
from vidc.plugins.errors import GateError
from vidc.runtime.faults import NO_MEMORY
from vidc.runtime.strict import plain, read

if TYPE_CHECKING:
    from vidc.compiler.backends.aoti.convolution_timing import Times

SUFFIX = ".convolutions.json"
"""Suffix of the file beside an engine's package."""
SCHEMA = 1
MARGIN = 0.05
"""Smallest gain, relative to the time of the rule's form, for which another form replaces it.

The times of one engine differed by 5 % between two runs.
"""
_WAIT_SECONDS = 0.1
_LONGEST_REASON = 200
BUDGET_SECONDS = 20.0
"""Time limit for measuring an engine's convolutions. After it, the rule chooses."""


class Decided(StrEnum):
    """Source of a choice: this build's measurement, the build cache's, or the rule."""

    MEASURED = "measured"
    RECORDED = "recorded"
    BY_RULE = "by rule"


@dataclass(frozen=True)
class Choice:
    """Form of one convolution.

    Attributes:
        form: the chosen form.
        decided: source of the choice.
        reason: why the rule chose, or why the choice differs from an earlier build's.
        times_ms: measured time of each form; empty for a choice by rule.
        at_least_ms: lower bounds of the times of forms that were not measured whole, as in
            ``Times``.
        device: the measured GPU; empty for a choice by rule.
        build: versions of the measured software.
    """

    form: Form
    decided: Decided
    reason: str = ""
    times_ms: dict[str, float] = field(default_factory=dict)
    at_least_ms: dict[str, float] = field(default_factory=dict)
    device: str = ""
    build: str = ""

    @property
    def times_text(self) -> str:
        """The times, such as ``F(3, 3) 0.405 ms, conv3d more than 0.51 ms``."""
        known = [f"{form} {ms:.3g} ms" for form, ms in self.times_ms.items()]
        bounds = [f"{form} more than {ms:.3g} ms" for form, ms in self.at_least_ms.items()]
        return ", ".join(known + bounds)

    def __str__(self) -> str:
        return f"{self.form} {self.decided} ({self.times_text or self.reason})"


@dataclass(frozen=True)
class Choices:
    """Document of choices by the text of each convolution's sizes."""

    schema: int
    choices: dict[str, Choice]

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"schema {self.schema} of convolutions is not {SCHEMA}")


def choices_json(choices: Mapping[str, Choice]) -> dict[str, Any]:
    """Returns the JSON values of ``Choices``."""
    return {"schema": SCHEMA, "choices": plain(choices)}


def decide(sizes: Sizes, times: "Times") -> Form:
    """Returns the rule's form, or the fastest one if it gains more than ``MARGIN``."""
    rule, measured = by_rule(sizes), times.measured
    fastest = min(measured, key=measured.__getitem__)
    if rule in measured and measured[fastest] >= (1 - MARGIN) * measured[rule]:
        return rule
    return fastest


class Chooser:
    """Chooses the form of each convolution of a program.

    ``choices`` has the choices by the text of sizes. ``notes`` has a line for each choice that
    differs from an earlier build's, and for each convolution that should have been measured and
    was not.

    Args:
        measure: measures the forms of a convolution; None to follow the rule.
        reason: why nothing is measured.
        device: name of the GPU.
        build: versions of the software that is measured.
        record: file of the build cache for this GPU model; None to keep nothing.
    """

    def __init__(
        self,
        measure: "Callable[[Sizes], Times] | None",
        reason: str = "",
        device: str = "",
        build: str = "",
        record: Path | None = None,
    ) -> None:
        self.choices: dict[str, Choice] = {}
        self.notes: tuple[str, ...] = ()
        self._spent = 0.0
        self._measure = measure
        self._reason = reason
        self._device = device
        self._build = build
        self._record = record

    def __call__(self, sizes: Sizes) -> Form:
        """Returns the form of a convolution, the same one for the same sizes."""
        if str(sizes) not in self.choices:
            self.choices[str(sizes)] = self._choose(sizes)
        return self.choices[str(sizes)].form

    def _choose(self, sizes: Sizes) -> Choice:
        rule = Choice(by_rule(sizes), Decided.BY_RULE, self._reason)
        if len(candidates(sizes)) == 1:
            return replace(rule, reason="it has one form")
        if self._measure is None:
            return rule
        if not (sizes.upsampled or sizes.operator or sizes.kernel is not None):
            reason = "without norm_silu_winograd, its transforms cannot be measured apart"
            return replace(rule, reason=reason)
        with self._alone() as known:
            before = known.get(str(sizes))
            if before is not None and before.form not in candidates(sizes):
                before = None
            if before is not None and (before.device, before.build) == (self._device, self._build):
                return replace(before, decided=Decided.RECORDED)
            if self._spent > BUDGET_SECONDS:
                return self._left(sizes, rule, f"others took {self._spent:.0f} s to measure")
            started = time.monotonic()
            try:
                times = self._measure(sizes)
            except RuntimeError as error:
                if isinstance(error, torch.AcceleratorError) and NO_MEMORY not in str(error):
                    raise  # The GPU is lost to this process: nothing after it could be compiled.
                # The rule's form computes the same.
                first = str(error).partition("\n")[0][:_LONGEST_REASON]
                return self._left(sizes, rule, f"it could not be measured: {first}")
            finally:
                self._spent += time.monotonic() - started
            choice = self._measured(sizes, times, before)
            if choice.reason:
                self._note(sizes, choice)
            if self._record is not None:
                # The reason is of this build alone.
                kept = {**known, str(sizes): replace(choice, reason="")}
                write_json(self._record, choices_json(kept))
            return choice

    def _left(self, sizes: Sizes, rule: Choice, reason: str) -> Choice:
        """Returns the rule's choice of a convolution that was to be measured, and says why."""
        choice = replace(rule, reason=reason)
        self._note(sizes, choice)
        return choice

    def _note(self, sizes: Sizes, choice: Choice) -> None:
        self.notes += (f"convolution {sizes}: {choice.form}; {choice.reason}",)

    def _measured(self, sizes: Sizes, times: "Times", before: Choice | None) -> Choice:
        choice = Choice(
            decide(sizes, times),
            Decided.MEASURED,
            times_ms={str(form): ms for form, ms in times.measured.items()},
            at_least_ms={str(form): ms for form, ms in times.at_least.items()},
            device=self._device,
            build=self._build,
        )
        if before is None or before.form is choice.form:
            return choice
        reason = (
            f"an earlier build with {before.build} chose {before.form} ({before.times_text}), "
            f"this one with {self._build} measures {choice.times_text}"
        )
        return replace(choice, reason=reason)

    @contextmanager
    def _alone(self) -> Iterator[dict[str, Choice]]:
        """Yields the recorded choices while no other stage of a build measures."""
        if self._record is None:
            yield {}
            return
        lock = FileLock(self._record.with_suffix(".lock"))
        try:
            while not lock.try_acquire(Mode.EXCLUSIVE):
                time.sleep(_WAIT_SECONDS)
            try:
                known: Choices = read(read_json(self._record), Choices, str(self._record))
            except GateError:  # Missing, damaged, or of another version: it is replaced.
                known = Choices(SCHEMA, {})
            yield known.choices
        finally:
            lock.close()


def engine_chooser(measure: bool, folder: Path | None) -> Chooser:
    """Returns the chooser of an engine for the current GPU.

    Args:
        measure: False to follow the rule.
        folder: folder of the build cache; None to keep nothing.
    """
    if not measure:
        return Chooser(None, "setting aoti.measure is false")
    if not torch.cuda.is_available():
        return Chooser(None, "there is no GPU")
    from vidc.compiler.backends.aoti.convolution_timing import measure_forms

    device = torch.cuda.get_device_name()

    def measured(sizes: Sizes) -> "Times":
        try:
            return measure_forms(sizes, torch.device("cuda"))
        finally:
            torch.cuda.empty_cache()

    name = "".join(each if each.isalnum() else "-" for each in device)
    record = None if folder is None else folder / "aoti" / f"convolutions-{name}.json"
    return Chooser(measured, device=device, build=_build_text(), record=record)


def _build_text() -> str:
    sources = source_digest((__name__,))[:12]  # The code that measures and chooses.
    cudnn = torch.backends.cudnn.version()
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, vidc {sources}"
