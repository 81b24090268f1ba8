"""The names of a Wan transformer's modules: upstream's, and diffusers', which are canonical."""

from collections.abc import Mapping

_TOP = {
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}
_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0"}
_BLOCK = {
    **{f"self_attn.{old}": f"attn1.{new}" for old, new in _ATTENTION.items()},
    **{f"cross_attn.{old}": f"attn2.{new}" for old, new in _ATTENTION.items()},
    "self_attn": "attn1",
    "cross_attn": "attn2",
    "norm2": "norm3",
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
}


def canonical_name(name: str) -> str:
    """diffusers' name of a parameter or module that has an original Wan name.

    A name that is not part of the model stays as it is.
    """
    block, index, inside = (*name.split(".", 2), "", "")[:3]
    if block == "blocks" and inside:
        return f"blocks.{index}.{_renamed(inside, _BLOCK)}"
    return _renamed(name, _TOP)


def _renamed(name: str, table: Mapping[str, str]) -> str:
    """``name`` with the first entry of ``table`` that it starts with replaced."""
    for old, new in table.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name
