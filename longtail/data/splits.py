"""Holding out images for testing or validation: stratified, decided by content, without a leak.

Which images go is a function of their bytes and the seed, not of the order of rows, names or folders: adding images
moves no other image's place in the draw. Byte-identical images and images of one group stay on one side.

The rule, for a share f of each class: of n images round(f n) are held out, at least one and never the last one.
So a class of 1 image stays in train and cannot be measured; of 2, one is held out; of 3, holding out a test and then a
val split leaves one each. Where groups are too large to fit, the smallest one goes, and a class that is a single group
stays in train.
"""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from longtail.data.decode import BadImage
from longtail.data.parallel import for_rows
from longtail.data.table import SPLITS, ImageTable


def hold_out(table: ImageTable, split: str = "test", fraction: float = 0.2, seed: int = 0) -> tuple[ImageTable, str]:
    """Move `fraction` of every class from train to `split`. Also returns what was done, in words."""
    rows = table.rows("train")
    labels = table.labels[rows]
    unit, priority = _units(table, rows, seed)
    counts = table.counts()
    wanted = np.where(counts > 1, np.clip(np.floor(fraction * counts + 0.5), 1, np.maximum(counts - 1, 1)), 0)
    held_units = _choose(unit, labels, priority, counts, wanted.astype(np.int64))
    held = rows[np.isin(unit, held_units)]
    codes = table.split.copy()
    codes[held] = SPLITS.index(split)
    divided = replace(table, split=codes, loaded=None)
    return divided, _report(table, divided, split, fraction, seed)


def leaking_groups(table: ImageTable) -> dict[str, int] | None:
    """How many groups have images on both sides of a split, and how many images those are; None where none has."""
    if table.groups is None:
        return None
    pairs = np.unique(np.stack([table.groups, table.split]), axis=1)
    groups, splits = np.unique(pairs[0], return_counts=True)
    leaking = groups[splits > 1]
    images = int(np.isin(table.groups, leaking).sum())
    return {"groups": len(leaking), "images": images} if len(leaking) else None


def _units(table: ImageTable, rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What must stay together, [n] codes; and each unit's place in the draw, from its content and the seed."""
    digests = [b""] * len(rows)

    def read(i: int) -> None:
        row = int(rows[i])
        try:
            content = table.images.content(row)
        except BadImage:  # whoever decodes it says so; until then its name stands for it
            content = table.images.name(row).encode()
        digests[i] = blake2b(content, digest_size=16).digest()

    for_rows(len(rows), read, "reading every image")
    _, content = np.unique(np.array(digests, "S16"), return_inverse=True)
    unit = content
    if table.groups is not None:
        # Two groups that share an image are one: the components of the graph between contents and groups.
        _, group = np.unique(table.groups[rows], return_inverse=True)
        edges = (np.ones(len(rows)), (content, content.max(initial=0) + 1 + group))
        nodes = content.max(initial=0) + group.max(initial=0) + 2
        unit = connected_components(coo_array(edges, shape=(nodes, nodes)), directed=False)[1][content]
    salt = seed.to_bytes(8, "big")
    draw = [int.from_bytes(blake2b(digest, digest_size=8, salt=salt).digest(), "big") for digest in digests]
    priority = np.full(unit.max(initial=0) + 1, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(priority, unit, np.array(draw, np.uint64))
    return unit, priority


def _choose(
    unit: np.ndarray, labels: np.ndarray, priority: np.ndarray, counts: np.ndarray, wanted: np.ndarray
) -> list[int]:
    """Units to hold out. Rare classes choose first, since a common class can do without any given group."""
    # The distinct (unit, class) pairs and how many images each has, by class and then by the units' draw.
    pairs, images = np.unique(np.stack([unit, labels]), axis=1, return_counts=True)
    members: dict[int, list[tuple[int, int]]] = {}
    for u, c, n in zip(*pairs.tolist(), images.tolist(), strict=True):
        members.setdefault(u, []).append((c, n))
    by_class: dict[int, list[tuple[int, int]]] = {}
    for i in np.lexsort((priority[pairs[0]], pairs[1])):
        by_class.setdefault(int(pairs[1, i]), []).append((int(pairs[0, i]), int(images[i])))

    left, missing, held = counts.copy(), wanted.copy(), set()

    def spares(u: int) -> bool:
        return all(left[c] > n for c, n in members[u])

    def hold(u: int) -> None:
        held.add(u)
        for c, n in members[u]:
            left[c] -= n
            missing[c] -= n

    for c in np.argsort(counts, kind="stable").tolist():
        for u, n in by_class.get(c, ()):
            if missing[c] <= 0:
                break
            if u not in held and n <= missing[c] and spares(u):
                hold(u)
        if wanted[c] and left[c] == counts[c]:
            fallback = [(n, place, u) for place, (u, n) in enumerate(by_class[c]) if spares(u)]
            if fallback:
                hold(min(fallback)[2])
    return sorted(held)


def _report(before: ImageTable, after: ImageTable, split: str, fraction: float, seed: int) -> str:
    counts, held = before.counts(), after.counts(split)
    lines = [
        f"{split}: {held.sum():,} of {counts.sum():,} training images held out, {100 * fraction:g} % of each class "
        f"(at least one, never the last), by content with seed {seed}"
    ]
    if one := np.flatnonzero(counts == 1).tolist():
        lines.append(f"  classes of 1 image: {len(one):,}, stay in train and cannot be measured ({_some(before, one)})")
    for n in (2, 3):
        if few := np.flatnonzero((counts == n) & (held > 0)).tolist():
            given = held[few].max()
            lines.append(f"  classes of {n} images: {len(few):,}, give {given} to {split} ({_some(before, few)})")
    if alone := np.flatnonzero((counts > 1) & (held == 0)).tolist():
        lines.append(
            f"  classes of images that belong together: {len(alone):,}, stay in train ({_some(before, alone)})"
        )
    return "\n".join(lines)


def _some(table: ImageTable, classes: Iterable[int]) -> str:
    names = [table.classes[c] for c in classes]
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
