"""Run a function in several processes that form a group, as `torchrun` would, but in a second instead of ten."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

# A server that has imported everything and never run a backward pass, after which torch forbids to fork.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["longtail.engine.session", "longtail.data.benchmarks", "sklearn.datasets"])


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What function(*arguments) returned on every rank; a rank's exception is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        for rank in range(world):
            mine, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_rank, args=(rank, world, Path(folder), theirs, function, arguments))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        try:
            answers = [_answer(pipe) for pipe in pipes]
        finally:
            for process in processes:
                process.join(10)
                process.kill()
    errors = [text for done, text in answers if not done]
    assert not errors, "\n".join(errors)
    return [value for _, value in answers]


def _answer(pipe: Connection) -> tuple[bool, Any]:
    try:
        return pipe.recv() if wait([pipe], 120) else (False, "no answer in two minutes")
    except EOFError:
        return False, "a rank ended without an answer"


def _rank(rank: int, world: int, folder: Path, pipe: Connection, function: Callable[..., Any], arguments: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"LONGTAIL_CACHE": str(folder / "cache")}
    if world > 1:
        torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    try:
        pipe.send((True, function(*arguments)))
    except BaseException:
        pipe.send((False, f"rank {rank}: {traceback.format_exc()}"))
        os._exit(1)
