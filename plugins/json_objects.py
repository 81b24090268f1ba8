"""JSON objects from untrusted files."""

from collections.abc import Iterable
from typing import Any


def unique_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object as a dict: an ``object_pairs_hook`` of ``json.loads``.

    Raises:
        ValueError: a key is repeated; readers could take either value.
    """
    value: dict[str, Any] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"the key {key[:64]!r} is there twice")
        value[key] = item
    return value
