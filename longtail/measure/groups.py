"""Many, medium and few: the classes split by how many training images they have."""

from dataclasses import dataclass

import numpy as np

NAMES = ("many", "medium", "few")


@dataclass(frozen=True)
class Groups:
    """Which of NAMES each class belongs to, and the rule in words."""

    codes: np.ndarray  # [C] int64, index into NAMES
    bounds: tuple[str, str, str]  # of the train count, as printed: "> 100", "20 to 100", "< 20"

    def name(self, class_index: int) -> str:
        return NAMES[self.codes[class_index]]

    def __str__(self) -> str:
        sizes = np.bincount(self.codes, minlength=len(NAMES))
        parts = zip(NAMES, self.bounds, sizes, strict=True)
        return " | ".join(f"{name} ({bound}): {size}" for name, bound, size in parts) + " classes"


def by_threshold(train_counts: np.ndarray) -> Groups:
    """The benchmarks' rule: many has more than 100 training images, few has under 20, medium the rest (20 to 100)."""
    counts = np.asarray(train_counts)
    codes = np.where(counts > 100, 0, np.where(counts >= 20, 1, 2))
    return Groups(codes, ("> 100", "20 to 100", "< 20"))


def by_terciles(train_counts: np.ndarray) -> Groups:
    """One's own data: a third of the classes each, as nearly as classes of equal count stay together.

    A block of equal counts goes where its middle rank falls, so a data set of two sizes is many and few, and a balanced
    one is all medium.

    >>> print(by_terciles(np.array([3000, 900, 800, 40, 30, 12])))
    many (900 to 3000): 2 | medium (40 to 800): 2 | few (12 to 30): 2 classes
    """
    counts = np.asarray(train_counts)
    _, block, sizes = np.unique(counts, return_inverse=True, return_counts=True)
    middle = np.cumsum(sizes) - sizes / 2  # of each block, in classes from the smallest
    codes = 2 - np.floor(middle[block] * 3 / len(counts)).astype(np.int64)
    spans = [counts[codes == code] for code in range(len(NAMES))]
    many, medium, few = (_range(span) for span in spans)
    return Groups(codes, (many, medium, few))


def _range(counts: np.ndarray) -> str:
    if not len(counts):
        return "none"
    low, high = counts.min(), counts.max()
    return f"{low}" if low == high else f"{low} to {high}"
