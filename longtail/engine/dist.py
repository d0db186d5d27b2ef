"""The only file that knows ranks. Under `torchrun` every process runs the same command; alone, all of this is nothing.

Banks are never broadcast. Each step the ranks exchange the batch's keys, labels and ids (B x D numbers) in rank order
and every rank enqueues the same rows, so all copies stay identical.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm

from longtail.errors import LongtailError
from longtail.ranks import ALONE, Ranks


def start(device: torch.device) -> None:
    """Join the group that `torchrun` describes in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        # On GPUs two transports: what hosts tell each other must not wait for the devices.
        transports = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
            dist.init_process_group(transports)
        else:
            store, number, size = next(rendezvous("env://"))
            store = of_this_attempt(store, number, size)
            dist.init_process_group(transports, store=store, rank=number, world_size=size)


def of_this_attempt(store: Store, number: int, size: int, patience: float = 1800.0) -> Store:
    """A part of the store that no earlier attempt has written to.

    torchrun may keep one store over all restarts, and in it the addresses of processes that have died: whoever reads
    one before it is replaced waits in vain. So rank 0 draws a name for this attempt, answers everybody who asks for
    it, and goes on when all have said it back. What an earlier attempt asked or said is not mistaken for it, because
    every process asks under a name of its own.
    """
    mine, until = uuid.uuid4().hex, time.monotonic() + patience

    def read(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    name = mine if number == 0 else ""
    missing = set(range(1, size)) if number == 0 else {0}
    if number:
        store.set(f"longtail/asks/{number}", mine)
    while missing:
        for other in sorted(missing):
            if number == 0:
                store.set(f"longtail/told/{other}", f"{read(f'longtail/asks/{other}')} {name}")
                met = read(f"longtail/says/{other}") == name
            else:
                asked, _, name = read(f"longtail/told/{number}").partition(" ")
                met = asked == mine
            if met:
                missing.discard(other)
        if missing and time.monotonic() > until:
            raise LongtailError(
                f"rank {number} waited {patience / 60:.0f} minutes for rank {min(missing)}: see its output"
            )
        time.sleep(0.02)
    if number:
        store.set(f"longtail/says/{number}", name)
    return PrefixStore(name, store)


def stop() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    return rank() == 0


def largest(number: int) -> int:
    """The largest number any rank says, from host to host: what all have to decide alike, at the same step."""
    if world() == 1:
        return number
    told = torch.tensor(number)
    dist.all_reduce(told, dist.ReduceOp.MAX)
    return int(told)


def barrier() -> None:
    """Everybody is here. Where one rank has died, an error on all others."""
    largest(0)


def sum_over_ranks(x: Tensor) -> Tensor:
    """In place; metrics are counted once because every rank counted its own share."""
    if world() > 1:
        dist.all_reduce(x)
    return x


def gather(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """[n_r, ...] of every rank, in their order. Uneven shares travel padded to the largest."""
    padded = rows.new_zeros(max(sizes), *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def of_each_rank(x: Tensor) -> Tensor:
    """[world, ...]: what every rank has under this name, all of one shape."""
    return gather(x[None], [1] * world()) if world() > 1 else x[None]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sequence[int]) -> Tensor:
        ctx.sizes = list(sizes)
        return gather(rows, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)  # every rank's loss has used the row
        return grad.split(ctx.sizes)[rank()], None


class _Group:
    """The `Ranks` of a run under torch.distributed."""

    @property
    def rank(self) -> int:
        return rank()

    @property
    def world(self) -> int:
        return world()

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        if sizes is None:
            sizes = of_each_rank(torch.tensor(len(rows))).tolist()
        return _Gather.apply(rows, sizes)  # type: ignore[return-value]


def ranks() -> Ranks:
    return _Group() if world() > 1 else ALONE


def rows_of_all_ranks(shares: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """A function that gathers a batch's tensors, of which rank r holds `shares[r]` rows.

    The shares follow from the batch's size, so nothing needs to be asked.
    """
    if world() == 1:
        return lambda *tensors: tensors
    return lambda *tensors: tuple(gather(tensor, shares) for tensor in tensors)


def wrap(method: nn.Module, device: torch.device, *, some_unused: bool, sync_batchnorm: bool) -> nn.Module:
    """Average gradients over ranks. Buffers are left alone: DDP would send a whole bank every step.

    `some_unused`: a step may leave parameters without gradient, which DDP has to look for (it costs a walk through the
    graph every step).
    """
    if world() == 1:
        return method
    if sync_batchnorm:
        if device.type != "cuda":
            raise LongtailError("batch statistics can be synchronised between GPUs only: leave sync_batchnorm off")
        synchronise_batchnorm(method)
    ids = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions of torch prefer another name for the same
        return nn.parallel.DistributedDataParallel(
            method, device_ids=ids, broadcast_buffers=False, find_unused_parameters=some_unused
        )


def synchronise_batchnorm(method: nn.Module) -> None:
    """Of the backbones; projections see over the ranks by themselves, and bank rows are the same everywhere."""
    from timm.layers.norm_act import convert_sync_batchnorm  # knows timm's own norms too

    for owner in (method, getattr(method, "key_encoder", None)):
        if owner is not None:
            owner.backbone = convert_sync_batchnorm(owner.backbone)


def averaging(model: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """Of several backward passes that add up, only the last one has to average."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not wanted:
        return model.no_sync()
    return nullcontext()


def running_statistics(method: nn.Module) -> list[Tensor]:
    """Those of the BatchNorms that are learning; unless synchronised, every rank has its own."""
    norms = [m for m in method.modules() if isinstance(m, _BatchNorm) and m.training and m.track_running_stats]
    return [x for norm in norms for x in (norm.running_mean, norm.running_var) if x is not None]


@torch.no_grad()
def average_running_statistics(method: nn.Module) -> None:
    """So that the model that is evaluated, and the one that is saved, are the same on every rank."""
    statistics = running_statistics(method) if world() > 1 else []
    if statistics:
        mean = sum_over_ranks(torch.cat([x.flatten() for x in statistics])) / world()
        for x, new in zip(statistics, mean.split([x.numel() for x in statistics]), strict=True):
            x.copy_(new.view_as(x))
