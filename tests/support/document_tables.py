"""Tables of the documentation that list components by model."""

from collections.abc import Iterable


def documented(
    text: str, head: str, known: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], tuple[str, ...]]:
    """Returns the further cells of each model and component of the table that begins with ``head``.

    A row may list several components; ``recache_N`` stands for all of the model's.
    """
    _, found, table = text.partition(head)
    assert found, f"no table begins with {head}"
    claims: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        model, names, *cells = (cell.strip() for cell in line.split("|")[1:-1])
        for name in names.split(","):
            for key in _components(model, name.strip(" `"), known):
                assert key not in claims, f"{key} is there twice"
                claims[key] = tuple(cells)
    return claims


def _components(model: str, name: str, known: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    if name != "recache_N":
        return [(model, name)]
    return [key for key in known if key[0] == model and key[1].startswith("recache_")]
