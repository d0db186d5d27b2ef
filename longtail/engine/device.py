"""Where the arithmetic happens and in which precision, decided once and printed."""

from __future__ import annotations

import ctypes
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from longtail.engine import dist
from longtail.errors import LongtailError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>


@dataclass(frozen=True)
class Device:
    torch: torch.device
    dtype: torch.dtype  # of activations; weights stay float32
    channels_last: bool

    def autocast(self) -> AbstractContextManager:
        return torch.autocast(self.torch.type, self.dtype, enabled=self.dtype != torch.float32)

    def seed(self, number: int) -> None:
        """Of the generators that layers draw from (dropout)."""
        torch.default_generator.manual_seed(number)
        if self.torch.type != "cpu":
            getattr(torch, self.torch.type).manual_seed(number)

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def __str__(self) -> str:
        layout = ", channels last" if self.channels_last else ""
        return f"{self.torch.type}, {str(self.dtype).removeprefix('torch.')}{layout}"


def choose(precision: str = "auto", device: str = "auto") -> Device:
    """CUDA, then MPS, then CPU. bfloat16 where the processor has instructions for it, else float32."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        kind = torch.device(device)
    except RuntimeError:
        kind = None
    if kind is None or kind.type not in ("cpu", "cuda", "mps"):
        raise LongtailError(f"--device is auto, cpu, cuda or mps, not {device!r}")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}[kind.type]
    if (kind.index or 0) >= there:
        raise LongtailError(f"this machine has no device {device!r} that torch can use: leave --device out")
    if kind.type == "cuda":
        kind = torch.device("cuda", dist.local_rank() if kind.index is None else kind.index)
        torch.cuda.set_device(kind)
    if precision not in ("auto", "float32", "bfloat16"):
        raise LongtailError(f"precision is auto, float32 or bfloat16, not {precision!r}")
    if kind.type == "cpu":
        keep_freed_memory()
    gains = precision == "bfloat16" or (precision == "auto" and _bfloat16_is_fast(kind))
    return Device(kind, torch.bfloat16 if gains else torch.float32, channels_last=kind.type != "mps")


def _bfloat16_is_fast(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and bool(torch.cpu._is_avx512_bf16_supported())


def keep_freed_memory() -> None:
    """Ask glibc to keep what a step frees: the next one needs it again. Nothing happens where the C library is another.

    By default large blocks go back to the system, which hands them out again zeroed, page by page. On a CPU that was
    measured to cost a sixth of a CIFAR step. The largest memory a process has does not change, only when it gives back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt and (mallopt(_M_MMAP_THRESHOLD, 2**30) or mallopt(_M_MMAP_THRESHOLD, 2**25)):
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
