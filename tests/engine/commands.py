"""The command in a process of its own, which begins in a second instead of ten, and recipes that run in seconds."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from longtail.recipe import Data, Optim, Recipe, Stage, to_dict

# A server that has imported everything and never run a backward pass, after which torch forbids to fork.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["longtail.cli", "longtail.engine.session", "longtail.data.benchmarks", "numpy"])

Hook = Callable[..., None]  # called in the process, before the command


@dataclass
class Ran:
    code: int  # minus the signal, where one ended it
    out: str
    err: str
    noted: Any = None  # what the hook sent


def longtail(*arguments: str | Path, cwd: Path, hook: Hook | None = None, given: tuple = (), seconds: int = 400) -> Ran:
    """`hook(send, *given)`: the first thing it sends is kept; if that is (signal, note), the signal is sent back."""
    cwd.mkdir(parents=True, exist_ok=True)
    ours, theirs = _CONTEXT.Pipe()
    said = [cwd / name for name in ("out.txt", "err.txt")]
    process = _CONTEXT.Process(target=_main, args=(list(map(str, arguments)), cwd, said, theirs, hook, given))
    process.start()
    theirs.close()
    noted = None
    try:
        noted = ours.recv() if ours.poll(seconds) else None
        if isinstance(noted, tuple) and isinstance(noted[0], signal.Signals):
            os.kill(process.pid, noted[0])  # type: ignore[arg-type]
            noted = noted[1]
    except EOFError:
        pass
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"not over after {seconds} s: {said[0].read_text()}{said[1].read_text()}")
    return Ran(process.exitcode, said[0].read_text(), said[1].read_text(), noted)


def _main(arguments: list[str], cwd: Path, said: list[Path], pipe: Connection, hook: Hook | None, given: tuple) -> None:
    os.setsid()  # what is sent to its group does not reach the tests
    os.chdir(cwd)
    for stream, path in zip((sys.stdout, sys.stderr), said, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    os.environ["LONGTAIL_CACHE"] = str(cwd / "cache")
    multiprocessing.set_start_method(None, force=True)  # for the processes that read images: the platform's own way
    torch.set_num_threads(1)
    from longtail.cli import main

    if hook is not None:
        hook(pipe.send, *given)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


# What is trained


def photographs(folder: Path, counts: tuple[int, ...] = (30, 14, 9, 6)) -> Path:
    """Pictures of several sizes, too large to be held in memory, so that worker processes read them."""
    rng = np.random.default_rng(0)
    for c, count in enumerate(counts):
        (folder / f"class {c}").mkdir(parents=True)
        for i in range(count):
            coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
            coarse[..., c % 3] //= 1 + c
            size = (66 + 5 * (i % 3), 70 + 3 * (i % 2))
            Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(folder / f"class {c}" / f"{i}.png")
    return folder


STAGE = Stage(
    method="gml",
    settings={"k": 24, "k_m": 2, "kd_weight": 1.0, "learn_tau": True},
    model="small",
    epochs=3,
    batch_size=12,
    augment="weak",
    optim=Optim(lr=0.05),
)


def with_teacher(data: Path) -> Recipe:
    """A teacher, and a student whose bank holds its features."""
    teacher = Stage("teacher", "logit_adjusted", model="small", epochs=2, batch_size=12, optim=STAGE.optim)
    student = replace(STAGE, name="student", keys="teacher")
    return Recipe(Data(str(data)), (teacher, student), precision="float32")


def with_momentum(data: Path) -> Recipe:
    """Keys from a momentum encoder, answers from averaged weights, a sampler that balances, AdamW."""
    settings = {"k": 24, "k_m": 2, "kd_weight": 0.0, "shard_bank": True}
    optim = Optim("adamw", lr=0.003, warmup_epochs=1.0)
    stage = replace(STAGE, settings=settings, keys="momentum", ema=0.9, sampler="square-root", optim=optim)
    return Recipe(Data(str(data)), (stage,), precision="float32", evaluate_every=2)


def write_recipe(path: Path, recipe: Recipe) -> Path:
    path.write_text(json.dumps(to_dict(recipe)))
    return path


# What a run has found


def findings(run: Path) -> dict[str, Any]:
    """Everything that a run leaves, without the times it took and the command that began it."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".jsonl":
            found[name] = [_timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == "result.json":
            found[name] = _timeless(json.loads(path.read_text()))
        elif path.name == "config.json":
            found[name] = json.loads(path.read_text())["recipe"]
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("seconds", "images_per_second", "hours")}


def differences(run: Path, straight: dict[str, Any]) -> list[str]:
    """Names of what is not as in the run that went straight through; also what should not be there any more."""
    found = findings(run)
    return sorted(name for name in found.keys() | straight.keys() if found.get(name, "") != straight.get(name, ""))
