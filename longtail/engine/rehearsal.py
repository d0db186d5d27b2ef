"""What a recipe costs: a few real steps of every stage, with its memory and its time, and then everything is dropped.

The loop, the loader, the views, the networks, the bank, the optimiser and the checkpoint are a run's own. A bank is
filled beforehand with random keys, because an empty one costs less than it will, and a bank of sentences, where there
is no corpus, with as many as it may keep. A stage that a later one needs is there untrained.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longtail.contrast.bank import Bank
from longtail.data.table import ImageTable
from longtail.engine import memory, stages, trained
from longtail.engine.device import Device
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted, train
from longtail.methods.method import Method
from longtail.models.backbone import count_parameters
from longtail.recipe import Recipe, Stage

CHUNK = 4096  # keys that are put into a bank at a time


@dataclass(frozen=True)
class Cost:
    stage: str
    method: str
    model: str
    parameters: int
    batch_size: int
    accumulate: int
    bank: tuple[int, ...]  # rows and width
    seconds_a_step: float  # of the last one
    processor_seconds_a_step: float  # of all threads of this process; what else the machine does is not in it
    peak_gb: float  # of the process, without its loader's workers; on a GPU of what is allocated there
    loss: float

    def __str__(self) -> str:
        bank = f", bank {self.bank[0]:,} x {self.bank[1]:,}" if self.bank else ""
        return (
            f"{self.stage}: {self.method} on {self.model}, batch {self.batch_size}{bank}: "
            f"{self.seconds_a_step:.2f} s a step, at most {self.peak_gb:.2f} GB, loss {self.loss:.2f}"
        )


class _Clock(Progress):
    """Remembers when each step ended, by the clock and by what this process has used."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []
        self.used: list[float] = []

    def step(self, epoch: int, done: int, steps: int) -> None:
        self.ends.append(time.monotonic())
        self.used.append(time.process_time())


def rehearse(
    recipe: Recipe,
    table: ImageTable,
    device: Device,
    steps: int = 2,
    workers: int | None = None,
    say: Callable[[str], None] = lambda line: None,
    reads: bool = True,
) -> list[Cost]:
    """`reads`: is there a corpus to be read, or is it imagined?"""
    stages.check(recipe, table)
    inputs, costs = Inputs.of(recipe, table, device, workers), []
    with tempfile.TemporaryDirectory() as temporary:
        for stage in recipe.stages:
            folder = Path(temporary) / stage.name
            folder.mkdir()
            torch.manual_seed(recipe.seed)
            method = stages.build_method(stage, inputs.table, folder.parent, reads=reads)
            method.to(device.torch, memory_format=device.memory_format)  # type: ignore[call-overload]
            loader, test = inputs.train(stage, method.views), inputs.plain(inputs.reported)
            costs.append(measured(stage, method, loader, test, table, device, folder, recipe.seed, steps))
            say(str(costs[-1]))
            if any(stage.name in (later.keys, later.start_from) for later in recipe.stages):
                trained.save(folder, method, stage, inputs.card())
    return costs


def measured(
    stage: Stage,
    method: Method,
    loader: Any,
    test: Any,
    table: Any,  # of images, or of pixels
    device: Device,
    folder: Path,
    seed: int,
    steps: int,
) -> Cost:
    """What a stage's steps and an answer to the first test images cost."""
    clock, losses = _Clock(), []
    memory.forget_peak(device.torch)
    _fill(method, table)
    method.register_forward_hook(lambda *call: losses.append(call[2].per_sample.detach().float().mean()))
    if stage.epochs:
        with contextlib.suppress(Interrupted):
            train(
                stage,
                method,
                loader,
                device,
                folder,
                seed=seed,
                evaluate=lambda _: {},
                evaluate_every=stage.epochs,
                progress=clock,
                stop_requested=lambda: signal.SIGTERM if len(clock.ends) >= steps else None,
                some_unused=True,
            )
    if stage.answers:
        with torch.no_grad(), device.autocast():
            method.eval().scores(next(iter(test.epoch(0))).views[0][: stage.batch_size])
    bank = getattr(method.objective, "bank", None)
    head: Any = method.objective.likelihood
    return Cost(
        stage.name,
        stage.method,
        stage.model,
        count_parameters(method.backbone) + count_parameters(head),
        stage.batch_size,
        stage.accumulate,
        tuple(bank.features.shape) if isinstance(bank, Bank) else (),
        clock.ends[-1] - clock.ends[-2] if len(clock.ends) > 1 else 0.0,
        clock.used[-1] - clock.used[-2] if len(clock.used) > 1 else 0.0,
        memory.peak(device.torch) / 1e9,
        losses[-1].item() if losses else float("nan"),
    )


def _fill(method: Method, table: ImageTable) -> None:
    """Random features in the place of a teacher's: nobody's in a ring, the training images' in what holds them all."""
    objective: Any = method.objective
    device = objective.log_mass.device
    if hasattr(objective, "imagine") and objective.bank is None:
        return objective.imagine()
    if getattr(objective, "wants_full_bank", False):
        rows = table.rows("train")
        labels = torch.from_numpy(table.labels[rows].astype("int64")).to(device)
        width = method.backbone.dim if method.key_encoder is None else method.key_encoder.dim
        objective.fill(torch.rand(len(rows), width, device=device), labels, torch.from_numpy(rows).to(device))
    bank = getattr(objective, "bank", None)
    if isinstance(bank, Bank) and not bank.frozen:
        classes = bank.segments.class_of_row
        for start in range(0, len(bank), CHUNK):
            labels = classes[start : start + CHUNK]
            keys = torch.rand(len(labels), bank.features.shape[1], device=device)
            bank.enqueue(keys, labels, len(table) + start + torch.arange(len(labels), device=device))
