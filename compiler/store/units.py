"""Human-readable units."""


def byte_size(count: int) -> str:
    """Formats bytes in the largest decimal unit that they fill, such as ``1.50 GB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
