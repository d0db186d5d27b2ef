"""How long a tail is, and how to cut one from balanced data.

A profile says how many images each class keeps, class 0 the most; `subset` says which. The published CIFAR-LT subset
(LDAM, and after it PaCo, BCL, GML) is the exponential profile with seed 0. Another draw of the subset moves accuracy by
a point or two, so its seed is an argument of its own and a run's seed never reaches it.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from longtail.data.table import SPLITS, ImageTable
from longtail.errors import LongtailError

PARETO_ALPHA = 6  # ImageNet-LT's


def statistics(counts: np.ndarray) -> dict[str, Any]:
    """What one says about a tail; classes without images are left out.

    Gini is 0 where all classes are equal and goes to 1; effective classes is the exponential of the entropy of the
    class shares, the number of equal classes that would be as hard to guess among.
    """
    present = np.sort(counts[counts > 0])[::-1]
    if not len(present):
        return {}
    n, share = len(present), present / present.sum()
    held = np.cumsum(share)
    tenth, third = -(-n // 10), max(round(0.3 * n), 1)
    return {
        "largest": int(present[0]),
        "smallest": int(present[-1]),
        "imbalance": float(present[0] / present[-1]),
        "gini": abs(float((n + 1 - 2 * np.arange(1, n + 1)) @ share / n)),
        "effective_classes": float(np.exp(-(share * np.log(share)).sum())),
        "head_classes": tenth,
        "head_share": float(held[tenth - 1]),
        "tail_classes": third,
        "tail_share": float(share[n - third :].sum()),
        "classes_holding_80_percent": int(np.searchsorted(held, 0.8 - 1e-12)) + 1,
        "classes_under_5": int((present < 5).sum()),
    }


def verdict(counts: np.ndarray) -> tuple[str, str]:
    """How long the tail is, in words, and the method to begin with."""
    imbalance = statistics(counts)["imbalance"]
    if imbalance < 3:
        return "nearly balanced", "cross_entropy"
    return "mildly imbalanced" if imbalance < 10 else "long-tailed" if imbalance < 100 else "very long-tailed", "gml"


def exponential(largest: int, num_classes: int, imbalance: float) -> np.ndarray:
    """n_c = floor(largest * imbalance^(-c / (C - 1)))."""
    # The published order of operations: a power computed otherwise may differ in its last bit and floor elsewhere.
    return np.array([int(largest * (1 / imbalance) ** (c / (num_classes - 1))) for c in range(num_classes)])


def step(largest: int, num_classes: int, imbalance: float) -> np.ndarray:
    """The first half of the classes keep all, the others largest / imbalance."""
    half = num_classes // 2
    return np.array([largest] * half + [int(largest / imbalance)] * (num_classes - half))


def pareto(largest: int, num_classes: int, imbalance: float) -> np.ndarray:
    """Quantiles u^(-1/alpha) - 1 of a Pareto distribution, stretched to run from largest to largest / imbalance.

    With ImageNet-LT's 1,000 classes from 1,280 to 5 it keeps 121,449 images in 404 / 456 / 140 many / medium / few
    classes; ImageNet-LT, a random draw, has 115,846 in 385 / 479 / 136.
    """
    u = np.arange(1, num_classes + 1) / (num_classes + 1)
    x = u ** (-1 / PARETO_ALPHA) - 1
    smallest = largest / imbalance
    return np.floor(smallest + (largest - smallest) * (x - x[-1]) / (x[0] - x[-1]) + 1e-9).astype(np.int64)


PROFILES = {"exp": exponential, "step": step, "pareto": pareto}


def subset(labels: np.ndarray, counts: np.ndarray, seed: int = 0) -> np.ndarray:
    """Rows kept, class after class: each class's rows shuffled, the first counts[c] of them.

    All classes are shuffled in full, in order, by one generator, since the published subset depends on that.
    """
    generator = np.random.RandomState(seed)  # legacy, but the published subset is defined by it
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels, minlength=len(counts)))[:-1])
    kept = []
    for rows, count in zip(by_class, counts, strict=True):
        generator.shuffle(rows)
        kept.append(rows[:count])
    return np.concatenate(kept)


def cut(table: ImageTable, imbalance: float, profile: str = "exp", seed: int = 0) -> ImageTable:
    """The table with its training split cut to a tail; the other splits stay as they are, after it."""
    kept = _kept(table, imbalance, profile, seed)
    return table.take(np.concatenate([kept, np.flatnonzero(table.split != SPLITS.index("train"))]))


def with_the_rest_as_test(table: ImageTable, imbalance: float, profile: str = "exp", seed: int = 0) -> ImageTable:
    """The same tail, and for a test split the training images that it leaves out: many of the rare classes, few or none
    of the frequent ones, so that balanced accuracy is what to read. The other splits are left out.
    """
    kept = _kept(table, imbalance, profile, seed)
    rest = np.setdiff1d(table.rows("train"), kept)
    if not len(rest):
        raise LongtailError(f"Imbalance {imbalance:g} leaves no training image of {table.name} out, to choose by.")
    split = np.repeat(np.array([SPLITS.index("train"), SPLITS.index("test")], np.uint8), [len(kept), len(rest)])
    return replace(table.take(np.concatenate([kept, rest])), split=split)


def _kept(table: ImageTable, imbalance: float, profile: str, seed: int) -> np.ndarray:
    """The training rows of the tail."""
    available = table.counts()
    if profile not in PROFILES:
        raise LongtailError(f"There is no profile {profile!r}; choose one of {', '.join(PROFILES)}.")
    if imbalance < 1 or table.num_classes < 2:
        raise LongtailError(
            f"A tail needs an imbalance of 1 or more and two classes, not {imbalance} and {table.num_classes}."
        )
    largest = int(available.min())
    counts = PROFILES[profile](largest, table.num_classes, imbalance)
    if counts.min() < 1:
        raise LongtailError(
            f"Imbalance {imbalance:g} leaves the rarest class of {table.name} without an image: "
            f"its smallest class has {largest}, so {largest} is the most it allows."
        )
    train = table.rows("train")
    return train[subset(table.labels[train], counts, seed)]
