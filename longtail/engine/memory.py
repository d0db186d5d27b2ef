"""How much memory this process has had."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def forget_peak(device: torch.device | None = None) -> None:
    """From now on `peak` is of what follows; where neither a GPU nor Linux counts, it stays that of the whole life."""
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")


def peak(device: torch.device | None = None) -> int:
    """Bytes: of the process, or on a GPU of what was allocated there."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if sys.platform == "linux":
        return of_status("VmHWM")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def of_status(field: str) -> int:
    """Bytes, as Linux knows them: VmRSS is what is resident now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))
