"""The loaders of a run: training views for a stage, and the plain test images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from longtail.data.loader import MemoryLoader, Shard, pixel_tensor
from longtail.data.samplers import order
from longtail.data.table import ImageTable
from longtail.engine import dist
from longtail.engine.device import Device
from longtail.recipe import Stage

CIFAR = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalisation(source: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return CIFAR if source.startswith("cifar") else IMAGENET


class Inputs:
    """All loaders of a run read one tensor of pixels, which is put on the device once."""

    def __init__(self, table: ImageTable, source: str, device: Device, seed: int) -> None:
        self.table, self.device, self.seed = table, device, seed
        self.mean, self.std = normalisation(source)
        self.pixels = pixel_tensor(table, device.torch)
        self.labels = torch.from_numpy(table.labels.astype(np.int64))

    def train(self, stage: Stage, views: Sequence[str]) -> MemoryLoader:
        rows = self.table.rows("train")
        labels, classes = self.table.labels[rows], self.table.num_classes

        def epoch_order(epoch: int) -> np.ndarray:
            return rows[order(stage.sampler, labels, classes, self.seed, epoch, epochs=stage.epochs)]

        # A last, smaller batch is dropped as everyone does, unless it is all there is.
        shard = Shard(stage.batch_size, dist.rank(), dist.world(), drop_last=len(rows) >= stage.batch_size)
        return self._loader(epoch_order, shard, [stage.views.get(view, stage.augment) for view in views])

    def plain(self, split: str, batch_size: int = 500) -> MemoryLoader:
        """The split's images as they are, in order: for evaluation, full banks and class means."""
        rows = self.table.rows(split)
        shard = Shard(batch_size, dist.rank(), dist.world(), drop_last=False)
        return self._loader(lambda epoch: rows, shard, ["none"])

    def card(self) -> dict[str, Any]:
        """What a saved model has to say about its inputs."""
        return {
            "classes": list(self.table.classes),
            "counts": self.table.counts().tolist(),
            "mean": list(self.mean),
            "std": list(self.std),
            "image_size": list(self.pixels.shape[2:]),
        }

    def _loader(self, epoch_order, shard: Shard, augmentations: Sequence[str]) -> MemoryLoader:
        return MemoryLoader(
            self.pixels,
            self.labels,
            epoch_order,
            shard,
            views=augmentations,
            seed=self.seed,
            mean=self.mean,
            std=self.std,
            channels_last=self.device.channels_last,
        )
