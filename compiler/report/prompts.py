"""Prompts that a bundle takes, in words."""

from vidc.exporters.families import find_family
from vidc.runtime.manifest import Manifest


def prompts_text(manifest: Manifest) -> str:
    """Returns which prompts a bundle takes.

    Raises:
        UsageError: as ``find_family``.
    """
    group = find_family(manifest.family).text_group
    if group is None:
        return "none"
    if group in manifest.weights:
        return "texts or embeddings"
    return "embeddings alone: it has no text encoder"
