"""The loaders of a run: a stage's training views, and a split's images as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from longtail.data.augment import ImageFormat
from longtail.data.benchmarks import is_benchmark
from longtail.data.disk_loader import DiskLoader
from longtail.data.loader import Loader, MemoryLoader, Shard, pixel_tensor
from longtail.data.samplers import order
from longtail.data.table import ImageTable, PixelStore
from longtail.engine import dist
from longtail.engine.device import Device
from longtail.errors import LongtailError
from longtail.models.backbone import is_clip, is_timm
from longtail.recipe import Data, Recipe, Stage

INAT_MEAN, INAT_STD = (0.466, 0.471, 0.380), (0.195, 0.194, 0.192)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


class Inputs:
    """Small images of one size live in one tensor on the device; photographs are read by worker processes."""

    def __init__(self, table: ImageTable, data: Data, format: ImageFormat, device: Device, seed: int, workers: int = 0):
        self.table, self.format, self.device, self.seed, self.workers = table, format, device, seed, workers
        self.on_bad_image = data.on_bad_image
        self.bad: dict[int, str] = {}  # what the loaders skipped so far: row -> reason
        self.pixels = pixel_tensor(table, device.torch) if isinstance(table.images, PixelStore) else None
        self.labels = torch.from_numpy(table.labels.astype(np.int64))
        # What is reported: the test split, or where there is none the validation split.
        self.reported = "test" if len(table.rows("test")) else "val"

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        table: ImageTable,
        device: Device,
        workers: int | None = None,
        format: ImageFormat | None = None,  # of a trained model, as its card says
    ) -> Inputs:
        """All stages see images as the answering one wants them, so that a teacher sees what its student sees."""
        workers = max(1, (os.cpu_count() or 2) - 1) if workers is None else workers
        return cls(table, recipe.data, format or image_format(recipe, table), device, recipe.seed, workers)

    def train(self, stage: Stage, views: Sequence[str]) -> Loader:
        rows = self.table.rows("train")
        labels, classes = self.table.labels[rows], self.table.num_classes

        def epoch_order(epoch: int) -> np.ndarray:
            return rows[order(stage.sampler, labels, classes, self.seed, epoch, epochs=stage.epochs)]

        # A last, smaller batch is dropped as everyone does, unless it is all there is.
        shard = Shard(stage.batch_size, dist.rank(), dist.world(), drop_last=len(rows) >= stage.batch_size)
        if (size := min(stage.batch_size, len(rows))) < dist.world() * stage.accumulate:
            raise LongtailError(
                f"a batch of {size} images cannot be shared by {dist.world()} ranks x {stage.accumulate} steps: "
                "raise --batch-size"
            )
        augmentations = [stage.views.get(view, stage.augment) for view in views]
        return self._loader(epoch_order, shard, augmentations, "replace", stage.cached_views)

    def pictures(self, stage: Stage) -> Loader:
        """Each image's few class views, as the training will see them: epoch i is the i-th of every image."""
        rows = self.table.rows("train")
        shard = Shard(500 if self.pixels is not None else 64, dist.rank(), dist.world(), drop_last=False)
        augmentation = stage.views.get("class", stage.augment)
        return self._loader(lambda epoch: rows, shard, [augmentation], "skip", stage.cached_views)

    def plain(self, split: str, *, whole: bool = False) -> Loader:
        """For evaluation, full banks and class means: in order, not augmented; this rank's share, or `whole`."""
        rows = self.table.rows(split)
        batch_size = 500 if self.pixels is not None else 64
        shard = Shard(batch_size, drop_last=False)
        if not whole:
            shard = replace(shard, rank=dist.rank(), world=dist.world())
        return self._loader(lambda epoch: rows, shard, ["none"], "skip")

    def card(self) -> dict[str, Any]:
        """What a saved model has to say about its inputs."""
        size = self.format.size if self.pixels is None else list(self.pixels.shape[2:])
        return {
            "classes": list(self.table.classes),
            "counts": self.table.counts().tolist(),
            "image_size": [size, size] if isinstance(size, int) else size,
            "mean": list(self.format.mean),
            "std": list(self.format.std),
            "interpolation": self.format.interpolation,
            "crop_pct": 1.0 if self.pixels is not None else self.format.crop_pct,
            "resize": self.pixels is None,  # images in memory were trained on as they are
        }

    def _loader(
        self,
        epoch_order: Callable[[int], np.ndarray],
        shard: Shard,
        augmentations: Sequence[str],
        if_bad: str,
        pictures: int = 0,
    ) -> Loader:
        common: dict[str, Any] = {"views": augmentations, "seed": self.seed, "channels_last": self.device.channels_last}
        common["pictures"] = pictures
        if self.pixels is not None:
            common |= {"mean": self.format.mean, "std": self.format.std}
            return MemoryLoader(self.pixels, self.labels, epoch_order, shard, **common)
        loader = DiskLoader(
            self.table,
            epoch_order,
            shard,
            format=self.format,
            workers=self.workers,
            device=self.device.torch,
            on_bad_image="stop" if self.on_bad_image == "stop" else if_bad,  # type: ignore[arg-type]
            **common,
        )
        loader.bad = self.bad
        return loader


def image_format(recipe: Recipe, table: ImageTable) -> ImageFormat:
    """Size, mean and deviation: a CLIP's own, CIFAR's own, those of a timm model's weights, else ImageNet's."""
    stage = recipe.stages[-1]
    model, from_scratch = stage.model, not (stage.pretrained or stage.weights)
    if is_clip(model):
        from longtail.vision_language.clip import image_format as clip_format

        return clip_format(model)
    if is_benchmark(recipe.data.source, "cifar"):
        return ImageFormat(32, CIFAR_MEAN, CIFAR_STD)
    if is_timm(model):
        import timm

        config = timm.get_pretrained_cfg(model)
        if config is not None:
            theirs = ImageFormat.of_timm(config.to_dict())
            if from_scratch and recipe.data.source == "inat18":
                return ImageFormat(theirs.size, INAT_MEAN, INAT_STD)
            return ImageFormat(theirs.size) if from_scratch else theirs
    return ImageFormat(64) if not isinstance(table.images, PixelStore) else ImageFormat()
