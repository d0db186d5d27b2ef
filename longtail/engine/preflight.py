"""Fail in the first ten seconds: a step, an evaluation batch and a checkpoint round trip before epoch 1.

All of it happens on a copy and under a forked generator, so that it leaves weights, batch statistics, bank and random
state exactly as they were.
"""

from __future__ import annotations

import copy
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch

from longtail.data.loader import Loader
from longtail.engine import checkpoint
from longtail.engine.device import Device
from longtail.engine.loop import set_training_mode, split
from longtail.engine.optim import build_optimiser
from longtail.errors import LongtailError
from longtail.methods.method import Method, alone
from longtail.ranks import ALONE
from longtail.recipe import Stage


class Passed(NamedTuple):
    seconds: float
    some_unused: bool  # the step gave some parameter no gradient


def preflight(stage: Stage, method: Method, loader: Loader, test: Loader, device: Device, folder: Path) -> Passed:
    """Runs alone on every rank: nothing here talks to another."""
    started = time.monotonic()
    with torch.random.fork_rng():
        trial = copy.deepcopy(method, _shared(method))
        trial.exchange = alone
        trial.join(ALONE)
        set_training_mode(trial, stage)
        optimiser = build_optimiser(trial, stage.optim)
        part = next(split(next(iter(loader.epoch(0))), stage.accumulate))
        trial.prepare([part])
        with device.autocast():
            losses = trial(part)
        loss = losses.per_sample.mean()
        if not loss.isfinite():
            values = ", ".join(f"{name} {value.item():.3g}" for name, value in losses.parts.items())
            raise LongtailError(
                f"the loss of the first batch is {loss.item()} ({values}): "
                "look for constant or empty images, or lower the learning rate"
            )
        loss.backward()
        some_unused = any(p.grad is None for group in optimiser.param_groups for p in group["params"])
        optimiser.step()
        trial.after_step()
        trial.eval()
        if stage.answers:
            with torch.no_grad(), device.autocast():
                scores_bc = trial.scores(next(iter(test.epoch(0))).views[0])
            if scores_bc.isnan().any():
                raise LongtailError(
                    "after one step the scores of the first test images are not numbers: "
                    "lower the learning rate, or look at the images"
                )
        with tempfile.TemporaryDirectory(suffix=".tmp", dir=folder) as temporary:
            state = {"method": trial.resume_state(), "optimiser": optimiser.state_dict()}
            checkpoint.save(Path(temporary), state, step=0)
            assert checkpoint.load(Path(temporary)) is not None
    return Passed(time.monotonic() - started, some_unused)


def _shared(method: Method) -> dict[int, object]:
    """A frozen teacher cannot change, so the copy uses the same one."""
    frozen = method.key_encoder is not None and not method.key_encoder.momentum
    return {id(method.key_encoder): method.key_encoder} if frozen else {}
