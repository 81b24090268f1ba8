import onnx_ir as ir
import pytest

from vidc.exporters.onnx.states import aliasable_states
from vidc.plugins.signature import Access, Role, Signature, TensorSpec


def aliasable(body: str, access: Access = Access.READ_WRITE) -> frozenset[str]:
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 24]>
        graph (float[4, 2] ring, int64[1, 1] slots, float[1, 2] update)
            => (float[4, 2] other, float[4, 2] new) {{ {body} }}"""
    )
    model.graph.outputs[1].name = "ring.out"
    return aliasable_states(
        model, Signature((TensorSpec("ring", (4, 2), "float32", Role.STATE, access),))
    )


@pytest.mark.parametrize(
    "body",
    [
        "new = ScatterND(ring, slots, update) other = Neg(new)",
        "fresh = ScatterND(ring, slots, update) new = Identity(fresh) other = Neg(fresh)",
    ],
)
def test_a_state_that_is_only_scattered_into_may_be_aliased(body):
    assert aliasable(body) == {"ring"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "new = ScatterND(ring, slots, update) other = Neg(ring)", id="the old state is read"
        ),
        pytest.param("new = Neg(ring) other = Neg(new)", id="no scatter"),
        pytest.param(
            "old = Neg(update) big = Concat<axis = 0>(old, old, old, old)"
            " new = ScatterND(big, slots, update) other = Neg(ring)",
            id="scattered into something else",
        ),
        pytest.param(
            "zero = Sub(slots, slots) rows = Concat<axis = 0>(update, update, update, update)"
            " at = Concat<axis = 0>(zero, zero, zero, zero)"
            " new = ScatterND(rows, at, ring) other = Neg(new)",
            id="the state is what is scattered",
        ),
        pytest.param("new = Identity(ring) other = Neg(new)", id="the state comes back unchanged"),
    ],
)
def test_any_other_use_of_a_state_forbids_aliasing(body):
    assert aliasable(body) == frozenset()


def test_a_state_that_is_only_read_has_nothing_to_alias():
    body = "new = ScatterND(ring, slots, update) other = Neg(new)"
    assert aliasable(body, Access.READ) == frozenset()


@pytest.mark.parametrize("name", ["denoise", "kv_update", "recache_6"])
def test_rings_of_a_transformer_may_be_written_in_place(export, name):
    exported = export(name, window=6, batch=2)
    rings = {f"ring.{part}.{layer}" for part in "kv" for layer in range(2)}
    assert aliasable_states(exported.model, exported.component.signature) == rings
