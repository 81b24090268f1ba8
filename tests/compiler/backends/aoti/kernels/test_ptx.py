import pytest

from vidc.compiler.backends.aoti.kernels.ptx import Parameter, parse_entry
from vidc.plugins.errors import BuildError

PTX = """
.version 9.4
.extern .shared .align 1024 .b8 __dynamic_shmem__0[];
.visible .entry attend_0(
	.param .align 64 .b8 attend_0_param_0[128],
	.param .f32 attend_0_param_1,
	.param .u32 attend_0_param_2,
	.param .align 4 .b8 attend_0_param_3[12]
)
.reqntid 384, 1, 1
.minnctapersm 1
{
	.reg .b32 	%r<9>;
	ld.param.b32 	%r1, [attend_0_param_1];
	mov.b64 	%rd2, attend_0_param_0;
	@%p1 bra 	$L_1;
	{
	ld.param.b32 	%r2, [attend_0_param_3+8];
	}
	ret;
}
"""


def test_parses_declared_kernel():
    entry = parse_entry(PTX)
    assert entry.symbol == "attend_0"
    assert entry.threads == 384
    assert entry.parameters == (
        Parameter(128, False), Parameter(4, True), Parameter(4, False), Parameter(12, False),
    )  # fmt: skip
    assert entry.read == {0, 1, 3}


WRONG = {
    "no kernel": ("// nothing", "one kernel"),
    "two kernels": (PTX + PTX, "one kernel"),
    "threads left open": (PTX.replace(".reqntid 384, 1, 1", ""), "threads of a block"),
    "threads along y": (PTX.replace("384, 1, 1", "384, 2, 1"), "threads of a block"),
    "a parameter of another kind": (PTX.replace(".param .f32", ".reg .f32"), r"a parameter .*f32"),
    "no body": (PTX.replace("{", ""), "not written as expected"),
}


@pytest.mark.parametrize(("text", "reason"), WRONG.values(), ids=WRONG)
def test_rejects_unreadable_ptx(text, reason):
    with pytest.raises(BuildError, match=reason) as caught:
        parse_entry(text)
    assert caught.value.code == "VIDC-KERNEL-PARAMETERS"
