"""The only file that knows ranks. Under `torchrun` every process runs the same command; alone, all of this is nothing.

Banks are never broadcast. Each step the ranks exchange the batch's keys, labels and ids (B x D numbers) in rank order
and every rank enqueues the same rows, so all copies stay identical.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


def start(device: torch.device) -> None:
    """Join the group that `torchrun` describes in the environment, if there is one."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


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


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_over_ranks(x: Tensor) -> Tensor:
    """In place; metrics are counted once because every rank counted its own share."""
    if dist.is_initialized():
        dist.all_reduce(x)
    return x


def wrap(method: nn.Module, device: torch.device) -> nn.Module:
    """Average gradients over ranks. Buffers are left alone: DDP would send a whole bank every step."""
    if world() == 1:
        return method
    ids = [device.index] if device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(method, device_ids=ids, broadcast_buffers=False)


def rows_of_all_ranks(shares: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """A function that gathers rows [B_r, ...] in rank order, where rank r holds `shares[r]` of them.

    The shares follow from the batch's size, so nothing needs to be asked, and uneven last batches are padded here.
    """

    def gather(*tensors: Tensor) -> tuple[Tensor, ...]:
        if world() == 1:
            return tensors
        gathered, longest = [], max(shares)
        for tensor in tensors:
            padded = tensor.new_zeros(longest, *tensor.shape[1:])
            padded[: len(tensor)] = tensor
            parts = [torch.empty_like(padded) for _ in shares]
            dist.all_gather(parts, padded)
            gathered.append(torch.cat([part[:size] for part, size in zip(parts, shares, strict=True)]))
        return tuple(gathered)

    return gather
