"""Photographs from files: decoded once by worker processes, brought to size once a view, augmented in batches.

The workers keep no state and draw nothing: a request carries its rows and random numbers, so how many workers there are
changes no bit.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from longtail.data.augment import ImageFormat, centred, cropped
from longtail.data.batch_augment import View, named, normalise
from longtail.data.batch_crop import CROP_DRAWS, crop_boxes
from longtail.data.decode import BadImage
from longtail.data.loader import Order, Shard, draw
from longtail.data.table import ImageStore, ImageTable
from longtail.data.workers import leave_signals_to_the_run, starting_workers
from longtail.types import Batch

OnBadImage = Literal["stop", "skip", "replace"]


class Request(NamedTuple):
    rows: np.ndarray  # int64 [B]
    numbers: tuple[Tensor, ...]  # of each view, float32 [B, draws]


class Decoded(NamedTuple):
    rows: Tensor  # int64 [B]
    numbers: tuple[Tensor, ...]
    views: tuple[Tensor, ...]  # uint8 [B, 3, size, size]
    bad: dict[int, str]  # row -> what is wrong with it


class Decoder:
    """What a worker does with a request. `augment`: finish the views too, where the processor has to do it anyway."""

    def __init__(
        self, images: ImageStore, format: ImageFormat, views: Sequence[str], on_bad_image: OnBadImage, augment: bool
    ):
        self.images, self.format, self.on_bad_image, self.augment = images, format, on_bad_image, augment
        self.views = tuple(views)  # by name, which any way of starting a process can carry over

    def __getitem__(self, request: Request) -> Decoded:
        views = named(self.views)
        good: list[int] = []
        sized: list[list[Tensor]] = []  # of each good image, of each view
        bad: dict[int, str] = {}
        for place, row in enumerate(request.rows.tolist()):
            try:
                image = self.images.decode(row)
            except BadImage as error:
                bad[row] = str(error)
                if self.on_bad_image == "stop":
                    break
            else:
                good.append(place)
                sized.append(self._size(image, views, [u[place : place + 1] for u in request.numbers]))
        which = np.arange(len(good))
        if self.on_bad_image == "replace" and good:
            which = np.searchsorted(good, np.arange(len(request.rows))).clip(max=len(good) - 1)  # the next good one
        kept = np.array(good, dtype=np.int64)[which]
        numbers = tuple(u[kept] for u in request.numbers)
        nothing = torch.empty(0, 3, self.format.size, self.format.size, dtype=torch.uint8)
        stacks = [
            torch.stack([sized[i][v] for i in which]).contiguous() if good else nothing for v in range(len(views))
        ]
        if self.augment:
            stacks = [view.after_crop(images, u) for view, images, u in zip(views, stacks, numbers, strict=True)]
        return Decoded(torch.from_numpy(request.rows[kept]), numbers, tuple(stacks), bad)

    def _size(self, image: np.ndarray, views: Sequence[View], numbers: list[Tensor]) -> list[Tensor]:
        whole = None if all(view.crop_scale for view in views) else centred(image, self.format)
        sized = []
        for view, u in zip(views, numbers, strict=True):
            if view.crop_scale:
                box = crop_boxes(u[:, :CROP_DRAWS], image.shape[0], image.shape[1], view.crop_scale)[0].tolist()
                sized.append(cropped(image, box, self.format.size))
            else:
                sized.append(whole)
        return sized


class _Queue:
    """DataLoader's workers outlive an epoch if its sampler does; this one is told what is next."""

    requests: Iterator[Request] = iter(())

    def __iter__(self) -> Iterator[Request]:
        return self.requests


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded


class DiskLoader:
    """The same stream as `MemoryLoader`'s from images that do not fit in memory or differ in size.

    What becomes of an image that cannot be decoded: "stop" ends the run with its name; "skip" leaves it out, as an
    evaluation wants; "replace" puts the next image of the batch in its place, so that batches of several ranks keep
    their sizes, as a training wants. The latter two are collected in `bad`, row -> reason.
    """

    def __init__(
        self,
        table: ImageTable,
        order: Order,
        shard: Shard,
        *,
        views: Sequence[str],
        seed: int,
        format: ImageFormat,
        workers: int,
        device: torch.device | str = "cpu",
        on_bad_image: OnBadImage = "stop",
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        pictures: int = 0,  # see `loader.draw`
    ):
        self.labels = torch.from_numpy(table.labels.astype(np.int64))
        self.order, self.shard, self.seed, self.format = order, shard, seed, format
        self.views, self.device = named(views), torch.device(device)
        self.dtype, self.channels_last, self.on_bad_image = dtype, channels_last, on_bad_image
        self.length, self.pictures = len(order(0)), pictures
        self.bad: dict[int, str] = {}
        self.augment_here = self.device.type != "cpu"
        self.queue = _Queue()
        self.decoded = DataLoader(
            Decoder(table.images, format, views, on_bad_image, not self.augment_here),  # type: ignore[arg-type]
            sampler=self.queue,  # type: ignore[arg-type]
            batch_size=None,
            num_workers=workers,
            collate_fn=_as_it_is,  # type: ignore[arg-type]
            pin_memory=self.device.type == "cuda",
            persistent_workers=workers > 0,
            worker_init_fn=leave_signals_to_the_run,
            generator=torch.Generator(),  # for the seeds it gives its workers; else it would draw from everybody's
        )

    @property
    def images_per_epoch(self) -> int:
        return min(len(self) * self.shard.batch_size, self.length)

    def __len__(self) -> int:
        return self.shard.steps(self.length)

    def shares(self, step: int) -> tuple[int, ...]:
        return self.shard.shares(self.length, step)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        self.queue.requests = self._requests(epoch, start_step)
        with starting_workers():
            answers = iter(self.decoded)
        for decoded in answers:
            self.bad |= decoded.bad
            none_left = len(decoded.rows) == 0
            if decoded.bad and (self.on_bad_image == "stop" or (self.on_bad_image == "replace" and none_left)):
                raise BadImage(next(iter(decoded.bad.values())))
            if not (decoded.bad and none_left):
                yield self._batch(decoded, epoch % self.pictures if self.pictures else None)

    def _requests(self, epoch: int, start_step: int) -> Iterator[Request]:
        rows = np.asarray(self.order(epoch))
        assert len(rows) == self.length
        for step in range(start_step, len(self)):
            here = self.shard.positions(self.length, step)
            positions = torch.arange(here.start, here.stop)
            numbers = draw(self.views, self.seed, epoch, positions, torch.from_numpy(rows[here]), self.pictures)
            yield Request(rows[here], numbers)

    def _batch(self, decoded: Decoded, picture: int | None) -> Batch:
        views = [view.to(self.device, non_blocking=True) for view in decoded.views]
        if self.augment_here:
            views = [view.after_crop(x, u) for view, x, u in zip(self.views, views, decoded.numbers, strict=True)]
        mean, std = self.format.mean, self.format.std
        floats = tuple(normalise(view, mean, std, self.dtype, self.channels_last) for view in views)
        labels = self.labels[decoded.rows].to(self.device, non_blocking=True)
        return Batch(floats, labels, decoded.rows.to(self.device, non_blocking=True), picture)
