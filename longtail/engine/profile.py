"""`longtail train --profile`: where the time of a step goes.

The training loop itself runs, for a few steps, with a clock that is switched wherever a part begins. The parts follow
one another, so their times add up to the step's. On a device the clock waits at every switch, so that a part pays for
its own kernels; the pace is then taken from a second pass without it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from longtail.data.loader import Loader
from longtail.engine.device import Device
from longtail.engine.logs import Progress
from longtail.engine.loop import train
from longtail.methods.method import Method
from longtail.recipe import Stage
from longtail.types import Batch

PARTS = {
    "load": "gather and normalise, or wait for the workers that read images",
    "augment": "views made here; those made by the workers count as waiting for them",
    "teacher": "the key encoder",
    "forward": "the student",
    "bank": "embedding the bank",
    "likelihood": "the other losses and heads",
    "enqueue": "what lies between the networks and the losses",
    "backward": "",
    "optimiser": "with moving averages",
}
WARMUP, STEPS = 5, 20


class Clock:
    """Time passes in one part after the other."""

    def __init__(self, device: Device) -> None:
        on_device = device.torch.type != "cpu"
        self._wait: Callable[[], None] = getattr(torch, device.torch.type).synchronize if on_device else lambda: None
        self._seconds: dict[str, float] = defaultdict(float)
        self._part, self._since = "optimiser", time.perf_counter()
        self.steps: list[dict[str, float]] = []

    def switch(self, part: str) -> str:
        """From now on it is this one's time -> the one before."""
        self._wait()
        before, now = self._part, time.perf_counter()
        self._seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    def next_step(self) -> None:
        self.switch("load")
        self.steps.append(self._seconds)
        self._seconds = defaultdict(float)


class _FewSteps:
    """A loader's first steps, again and again, as one epoch."""

    def __init__(self, loader: Loader, steps: int, next_step: Callable[[], None]) -> None:
        self.loader, self.steps, self.next_step = loader, steps, next_step

    def __len__(self) -> int:
        return self.steps

    @property
    def images_per_epoch(self) -> int:
        return self.steps * sum(self.shares(0))

    def shares(self, step: int) -> tuple[int, ...]:
        return self.loader.shares(step % len(self.loader))

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        given = 0
        while given < self.steps:
            batches = self.loader.epoch(epoch)
            epoch += 1
            while given < self.steps:
                self.next_step()
                if (batch := next(batches, None)) is None:
                    break
                yield batch
                given += 1
        self.next_step()


def profile(stage: Stage, method: Method, loader: Loader, device: Device, seed: int = 0) -> str:
    """A table of a step's parts. Trains the method it is given for a few steps."""
    clock = Clock(device)
    with _switching(clock, method, loader):
        _run(stage, method, loader, device, seed, clock.next_step)
    parts = {part: 1e3 * _median([step[part] for step in clock.steps]) for part in PARTS}
    whole = sum(parts.values())
    pace = whole if device.torch.type == "cpu" else _pace(stage, method, loader, device, seed)
    images = sum(loader.shares(0))
    lines = [f"profile of {stage.name}: {device}, {torch.get_num_threads()} threads, medians of {STEPS} steps"]
    lines += [
        f"  {part:11s}{ms:9.1f} ms {ms / whole:6.1%}  {PARTS[part]}".rstrip() for part, ms in parts.items() if ms > 0
    ]
    return "\n".join([*lines, f"  {'step':11s}{pace:9.1f} ms  {1e3 * images / pace:.0f} images/s"])


def _pace(stage: Stage, method: Method, loader: Loader, device: Device, seed: int) -> float:
    ends: list[float] = []
    _run(stage, method, loader, device, seed, lambda: ends.append(time.perf_counter()))
    # The host runs ahead of the device by a little and no more, so over many steps it keeps the device's pace.
    return 1e3 * (ends[-1] - ends[WARMUP]) / (len(ends) - 1 - WARMUP)


def _run(
    stage: Stage, method: Method, loader: Loader, device: Device, seed: int, next_step: Callable[[], None]
) -> None:
    short = replace(stage, epochs=1, optim=replace(stage.optim, warmup_epochs=0.0))
    with tempfile.TemporaryDirectory() as folder:
        train(
            short,
            method,
            _FewSteps(loader, WARMUP + STEPS, next_step),
            device,
            Path(folder),
            seed=seed,
            evaluate=lambda method: {},
            evaluate_every=1,
            progress=Progress(StringIO()),
        )


def _median(values: list[float]) -> float:
    return statistics.median(values[WARMUP + 1 :])  # the first one is what came before the first step


@contextmanager
def _switching(clock: Clock, method: Method, loader: Any) -> Iterator[None]:
    """Switch the clock where the parts begin and end, and take all switches out again."""
    objective: Any = method.objective
    inner: dict[str, nn.Module | None] = {
        "teacher": method.key_encoder,
        "forward": method.backbone,
        "bank": getattr(objective, "reembedding", None),
        "likelihood": objective,
    }
    outside: list[str] = []

    def enter(part: str) -> Callable[..., None]:
        return lambda *_: outside.append(clock.switch(part))

    def leave(*_: Any) -> None:
        clock.switch(outside.pop())

    def to(part: str) -> Callable[..., None]:
        return lambda *_: (clock.switch(part), None)[1]

    with ExitStack() as stack:
        handles = [method.register_forward_pre_hook(to("enqueue")), method.register_forward_hook(to("backward"))]
        for part, module in inner.items():
            if module is not None:
                handles += [module.register_forward_pre_hook(enter(part)), module.register_forward_hook(leave)]
        handles += [
            register_optimizer_step_pre_hook(to("optimiser")),
            register_optimizer_step_post_hook(to("optimiser")),
        ]
        for handle in handles:
            stack.callback(handle.remove)
        if isinstance(views := loader.views, tuple):  # pixels are cut by the workers
            loader.views = tuple(_TimedView(view, enter("augment"), leave) for view in views)
            stack.callback(setattr, loader, "views", views)
        yield


class _TimedView:
    def __init__(self, view: Any, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self.view, self.enter, self.leave, self.draws = view, enter, leave, view.draws

    def __call__(self, *arguments: Any) -> Any:
        return self._timed(self.view, *arguments)

    def after_crop(self, *arguments: Any) -> Any:
        return self._timed(self.view.after_crop, *arguments)

    def _timed(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.enter()
        try:
            return function(*arguments)
        finally:
            self.leave()
