"""Which states of an ONNX graph may be written in the memory they are read from."""

import onnx_ir as ir

from vidc.plugins.signature import Access, Signature, state_output


def aliasable_states(model: ir.Model, signature: Signature) -> frozenset[str]:
    """States for which one buffer may be bound to the graph's input and output.

    Nothing but the ScatterND that makes the new value may read the old one: anything else could
    read it after it was overwritten.

    Args:
        model: a functional graph of the signature's names.
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
