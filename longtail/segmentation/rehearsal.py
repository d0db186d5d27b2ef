"""What a segmentation's recipe costs: two real steps of every stage, as `engine/rehearsal.py` measures them.

Where the images are not at hand, scenes of ADE20K's shape stand in: its classes and how many images there are, noise
for pictures, and masks of rectangles, frequent and rare. Nothing can be learned from them.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from longtail.data.generated import PHOTOGRAPH, NoiseStore
from longtail.data.table import SPLITS
from longtail.engine.device import Device
from longtail.engine.rehearsal import Cost, measured
from longtail.errors import LongtailError
from longtail.recipe import Recipe
from longtail.segmentation import model, stages
from longtail.segmentation.loader import IMAGENET_MEAN, IMAGENET_STD
from longtail.segmentation.masks import VOID, Coding, Masks
from longtail.segmentation.table import PixelTable

SHAPES = {"ade20k": (150, 20_210, 2_000)}  # classes, images to train on and to test on
NEXT = 0.96  # share of the pixels that a class has, over that of the class before it
GRID = (4, 5)  # rectangles of a mask


def rehearse(
    recipe: Recipe,
    table: PixelTable,
    device: Device,
    steps: int = 2,
    workers: int | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Cost]:
    """Weights cost the same whatever is in them, so none are fetched."""
    recipe = replace(recipe, stages=tuple(replace(stage, pretrained=False) for stage in recipe.stages))
    stages.check(recipe, table)
    pixels, costs = stages.pixels_of(recipe), []
    with tempfile.TemporaryDirectory() as temporary:
        for stage in recipe.stages:
            folder = Path(temporary) / stage.name
            folder.mkdir()
            torch.manual_seed(recipe.seed)
            method = stages.build_method(stage, pixels, table, folder.parent, device)
            loader = stages.training_images(stage, pixels, table, device, recipe.seed, workers, len(method.views))
            test = stages.whole_images(pixels, table, device, workers)
            costs.append(measured(stage, method, loader, test, table, device, folder, recipe.seed, steps))
            say(str(costs[-1]))
            model.save(folder, method, stage, pixels, table, IMAGENET_MEAN, IMAGENET_STD)
    return costs


def generated(name: str) -> PixelTable:
    if name not in SHAPES:
        raise LongtailError(f"nothing is known of the shape of {name!r}, so no images like it can be generated")
    classes, train, test = SHAPES[name]
    coding = Coding.of_lines([f"class {c}" for c in range(classes)], None, "void", name)
    rows = np.arange(train + test)
    split = np.where(rows < train, SPLITS.index("train"), SPLITS.index("test")).astype(np.uint8)
    share = NEXT ** np.arange(classes)
    counted = (share / share.sum() * train * PHOTOGRAPH[0] * PHOTOGRAPH[1]).astype(np.int64)
    masks = Masks(_Rectangles(len(rows), share / share.sum()), coding)  # type: ignore[arg-type]
    return PixelTable(NoiseStore(rows, name), masks, split, f"{name} (generated)", {"train": counted})


@dataclass(frozen=True, eq=False)
class _Rectangles:
    """Mask files that are made when they are read."""

    size: int
    share: np.ndarray  # [C]

    def __len__(self) -> int:
        return self.size

    def name(self, i: int) -> str:
        return f"mask {i}"

    def content(self, i: int) -> bytes:
        rng = np.random.default_rng(i)
        small = rng.choice(len(self.share), GRID, p=self.share).astype(np.uint8)
        small[rng.random(GRID) < 0.1] = VOID
        file = io.BytesIO()
        Image.fromarray(small).resize((PHOTOGRAPH[1], PHOTOGRAPH[0]), Image.Resampling.NEAREST).save(file, "PNG")
        return file.getvalue()
