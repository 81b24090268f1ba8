"""Leaves of a JSON document, and copies with one of them changed."""

import copy


def leaves(value, path=()):
    """Paths of a JSON value's numbers, texts and truth values."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))
    elif value is not None:
        yield path


def changed(value, path):
    """A copy of a JSON value with another leaf."""
    document = copy.deepcopy(value)
    *above, last = path
    place = document
    for key in above:
        place = place[key]
    old = place[last]
    flipped = {str: lambda: old + "x", bool: lambda: not old}.get(type(old), lambda: old + 1)
    place[last] = flipped()
    return document
