"""What every benchmark needs: medians taken in turns, peak memory, and a result file that names the machine."""

import ctypes
import functools
import json
import multiprocessing.pool
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longtail.engine import memory

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's <malloc.h>
RESULTS = Path(__file__).parents[1] / "results" / "bench"


def clock() -> Callable[[], float]:
    """One thread's processor time, which a busy machine hardly changes; the wall clock where several work at once."""
    alone = torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return time.process_time if alone else time.perf_counter


def medians_ms(functions: dict[str, Callable[[], Any]], repeats: int = 15, warmup: int = 3) -> dict[str, float]:
    """Median milliseconds of each, called in turns so that a busy moment of the machine falls on all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    now = clock()
    for turn in range(warmup + repeats):
        for name, function in functions.items():
            start = now()
            function()
            if turn >= warmup:
                times[name].append(1e3 * (now() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def median_ms(function: Callable[[], Any], repeats: int = 15, warmup: int = 3) -> float:
    return medians_ms({"": function}, repeats, warmup)[""]


def peak_mb(prepare: Callable[..., Callable[[], Any]], *args: Any) -> float:
    """How far one warm call of prepare(*args)() raises another process's memory, in MB of 2^20 bytes (Linux only)."""
    return _other_process().apply(_peak_mb, (prepare, args))


@functools.cache
def _other_process() -> multiprocessing.pool.Pool:
    """One for all measurements: what each frees goes back to the system before the next."""
    return multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (torch.get_num_threads(),))


def _peak_mb(prepare: Callable[..., Callable[[], Any]], args: tuple) -> float:
    mallopt = ctypes.CDLL(None).mallopt  # what is freed goes back at once, or a second call would need nothing new
    mallopt(_M_MMAP_THRESHOLD, 2**16)
    mallopt(_M_TRIM_THRESHOLD, 0)
    function = prepare(*args)
    function()
    memory.forget_peak()
    before = memory.of_status("VmRSS")
    result = function()
    after = memory.peak()
    del result
    return (after - before) / 2**20


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": clock().__name__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def write_result(name: str, result: dict[str, Any]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n")
    return path
