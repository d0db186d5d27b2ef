"""What stands around a training: the run folder, its first lines and its last table, signals, ranks."""

from __future__ import annotations

import contextlib
import io
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longtail.data.table import ImageTable
from longtail.engine import dist, stages
from longtail.engine.device import Device
from longtail.engine.faults import explained
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted, duration
from longtail.engine.runfolder import RunFolder
from longtail.errors import LongtailError
from longtail.measure.metrics import HEADLINE, render
from longtail.methods import settings_of
from longtail.recipe import Recipe, Stage, from_dict, to_dict
from longtail.wording import number_of


def train_run(
    recipe: Recipe,
    table: Any,  # an ImageTable, or what else the runner takes
    out: Path,
    device: Device,
    *,
    resume: bool = False,
    dry_run: bool = False,
    profiling: bool = False,  # as a dry run, and a few steps of every stage with the time of each part
    why: list[str] | None = None,
    workers: int | None = None,
    quiet: bool = False,
    runner: Any = stages,
    columns: Mapping[str, str] = HEADLINE,
) -> list[stages.Finished]:
    """`longtail train`, once the recipe is known. `runner` is `segmentation.stages` where the samples are pixels."""
    dist.start(device.torch)
    progress = Progress(None if dist.is_main() and not quiet else io.StringIO())  # one rank speaks for all
    say = progress.say
    for line in first_lines(recipe, table, out, device, why or []):
        say(line)
    if dry_run or profiling:
        with tempfile.TemporaryDirectory() as folder, explained():
            runner.try_out(recipe, table, Path(folder), device, progress, workers, profiling)
        return []
    try:
        with explained(), _claimed(out, resume) as run:
            if run is not None:
                groups = stages.groups_of(recipe, table)
                run.describe(to_dict(recipe), lambda then: to_dict(from_dict(then)))
                run.write_classes(
                    table.classes, table.counts().tolist(), [groups.name(c) for c in range(table.num_classes)]
                )
            dist.barrier()
            if not out.exists():
                raise LongtailError(f"rank {dist.rank()} has no {out}: put --out on storage that all machines share")
            with _signals() as stop_requested:
                finished = runner.run(
                    recipe, table, out, device, progress=progress, stop_requested=stop_requested, workers=workers
                )
        say(last_table(finished, columns))
        say(f"\nsaved {out}   next: longtail evaluate {out} --prior uniform")
        return finished
    except Interrupted as interrupted:
        name = signal.Signals(interrupted.signal).name
        say(f"stopped by {name}; a checkpoint is written, --resume carries on from it")
        raise
    finally:
        progress.close()
        dist.stop()


def first_lines(recipe: Recipe, table: ImageTable, out: Path, device: Device, why: list[str]) -> Iterator[str]:
    yield table.summary()
    yield str(stages.groups_of(recipe, table))
    yield from why
    last = recipe.stages[-1]
    yield from about_text(last, table)
    each = last.batch_size // dist.world() // last.accumulate
    yield f"batch {last.batch_size} = {dist.world()} ranks x {last.accumulate} steps x {each} | {device} | {out}"
    if last.accumulate > 1:
        yield "accumulating: each part is contrasted with what came before it only, so a contrastive loss sees less"


def about_text(stage: Stage, table: ImageTable) -> list[str]:
    """What a method that reads sentences is told of the classes."""
    settings = settings_of(stage.method) | stage.settings
    if "templates" not in settings:
        return []
    from longtail.vision_language.corpus import read_corpus

    return read_corpus(table.classes, settings["sentences"], settings["templates"]).report()


def last_table(finished: list[stages.Finished], columns: Mapping[str, str] = HEADLINE) -> str:
    """The last epoch of every answering stage, a student beside its teacher."""
    rows = {}
    for stage in finished:
        row = f"{stage.method} ({stage.stage})"
        rows |= {row: stage.summary} if stage.summary else {}
        rows |= {f"{row}, {name}": summary for name, summary in stage.second.items()}
    lines = ["", render(rows, columns), "the last epoch, answered as trained, in per cent"]
    for stage in finished:
        cost = "reused, trained in" if stage.reused else "trained in"
        size = f"{stage.parameters / 1e6:.2f} M parameters, {number_of(stage.epochs, 'epoch')}"
        lines.append(f"  {stage.stage}: {stage.model}, {size}, {cost} {duration(3600 * stage.hours)}")
    return "\n".join(lines)


@contextlib.contextmanager
def _claimed(out: Path, resume: bool) -> Iterator[RunFolder | None]:
    """The run folder, held by the first rank for all of them."""
    if dist.is_main():
        with RunFolder(out, resume=resume) as run:
            yield run
    else:
        yield None


@contextlib.contextmanager
def _signals() -> Iterator[Callable[[], int | None]]:
    """SIGINT and SIGTERM ask for a checkpoint at the end of the step; a second SIGINT does not ask."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if number == signal.SIGINT and number in received:
            raise KeyboardInterrupt
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
