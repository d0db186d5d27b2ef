"""From a table's images to a stream of `Batch`: each image decoded once, V views made from it, nothing remembered.

Which samples an epoch holds is given by `order(epoch)`, one global list of row numbers; how they are augmented is a
function of (seed, epoch, place in that list, view). So a run resumed mid-epoch, split over other ranks or fed by
another number of workers sees the same pixels.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from longtail.data.batch_augment import View, named, normalise
from longtail.data.randomness import keys, uniforms
from longtail.data.table import ImageTable, PixelStore
from longtail.types import Batch

Order = Callable[[int], np.ndarray]  # epoch -> int64 row numbers, as many in every epoch


class Loader(Protocol):
    @property
    def images_per_epoch(self) -> int:
        """Of all ranks."""
        ...

    def __len__(self) -> int:
        """Steps in an epoch."""
        ...

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """This rank's batches of an epoch, from any step on."""
        ...

    def shares(self, step: int) -> tuple[int, ...]:
        """How many images of a step each rank holds."""
        ...


@dataclass(frozen=True)
class Shard:
    """One rank's share of every total batch: a contiguous slice, sizes differing by one image at the most."""

    batch_size: int  # of all ranks together
    rank: int = 0
    world: int = 1
    drop_last: bool = True

    def steps(self, length: int) -> int:
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def shares(self, length: int, step: int) -> tuple[int, ...]:
        size = min(self.batch_size, length - step * self.batch_size)
        return tuple(size * (rank + 1) // self.world - size * rank // self.world for rank in range(self.world))

    def positions(self, length: int, step: int) -> slice:
        """Where this rank's images are in the epoch's order."""
        shares = self.shares(length, step)
        start = step * self.batch_size + sum(shares[: self.rank])
        return slice(start, start + shares[self.rank])


def pixel_tensor(table: ImageTable, device: torch.device | str = "cpu") -> Tensor:
    """All images of an in-memory table as uint8 [N, 3, H, W]."""
    assert isinstance(table.images, PixelStore), "decode the table with `in_memory` first"
    return torch.from_numpy(table.images.pixels).permute(0, 3, 1, 2).contiguous().to(device)


def draw(
    views: Sequence[View], seed: int, epoch: int, positions: Tensor, rows: Tensor | None = None, pictures: int = 0
) -> tuple[Tensor, ...]:
    """Each view's random numbers [B, draws] for the samples at these places of the epoch's order.

    With `pictures` the first view is one of so many that each row has, in turn over the epochs: it can be made again.
    """
    numbers = [uniforms(keys(seed, epoch, positions, number), view.draws) for number, view in enumerate(views)]
    if pictures:
        assert rows is not None
        numbers[0] = uniforms(keys(seed, epoch % pictures, rows, 0), views[0].draws)
    return tuple(numbers)


class MemoryLoader:
    """Small images: all are one uint8 tensor on the device, a batch is one gather, views are made where they lie.

    For evaluation: `views=("none",)`, `drop_last=False` and an order that is the same rows in every epoch.
    """

    def __init__(
        self,
        pixels: Tensor,  # uint8 [N, 3, H, W], by row number
        labels: Tensor,  # int64 [N]
        order: Order,
        shard: Shard,
        *,
        views: Sequence[str],
        seed: int,
        mean: Sequence[float],
        std: Sequence[float],
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        pictures: int = 0,  # see `draw`
    ):
        self.pixels, self.labels = pixels, labels.to(pixels.device)
        self.order, self.shard, self.seed = order, shard, seed
        self.views, self.pictures = named(views), pictures
        self.mean, self.std, self.dtype, self.channels_last = mean, std, dtype, channels_last
        self.length = len(order(0))

    @property
    def images_per_epoch(self) -> int:
        return min(len(self) * self.shard.batch_size, self.length)

    def __len__(self) -> int:
        return self.shard.steps(self.length)

    def shares(self, step: int) -> tuple[int, ...]:
        return self.shard.shares(self.length, step)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        rows = torch.as_tensor(self.order(epoch))
        assert len(rows) == self.length
        for step in range(start_step, len(self)):
            here = self.shard.positions(self.length, step)
            yield self._batch(rows[here], epoch, torch.arange(here.start, here.stop))

    def _batch(self, rows: Tensor, epoch: int, positions: Tensor) -> Batch:
        ids = rows.to(self.pixels.device, non_blocking=True)
        images = self.pixels.index_select(0, ids)
        numbers = draw(self.views, self.seed, epoch, positions, rows, self.pictures)
        views = [view(images, u) for view, u in zip(self.views, numbers, strict=True)]
        floats = tuple(normalise(view, self.mean, self.std, self.dtype, self.channels_last) for view in views)
        return Batch(floats, self.labels.index_select(0, ids), ids, epoch % self.pictures if self.pictures else None)
