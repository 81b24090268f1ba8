import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operators import FLOATS, draw, modulation, per_token, rounded_once

from vidc.plugins.errors import UsageError
from vidc.plugins.gate_residual import gate_residual


def arguments(batch=1, frames=2, each=3, width=24, dtypes=(FLOATS[0], FLOATS[1]), seed=1, size=1.0):
    tensor, shape = draw(seed), (batch, frames * each, width)
    *_, gate = modulation(batch, frames, width, seed)
    return {
        "x": tensor(*shape, dtype=dtypes[0], deviation=size),
        "update": tensor(*shape, dtype=dtypes[1], deviation=size),
        "gate": gate,
    }


@given(
    batch=st.integers(1, 3), frames=st.integers(1, 4), each=st.integers(1, 5),
    width=st.integers(1, 9).map(lambda n: 8 * n), size=st.sampled_from([1e-4, 1.0, 1e3]),
    dtypes=st.tuples(st.sampled_from(FLOATS), st.sampled_from(FLOATS)), seed=st.integers(0, 99),
)  # fmt: skip
def test_a_branch_is_gated_by_latent_frame(batch, frames, each, width, dtypes, seed, size):
    taken = arguments(batch, frames, each, width, dtypes, seed, size)
    x, update = taken["x"].double(), taken["update"].double()
    wanted = x + update * per_token(taken["gate"], frames * each)
    found = gate_residual(**taken)
    assert found.dtype == dtypes[0]
    rounded_once(found, wanted, slack=1e-6 * size * 30)


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_an_operator_as_torch_wants_them(dtype):
    torch.library.opcheck(gate_residual, tuple(arguments(2, dtypes=(dtype, dtype)).values()))


WRONG = {
    "rank": ("x", lambda t: t[0], r"shape \[B, T, width\]", r"\[6, 24\]"),
    "empty": ("x", lambda t: t[:, :0], r"shape \[B, T, width\]", r"\[1, 0, 24\]"),
    "dtype": ("x", lambda t: t.double(), "float32 or bfloat16 or float16", "float64"),
    "width": ("x", lambda t: t[..., :20], "multiple of 8, at most 8192", "20"),
    "update": ("update", lambda t: t[:, 1:], r"shape \[1, 6, 24\]", r"\[1, 5, 24\]"),
    "its dtype": ("update", lambda t: t.long(), "float32 or bfloat16 or float16", "int64"),
    "gate": ("gate", lambda t: t[..., 1:], r"shape \[1, F, 24\]", r"\[1, 2, 23\]"),
    "gate's dtype": ("gate", lambda t: t.half(), "float32", "float16"),
    "frames": ("gate", lambda t: torch.cat([t, t], 1), "divides 6 tokens", "4"),
}


@pytest.mark.parametrize(("name", "change", "expected", "found"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_no_kernel_takes_is_refused(name, change, expected, found, device):
    taken = arguments()
    taken[name] = change(taken[name])
    taken = {key: tensor.to(device) for key, tensor in taken.items()}
    message = rf"vidc::gate_residual: {name}: expected .*{expected}.*, found {found}"
    with pytest.raises(UsageError, match=message) as caught:
        gate_residual(**taken)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"


def test_a_row_has_no_more_channels_than_a_block_has_threads_for():
    with pytest.raises(UsageError, match="at most 8192, found 8200"):
        gate_residual(**arguments(width=8200))
