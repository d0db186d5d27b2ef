"""Damaged inputs from good ones: bytes cut, doubled, flipped and spliced, and trees of plain data with wrong leaves.

All of it is a function of one number, so that an input that breaks something can be made again.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

EDGES = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e-300, 1e300, float("nan"),
    float("inf"), "", "x", "..", "0", "nan", "\x00", "\ud800", "é" * 50, "a" * 5000, [], [[]], {}, [None], ["x", 1],
    {"x": {}}, {"": []}, [0] * 100, ["a"] * 3, [1.5, 2.5, 3.5], "small", "gml", "frozen", "momentum",
)  # fmt: skip


def damaged(seed: int, good: Sequence[bytes], words: Sequence[bytes] = ()) -> bytes:
    """One of the good inputs after one to eight edits; of `words`, a format's own, some are put in."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(good))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        _edit(rng, data, good, words)
    return bytes(data)


def _edit(rng: random.Random, data: bytearray, good: Sequence[bytes], words: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    end = min(len(data), start + rng.choice((1, 2, 4, 16, 200)))
    match rng.randrange(9):
        case 0 if data:
            data[start % len(data)] ^= 1 << rng.randrange(8)
        case 1:
            data[start:end] = rng.randbytes(end - start)
        case 2:
            del data[start:end]
        case 3:
            data[start:start] = data[start:end] * rng.choice((1, 1, 3, 50))
        case 4:
            data[start:start] = rng.randbytes(rng.choice((1, 4, 30)))
        case 5 if words:
            data[start : rng.choice((start, end))] = rng.choice(words)
        case 6:
            del data[start:]
        case 7:
            other = rng.choice(good)
            data[start:] = other[rng.randrange(len(other) + 1) :]
        case 8:
            size = rng.choice((1, 2, 4, 8))
            number = (rng.choice(EDGES) % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
            data[start : start + size] = number


def wrong(seed: int, tree: Any) -> Any:
    """Plain data with one to four places replaced, removed, doubled or renamed."""
    rng = random.Random(seed)
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 2, 4))):
        owner, key = rng.choice(_places(tree)) if _places(tree) else (None, None)
        if owner is None:
            return copy.deepcopy(rng.choice(WRONG))
        match rng.randrange(8):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[rng.choice(("x", "", "Name", "lr", "é"))] = owner.pop(key)
            case 2 if isinstance(owner, list):
                owner.append(copy.deepcopy(owner[key]))
            case 3:
                other, place = rng.choice(_places(tree))
                owner[key] = copy.deepcopy(other[place])
            case _:
                owner[key] = copy.deepcopy(rng.choice(WRONG))
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(owner, key) of everything inside."""
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in keys] + [place for key in keys for place in _places(tree[key])]
