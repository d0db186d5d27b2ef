"""Two thousand steps: memory, open files and what is written do not grow with them.

Worker processes read the images, the bank turns over, every epoch writes a checkpoint and a row. What was seen every
hundred steps is written to results/reliability/long_run.json.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import longtail, photographs, with_momentum, write_recipe

from longtail.engine.runfolder import describe_environment
from longtail.methods.method import Method

RESULTS = Path(__file__).parents[2] / "results" / "reliability" / "long_run.json"
EPOCHS, EVERY, WARM = 191, 100, 500
PAGE = resource.getpagesize()


def watch(send: Callable[[Any], None]) -> None:
    """In the run's process: look at it every hundred steps, and send what was seen when it ends."""
    after_step, count = Method.after_step, iter(range(10**9))
    seen: list[dict[str, float]] = []
    util.Finalize(None, send, args=(seen,), exitpriority=10)

    def patched(method: Method) -> None:
        after_step(method)
        if (step := next(count)) % EVERY == 0 and step:
            seen.append({"step": step, **look()})

    Method.after_step = patched  # type: ignore[method-assign]


def look() -> dict[str, float]:
    workers = [child.pid for child in multiprocessing.active_children()]
    return {
        "mb": memory_mb(os.getpid()),
        "mb_of_workers": sum(memory_mb(pid) for pid in workers if pid),
        "workers": len(workers),
        "open_files": len(os.listdir("/proc/self/fd")),
        "files_in_the_run": sum(len(files) for _, _, files in os.walk("run")),
        "bytes_of_metrics": os.path.getsize("run/metrics.jsonl"),
        "bytes_said": os.path.getsize("out.txt") + os.path.getsize("err.txt"),
    }


def memory_mb(pid: int) -> float:
    """What is resident and not shared with a file or another process that maps it."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    return (resident - shared) * PAGE / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at Linux's /proc")
def test_two_thousand_steps(tmp_path: Path) -> None:
    recipe = with_momentum(photographs(tmp_path / "photographs"))
    stage = replace(recipe.stages[0], epochs=EPOCHS, batch_size=4)
    path = write_recipe(tmp_path / "recipe.json", replace(recipe, stages=(stage,), evaluate_every=20))
    arguments = ("train", "--config", path, "--out", "run", "--device", "cpu", "--workers", "2")
    ran = longtail(*arguments, cwd=tmp_path / "cwd", hook=watch, seconds=2400)
    assert ran.code == 0, ran.err
    seen = ran.noted
    warm = [row for row in seen if row["step"] >= WARM]
    assert warm[-1]["step"] >= 2000
    growth = {name: per_thousand(warm, name) for name in ("mb", "mb_of_workers")}
    record(seen, growth)
    assert growth["mb"] < 4
    assert growth["mb_of_workers"] < 4
    assert len({row["workers"] for row in warm}) == 1
    files = [row["open_files"] for row in warm]  # batches under way hold some of them, now and then
    assert min(files[-8:]) <= min(files[:8])
    assert max(files) - min(files) <= 16
    assert max(row["files_in_the_run"] for row in warm) <= 8
    assert warm[-1]["bytes_of_metrics"] < 400 * EPOCHS
    assert warm[-1]["bytes_said"] < 200 * EPOCHS + 2000


def per_thousand(rows: list[dict[str, float]], name: str) -> float:
    """Slope of the line through them, for a thousand steps."""
    return round(float(np.polyfit([row["step"] for row in rows], [row[name] for row in rows], 1)[0]) * 1000, 3)


def record(seen: list[dict[str, float]], growth: dict[str, float]) -> None:
    content = {
        "what": "memory, open files and output of one run of 2,101 steps with two worker processes",
        "command": "pytest -m slow tests/engine/test_long_run.py",
        "environment": describe_environment(),
        "growth_mb_in_1000_steps": growth,
        "seen": [{key: round(value, 1) for key, value in row.items()} for row in seen],
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
