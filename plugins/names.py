"""File names of a bundle that its writer and its reader share."""

TOKENIZER = "tokenizer.json"
"""The text encoder's tokenizer."""


def weights_path(group: str) -> str:
    """Returns the path of a group's weights in a bundle, or in the output of stage ``load``."""
    return f"weights/{group}.safetensors"
