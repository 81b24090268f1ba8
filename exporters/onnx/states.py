"""Aliasing of states in an ONNX graph: states that one buffer can be input and output of."""

import onnx_ir as ir

from vidc.plugins.signature import Access, Signature, state_output


def aliasable_states(model: ir.Model, signature: Signature) -> frozenset[str]:
    """Returns the states whose graph input and output may share one buffer.

    Only the ScatterND that makes the new value may read the old one: another node could read it
    after it is overwritten.

    Args:
        model: a functional graph with the signature's names.
        signature: of its component.
    """
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    return frozenset(
        state.name
        for state in signature.states
        if state.access is Access.READ_WRITE
        and _only_scattered(inputs[state.name], outputs[state_output(state.name)])
    )


def _only_scattered(old: ir.Value, new: ir.Value) -> bool:
    producer = new.producer()
    while producer is not None and producer.op_type == "Identity":
        (source,) = producer.inputs
        producer = None if source is None else source.producer()
    uses = tuple(old.uses())
    return (
        len(uses) == 1
        and uses[0].node is producer
        and uses[0].idx == 0
        and uses[0].node.op_type == "ScatterND"
    )
