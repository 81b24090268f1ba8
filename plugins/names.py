"""Names of files in a bundle that what writes it and what reads it agree on."""

TOKENIZER = "tokenizer.json"
"""The text encoder's tokenizer."""


def weights_path(group: str) -> str:
    """Where the weights of a group are, in a bundle as in the output of stage ``load``."""
    return f"weights/{group}.safetensors"
