"""Every tensor of every operator, of a dtype, shape, layout, alignment and device that is wrong.

Against references, called and traced, and against the kernels' own checks, compiled for a CPU.
"""

import pytest
import torch
from fused_on_cpu import Kernels
from refusal_matrix import KINDS, MEMORY, tensors
from refusals import OPERATORS, REFUSALS

from vidc.plugins.errors import UsageError

EVERY = list(dict.fromkeys((name, argument) for name, argument, _ in tensors()))


@pytest.fixture(scope="module")
def kernels(built_for_cpu) -> Kernels:
    return Kernels(built_for_cpu)


def test_matrix_covers_every_operator_and_tensor():
    for refusals in (KINDS, MEMORY):
        assert {refusal.of for refusal in refusals} == set(OPERATORS)
    assert {(refusal.of, refusal.argument) for refusal in KINDS} == set(EVERY)
    names = [str(refusal) for refusal in (*KINDS, *REFUSALS, *MEMORY)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("refusal", [*KINDS, *REFUSALS], ids=str)
def test_references_refuse_when_called_and_when_traced(refusal):
    operator, taken = refusal.call()
    for device in ("cpu", "meta"):
        moved = [v.to(device) if isinstance(v, torch.Tensor) else v for v in taken.values()]
        with pytest.raises(UsageError) as caught:
            operator(*moved)
        assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
        refusal.check(str(caught.value))


@pytest.mark.parametrize("refusal", MEMORY, ids=str)
def test_kernels_refuse_memory_that_they_cannot_read(kernels, refusal):
    operator, taken = refusal.call()
    refusal.check(kernels.refusal(operator, taken))


@pytest.mark.parametrize("refusal", [*KINDS, *REFUSALS], ids=str)
def test_kernels_refuse_with_the_messages_of_references(kernels, refusal):
    operator, taken = refusal.call()
    with pytest.raises(UsageError) as caught:
        operator(*taken.values())
    assert kernels.refusal(operator, taken) == str(caught.value)


@pytest.mark.parametrize(("name", "argument"), EVERY)
def test_kernels_refuse_tensor_on_another_device(kernels, name, argument):
    operator, arguments = OPERATORS[name]
    first = next(iter(arguments()))
    alone = sum(1 for of, _ in EVERY if of == name) == 1
    for device, where in ((-1, "cpu"), (1, "cuda:1")):
        said = kernels.refusal(operator, arguments(), **{argument: device})
        if alone and device > 0:  # Any GPU will do.
            assert said == ""
            continue
        if argument == first and device < 0:
            wanted = f"{argument}: expected a CUDA device, found cpu"
        elif argument == first:  # The others are then elsewhere.
            wanted = f": expected {first}'s device cuda:1, found cuda:0"
        else:
            wanted = f"{argument}: expected {first}'s device cuda:0, found {where}"
        assert said.startswith(f"[VIDC-KERNEL-ARGUMENT] {operator.name()}: "), said
        assert said.partition("\n")[0].endswith(wanted), said


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_accept_valid_arguments(kernels, name):
    operator, arguments = OPERATORS[name]
    operator(*arguments().values())
    assert kernels.refusal(operator, arguments()) == ""
