import pytest
import torch
from refusals import OPERATORS, REFUSALS

from vidc.plugins.errors import UsageError


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_what_no_kernel_takes_is_refused_also_when_traced(refusal, device):
    operator, taken = refusal.call()
    moved = [v.to(device) if isinstance(v, torch.Tensor) else v for v in taken.values()]
    with pytest.raises(UsageError) as caught:
        operator(*moved)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
    refusal.check(str(caught.value))


@pytest.mark.parametrize("name", OPERATORS)
def test_without_the_change_nothing_is_refused(name):
    operator, arguments = OPERATORS[name]
    operator(*arguments().values())
