"""What a run says while it goes: one row an epoch in metrics.jsonl, a bar on a terminal, and the watch for NaN.

Nothing here waits for the device at a step. Sums stay on it until they are asked for, and the watch looks at a loss
when it has arrived anyway. Durations come from the monotonic clock: setting the system's clock does not move them.
"""

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor

from longtail.errors import LongtailError
from longtail.files import atomic, cannot_write, write_json
from longtail.types import Losses


class Metrics:
    """metrics.jsonl: one JSON object an epoch, in order, none twice and none missing.

    Opening it drops what comes after epoch `keep_through`, the last one that the checkpoint knows, and a line that a
    killed run left half written. A row is on the disk before `write` returns, so before the checkpoint that follows.
    """

    def __init__(self, path: Path, keep_through: int = 0) -> None:
        self.path = path
        rows = [line for line in _lines(path) if _epoch(line) <= keep_through]
        if len(rows) < keep_through:
            warnings.warn(f"{path} has {len(rows)} of the {keep_through} epochs of this run so far", stacklevel=2)
        with atomic(path) as file:
            file.writelines(rows)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row; it has an "epoch". What is not finite was not measured, and is written as null."""
        line = json.dumps({key: _plain(value) for key, value in row.items()}, allow_nan=False) + "\n"
        try:
            with open(self.path, "ab") as file:
                before = file.tell()
                try:
                    file.write(line.encode())
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self.path, before)
                    raise
        except OSError as error:
            raise cannot_write(self.path, error) from error


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LongtailError(f"cannot read {path}: {error.strerror}") from error


def _epoch(line: bytes) -> float:
    """The epoch of a row; after all others where it is not one."""
    try:
        return int(json.loads(line)["epoch"]) if line.endswith(b"\n") else math.inf
    except (ValueError, LookupError, TypeError, RecursionError):
        return math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class StepLog:
    """Means over an epoch of what the steps report, weighted by their images, and the epoch's pace.

    A step need not report every part (an empty bank leaves one out): each is averaged over the steps that did.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        # Parts that come together are summed together: one small kernel a step.
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._weights: dict[tuple[str, ...], float] = {}
        self._earlier = 0.0  # seconds, before the interruption
        self._started = time.monotonic()
        if state:
            self._earlier = state["seconds"]
            totals = iter(state["totals"].split([length for names in state["names"] for length in (len(names), 1)]))
            for names in state["names"]:
                self._sums[tuple(names)], self._weights[tuple(names)] = next(totals).clone(), next(totals).item()

    def add(self, parts: Mapping[str, Tensor], images: int) -> None:
        """Scalars on the device, means over so many images."""
        names, values = tuple(parts), torch.stack(list(parts.values())).detach()
        wide = torch.float32 if values.device.type == "mps" else torch.float64
        values = values.to(wide) * images
        if names in self._sums:
            values += self._sums[names].to(values)
        self._sums[names] = values
        self._weights[names] = self._weights.get(names, 0) + images

    def means(self, reduce: Callable[[Tensor], Tensor] = lambda totals: totals) -> dict[str, float]:
        """Waits for the device. `reduce` sums over the ranks, which all report the same parts."""
        names = sorted({name for group in self._sums for name in group})
        if not names:
            return {}
        sums = next(iter(self._sums.values()))
        totals = torch.zeros(2, len(names), dtype=sums.dtype, device=sums.device)
        for group, values in self._sums.items():
            columns = [names.index(name) for name in group]
            totals[0, columns] += values.to(totals)
            totals[1, columns] += self._weights[group]
        total, weight = reduce(totals).tolist()
        return {name: t / w for name, t, w in zip(names, total, weight, strict=True)}

    @property
    def seconds(self) -> float:
        return self._earlier + time.monotonic() - self._started

    def state(self) -> dict[str, Any]:
        """To continue in the middle of an epoch: `StepLog(state)`. All that ranks do not share is in one tensor."""
        totals = [x for names, values in self._sums.items() for x in (*values.tolist(), self._weights[names])]
        return {
            "names": list(self._sums),
            "totals": torch.tensor(totals, dtype=torch.float64),
            "seconds": self.seconds,
        }


class _Look(NamedTuple):
    """One step's values on their way to the host."""

    epoch: int
    step: int
    names: tuple[str, ...]
    values: Tensor
    arrived: torch.Event | None
    ids: Tensor


class NaNWatch:
    """Stops a run whose loss is not finite, and leaves what is needed to replay the step in a JSON file.

    On the CPU a bad loss is seen at its own step. Elsewhere the values are copied without waiting and judged once they
    have arrived, at the latest `delay` steps on: call `finish` before anything is saved.
    """

    def __init__(self, path: Path, delay: int = 8) -> None:
        self._path = path
        self._delay = delay
        self._pending: deque[_Look] = deque()

    def look(self, losses: Losses, epoch: int, step: int, ids: Tensor) -> None:
        values = torch.stack([losses.per_sample.mean(), *losses.parts.values()]).detach()
        self._pending.append(_Look(epoch, step, ("loss", *losses.parts), *_to_host(values), ids))
        while self._pending:
            arrived = self._pending[0].arrived
            if arrived is not None and len(self._pending) <= self._delay and not arrived.query():
                break
            self._judge(self._pending.popleft())

    def finish(self) -> None:
        while self._pending:
            self._judge(self._pending.popleft())

    def _judge(self, look: _Look) -> None:
        if look.arrived is not None:
            look.arrived.synchronize()
        values = dict(zip(look.names, look.values.tolist(), strict=True))
        if all(map(math.isfinite, values.values())):
            return
        shown = {name: f"{value:.6g}" for name, value in values.items()}
        write_json(self._path, {"epoch": look.epoch, "step": look.step, "parts": shown, "ids": look.ids.tolist()})
        parts = ", ".join(f"{name} {value}" for name, value in shown.items())
        raise LongtailError(
            f"the loss is not finite in epoch {look.epoch + 1} at step {look.step} ({parts}): "
            f"lower the learning rate, or look at the images whose ids are in {self._path}"
        )


def _to_host(values: Tensor) -> tuple[Tensor, torch.Event | None]:
    """A copy that may still be under way, and the event that says when it is there."""
    if values.device.type == "cpu":
        return values, None
    copy = values.to("cpu", non_blocking=True)  # into pinned memory
    arrived = torch.Event(values.device)
    arrived.record()
    return copy, arrived


class Progress:
    """Lines, and on a terminal a bar under them for the epoch that runs.

    A terminal that goes away, or a full disk behind `> log.txt`, ends the talking and not the run.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream or sys.stdout  # None where the program was started without one
        self._drawn = -math.inf
        self._bar = None
        if self._stream and self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            # Refreshed by us: rich would start a thread, and loader workers are forked.
            self._bar = Progress(*columns, console=Console(file=self._stream), auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=None)

    def say(self, text: str) -> None:
        with self._talking():
            if self._bar:
                self._bar.stop()  # the line stays, so the bar moves out of its way
                self._drawn = -math.inf
            if self._stream:
                print(text, file=self._stream, flush=True)

    def step(self, epoch: int, done: int, steps: int) -> None:
        """After each step. Draws ten times a second at the most."""
        now = time.monotonic()
        if self._bar and now - self._drawn > 0.1:
            self._drawn = now
            with self._talking():
                self._bar.start()
                self._bar.update(self._task, description=f"epoch {epoch + 1}", completed=done, total=steps)
                self._bar.refresh()

    def close(self) -> None:
        if self._bar:
            with self._talking():
                self._bar.stop()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._stream = self._bar = None
