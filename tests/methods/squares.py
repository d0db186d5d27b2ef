"""Tiny images of coloured squares with a tail: enough to train on for a second."""

from collections.abc import Sequence

import numpy as np

from longtail.data.table import SPLITS, ImageTable, PixelStore


def squares(counts: Sequence[int] = (24, 12, 6, 1)) -> ImageTable:
    rng = np.random.default_rng(0)
    classes = np.arange(len(counts))
    labels = np.concatenate([classes.repeat(counts), classes.repeat(3)]).astype(np.int32)
    split = np.full(len(labels), SPLITS.index("test"), np.uint8)
    split[: sum(counts)] = SPLITS.index("train")
    colour = rng.integers(0, 256, (len(counts), 1, 1, 3))
    pixels = (colour[labels] + rng.integers(-30, 30, (len(labels), 8, 8, 3))).clip(0, 255).astype(np.uint8)
    return ImageTable(tuple("abcdefgh"[: len(counts)]), labels, split, PixelStore(pixels, "square"), name="squares")
