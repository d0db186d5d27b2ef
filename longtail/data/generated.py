"""A benchmark's shape without its images: its classes, its counts and its tail, and noise for pictures.

For trying out what is heavy (`longtail reproduce NAME --dry-run`) where the images are not at hand: everything but the
pixels is as it would be. Nothing can be learned from it.
"""

from __future__ import annotations

import numpy as np

from longtail.data import tails
from longtail.data.listed import LISTED
from longtail.data.table import SPLITS, ImageTable, PixelStore
from longtail.errors import LongtailError

PHOTOGRAPH = (256, 320)  # height and width
IMAGENET = (1000, 1_281_167, 1300, 732)  # classes, images, largest and smallest class
TEST_IMAGES = 256


class NoiseStore:
    """Photographs of nothing, made when they are asked for; the same row is always the same picture."""

    def __init__(self, rows: np.ndarray, name: str) -> None:
        self.rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self.rows)

    def decode(self, i: int) -> np.ndarray:
        blocks = np.random.default_rng(self.rows[i]).integers(0, 256, (PHOTOGRAPH[0] // 8, PHOTOGRAPH[1] // 8, 3))
        return blocks.astype(np.uint8).repeat(8, axis=0).repeat(8, axis=1)

    def content(self, i: int) -> bytes:
        return self.rows[i].tobytes()

    def name(self, i: int) -> str:
        return f"{self._name} picture {self.rows[i]}"

    def take(self, rows: np.ndarray) -> NoiseStore:
        return NoiseStore(self.rows[rows], self._name)


def generated(name: str, imbalance: float | None = None, subset_seed: int = 0) -> ImageTable:
    if name.startswith("cifar"):
        table = _table(
            np.full(10 if name == "cifar10-lt" else 100, 50_000 // (10 if name == "cifar10-lt" else 100)), name
        )
        pixels = np.random.default_rng(0).integers(0, 256, (len(table), 32, 32, 3), dtype=np.uint8)
        small = ImageTable(table.classes, table.labels, table.split, PixelStore(pixels, "noise"), name=table.name)
        return small if imbalance is None else tails.cut(small, imbalance, "exp", subset_seed)
    if name in LISTED:
        shape = LISTED[name]
        return _table(counts_like(shape.classes, shape.images["train"], shape.largest, shape.smallest), name)
    if name == "imagenet":
        return _table(counts_like(*IMAGENET), name)
    raise LongtailError(f"nothing is known of the shape of {name!r}, so no data like it can be generated")


def counts_like(classes: int, images: int, largest: int, smallest: int) -> np.ndarray:
    """[C] falling counts that sum to `images`: n_c = smallest + (largest - smallest) (1 - c/(C-1))^a."""
    assert classes * smallest <= images <= classes * largest
    left = 1 - np.arange(classes) / (classes - 1)
    low, high = 0.0, 1e3
    for _ in range(100):
        power = (low + high) / 2
        counts = np.floor(smallest + (largest - smallest) * left**power).astype(int)
        low, high = (power, high) if counts.sum() > images else (low, power)
    counts = np.floor(smallest + (largest - smallest) * left**high).astype(int)
    missing = images - counts.sum()  # what rounding down has left over: one more for the classes behind the first
    counts[1 : 1 + missing] += 1
    return counts


def _table(counts: np.ndarray, name: str) -> ImageTable:
    labels = np.repeat(np.arange(len(counts)), counts)
    test = np.arange(TEST_IMAGES) % len(counts)
    split = np.repeat([SPLITS.index("train"), SPLITS.index("test")], [len(labels), len(test)]).astype(np.uint8)
    both = np.concatenate([labels, test]).astype(np.int32)
    classes = tuple(f"class {c}" for c in range(len(counts)))
    return ImageTable(classes, both, split, NoiseStore(np.arange(len(both)), name), name=name)
