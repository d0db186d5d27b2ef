"""Numbers in sentences."""


def number_of(n: int, thing: str) -> str:
    """`1 image`, `2,000 images`, `8,142 classes`."""
    ending = "" if n == 1 else "es" if thing.endswith("s") else "s"
    return f"{n:,} {thing}{ending}"
