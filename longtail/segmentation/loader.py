"""From a pixel table to a stream of `Batch`: views [B, 3, H, W], labels [B, H, W], ids the images' rows.

All views of a batch are one and the same tensor: labels belong to places, so whoever reads a batch, student or key
encoder, sees the same crop.

As for images, what an epoch holds and how it is augmented is a function of (seed, epoch, place in its order), so that
a resumed run, other ranks and other numbers of workers see the same pixels. Labels are IGNORE where a pixel is void or
outside its image; torch's cross-entropy leaves that value out by default.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from longtail.data.batch_augment import normalise
from longtail.data.decode import BadImage
from longtail.data.loader import Order, Shard
from longtail.data.randomness import keys, uniforms
from longtail.data.samplers import order as permutation
from longtail.data.workers import leave_signals_to_the_run, starting_workers
from longtail.segmentation.augment import Crops, Whole
from longtail.segmentation.masks import OUTSIDE
from longtail.segmentation.table import PixelTable
from longtail.types import Batch

IGNORE = -100
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def endless(rows: np.ndarray, per_epoch: int, seed: int) -> Order:
    """Pass after pass over `rows`, each in an order of its own, cut into epochs of any length."""

    def order(epoch: int) -> np.ndarray:
        first, size = epoch * per_epoch, len(rows)
        passes = range(first // size, (first + per_epoch - 1) // size + 1)
        stream = [permutation("instance", np.zeros(size, np.int64), 1, seed, number) for number in passes]
        start = first - passes[0] * size
        return rows[np.concatenate(stream)[start : start + per_epoch]]

    return order


class _Request(NamedTuple):
    rows: np.ndarray  # int64 [B]
    u: Tensor  # [B, draws]


class _Pairs:
    """What a worker does with a request."""

    def __init__(self, table: PixelTable, view: Crops | Whole):
        self.table, self.view = table, view

    def __getitem__(self, request: _Request) -> tuple[Tensor, Tensor, Tensor] | str:
        """A sentence where an image is bad: an exception would leave a worker wrapped in its traceback."""
        try:
            pairs = [self.view.cut(*self.table.pair(int(row)), u.numpy()) for row, u in zip(*request, strict=True)]
        except BadImage as error:
            return str(error)
        images, masks = (torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))
        images = self.view.colour(images.permute(0, 3, 1, 2).contiguous(), request.u)
        return images, masks, torch.from_numpy(request.rows)


class PixelLoader:
    def __init__(
        self,
        table: PixelTable,
        order: Order,
        shard: Shard,
        view: Crops | Whole,
        *,
        views: int = 1,
        seed: int = 0,
        device: torch.device | str = "cpu",
        workers: int = 0,
        channels_last: bool = False,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ):
        self.pairs, self.order, self.shard, self.view, self.seed = _Pairs(table, view), order, shard, view, seed
        self.device, self.workers, self.channels_last = torch.device(device), workers, channels_last
        self.mean, self.std, self.views = mean, std, views
        self.length = len(order(0))

    @property
    def images_per_epoch(self) -> int:
        return min(len(self) * self.shard.batch_size, self.length)

    def __len__(self) -> int:
        return self.shard.steps(self.length)

    def shares(self, step: int) -> tuple[int, ...]:
        return self.shard.shares(self.length, step)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        requests = list(self._requests(epoch, start_step))
        pinned = self.device.type == "cuda"
        loader = DataLoader(
            self.pairs,  # type: ignore[arg-type]
            sampler=requests,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=self.workers,
            pin_memory=pinned,
            worker_init_fn=leave_signals_to_the_run,
            generator=torch.Generator(),  # for the seeds it gives its workers; else it would draw from everybody's
        )
        with starting_workers():
            answers = iter(loader)
        for answer in answers:
            if isinstance(answer, str):
                raise BadImage(answer)
            yield self._batch(*(part.to(self.device, non_blocking=pinned) for part in answer))

    def _requests(self, epoch: int, start_step: int) -> Iterator[_Request]:
        rows = self.order(epoch)
        for step in range(start_step, len(self)):
            here = self.shard.positions(self.length, step)
            if here.stop > here.start:  # an evaluation's last step may have nothing for this rank
                at = torch.arange(here.start, here.stop)
                yield _Request(rows[here], uniforms(keys(self.seed, epoch, at), self.view.draws))

    def _batch(self, images: Tensor, masks: Tensor, rows: Tensor) -> Batch:
        floats = normalise(images, self.mean, self.std, channels_last=self.channels_last)
        if images.shape[2:] == masks.shape[1:]:  # an image to answer may have been scaled, but has no outside
            floats.masked_fill_((masks == OUTSIDE)[:, None], 0)
        labels = masks.to(torch.int64)
        return Batch((floats,) * self.views, labels.masked_fill_(labels >= OUTSIDE, IGNORE), rows)
