"""A training's state, from memory to a checkpoint and back, on one rank or several.

All ranks hold the same weights, moments and bank, so the first one writes them. In the middle of an epoch each also has
sums for the log and running batch statistics of its own; those are gathered, so that every rank gets back its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longtail.engine import checkpoint, dist
from longtail.engine.logs import StepLog
from longtail.errors import LongtailError
from longtail.methods.method import Method


class Resume:
    def __init__(self, folder: Path, method: Method, optimiser: torch.optim.Optimizer, steps: int) -> None:
        self.folder, self.method, self.optimiser, self.steps = folder, method, optimiser, steps

    def save(self, epoch: int, step: int, log: StepLog | None = None) -> None:
        """`log` in the middle of an epoch. Returns, on all ranks, when the checkpoint is on the disk."""
        state: dict[str, Any] = {"epoch": epoch, "step": step}
        state |= {"method": self.method.resume_state(), "optimiser": self.optimiser.state_dict()}
        if log is not None:
            mine = log.state()
            state["log"] = mine | {"totals": dist.of_each_rank(mine["totals"])}
            state["statistics"] = [dist.of_each_rank(x) for x in dist.running_statistics(self.method)]
        if dist.is_main():
            checkpoint.save(self.folder, state, step=epoch * self.steps + step)
        dist.barrier()

    def load(self) -> tuple[int, int, StepLog | None]:
        """Epoch and step to carry on from, and the sums of the epoch so far. The method is in training mode."""
        state = checkpoint.load(self.folder)
        try:
            epoch, step, log = (0, 0, None) if state is None else self._put_back(state)
        except LongtailError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, AssertionError) as error:
            raise LongtailError(
                f"the checkpoint in {self.folder} is not of this run ({type(error).__name__}): "
                "start again with another --out"
            ) from error
        done = epoch * self.steps + step
        if dist.largest(done) != done or dist.largest(-done) != -done:
            raise LongtailError(
                f"rank {dist.rank()} finds another checkpoint in {self.folder} than the other ranks: "
                "put --out on storage that all machines share"
            )
        return epoch, step, log

    def _put_back(self, state: dict[str, Any]) -> tuple[int, int, StepLog | None]:
        self.method.load_resume_state(state["method"])
        self.optimiser.load_state_dict(state["optimiser"])
        epoch, step = int(state["epoch"]), int(state["step"])
        if step == 0:
            return epoch, 0, None
        for mine, of_ranks in zip(dist.running_statistics(self.method), state["statistics"], strict=True):
            if len(of_ranks) == dist.world():  # else all go on with the first rank's
                mine.copy_(of_ranks[dist.rank()])
        return epoch, step, StepLog(state["log"] | {"totals": _own(state["log"]["totals"])})


def _own(of_ranks: Tensor) -> Tensor:
    """This rank's row; where there were more ranks or fewer, an equal part of the sum."""
    return of_ranks[dist.rank()] if len(of_ranks) == dist.world() else of_ranks.sum(0) / dist.world()
