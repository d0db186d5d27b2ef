"""The training loop. It is meant to be read, copied and changed.

One optimiser step, in order: learning rate, batch, forward (which enqueues the batch's keys before it scores them),
mean over the total batch, backward, NaN watch, optimiser, moving averages. All randomness is a function of (seed,
epoch, position), so a checkpoint holds the weights, the optimiser and where we are, and no generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from longtail.data.loader import Loader
from longtail.data.randomness import keys
from longtail.engine import dist
from longtail.engine.device import Device
from longtail.engine.logs import Metrics, NaNWatch, Progress, StepLog
from longtail.engine.optim import build_optimiser, learning_rate
from longtail.engine.resume import Resume
from longtail.methods.method import Method
from longtail.recipe import Stage
from longtail.types import Batch

_DROPOUT = -5  # of the hashed random numbers: views have those from 0 up, the sampler -1 to -4


class Interrupted(Exception):
    """Asked to stop by a signal; the checkpoint is written and `--resume` carries on from it."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def train(
    stage: Stage,
    method: Method,
    loader: Loader,
    device: Device,
    folder: Path,
    *,
    seed: int,
    evaluate: Callable[[Method], dict[str, Any]],
    evaluate_every: int,
    progress: Progress,
    stop_requested: Callable[[], int | None] = lambda: None,
    some_unused: bool = False,
) -> None:
    """Train `method` in place for `stage.epochs`, carrying on from `folder/state` where there is one.

    `some_unused`: a step may leave parameters without gradient, as the first one does that finds its bank empty.
    """
    optimiser = build_optimiser(method, stage.optim)
    set_training_mode(method, stage)
    resume = Resume(folder / "state", method, optimiser, len(loader))
    epoch_0, step_0, log = resume.load()
    if epoch_0 or step_0:
        progress.say(f"carrying on from epoch {epoch_0}, step {step_0}")
    model = dist.wrap(method, device.torch, some_unused=some_unused, sync_batchnorm=stage.sync_batchnorm)
    metrics = Metrics(folder / "metrics.jsonl", keep_through=epoch_0) if dist.is_main() else None
    watch = NaNWatch(folder / ("nonfinite.json" if dist.world() == 1 else f"nonfinite-{dist.rank()}.json"))

    for epoch in range(epoch_0, stage.epochs):
        set_training_mode(method, stage)
        log, lr = log or StepLog(), 0.0
        seeds = keys(seed, epoch, torch.arange(len(loader)) * dist.world() + dist.rank(), _DROPOUT).tolist()
        for step, batch in enumerate(loader.epoch(epoch, step_0), step_0):
            now = epoch + step / len(loader)
            lr = learning_rate(stage.optim, now, stage.epochs)
            for group in optimiser.param_groups:
                group["lr"] = lr * group["rate"]
            method.set_progress(now / stage.epochs)
            device.seed(seeds[step])

            shares = loader.shares(step)  # how many of the total batch's images each rank holds
            for number, part in enumerate(split(batch, stage.accumulate)):
                method.exchange = dist.rows_of_all_ranks([len(cuts(n, stage.accumulate)[number]) for n in shares])
                with dist.averaging(model, number + 1 == stage.accumulate):
                    with device.autocast():
                        losses = model(part)
                    # The mean over the total batch. DDP averages gradients over ranks, hence the world's size.
                    loss = losses.per_sample.mean() * (len(part.labels) * len(shares) / sum(shares))
                    loss.backward()
                watch.look(losses, epoch, step, part.ids)
                log.add({"loss": losses.per_sample.detach().mean(), **losses.parts}, len(part.labels))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            method.after_step()
            progress.step(epoch, step + 1, len(loader))

            # All ranks stop at the same step, whichever was told; after an epoch's last one there is more to write.
            if (signal := dist.largest(stop_requested() or 0)) and step + 1 < len(loader):
                watch.finish()
                resume.save(epoch, step + 1, log)
                raise Interrupted(signal)
        watch.finish()
        dist.average_running_statistics(method)

        row: dict[str, Any] = {"epoch": epoch + 1, "lr": lr, **log.means(dist.sum_over_ranks), "seconds": log.seconds}
        row["images_per_second"] = loader.images_per_epoch / max(log.seconds, 1e-9)
        if epoch + 1 == stage.epochs or (epoch + 1) % evaluate_every == 0:
            row |= evaluate(method)
        if metrics is not None:
            metrics.write(row)
        resume.save(epoch + 1, 0)
        step_0, log = 0, None
        progress.say(epoch_line(row, stage.epochs))
        if (signal := dist.largest(stop_requested() or 0)) and epoch + 1 < stage.epochs:
            raise Interrupted(signal)


def set_training_mode(method: Method, stage: Stage) -> None:
    """Where only the head learns, the backbone keeps its running statistics too."""
    method.train()
    if stage.trains == "head":
        method.backbone.eval()


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """Micro-batches, for accumulation. A contrastive loss then scores each against what came before it."""
    for cut in cuts(len(batch.labels), parts):
        part = slice(cut.start, cut.stop)
        views = tuple(view[part] for view in batch.views)
        yield batch._replace(views=views, labels=batch.labels[part], ids=batch.ids[part])


def cuts(size: int, parts: int) -> list[range]:
    """Equal but for one."""
    return [range(size * i // parts, size * (i + 1) // parts) for i in range(parts)]


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """One line an epoch, the same on a terminal and in a file."""
    parts = " + ".join(f"{name} {row[name]:.3f}" for name in ("cls", "gml", "kd") if name in row)
    line = (
        f"epoch {row['epoch']:3d}/{epochs}  loss {row['loss']:.3f}{f' ({parts})' if parts else ''}  lr {row['lr']:.3g}"
    )
    shown = [("acc", "accuracy"), ("many", "many"), ("med", "medium"), ("few", "few")]
    shown += [("mIoU", "miou"), ("mAcc", "macc"), ("aAcc", "aacc")]
    measured = [f"{short} {100 * row[name]:.1f}" for short, name in shown if row.get(name) is not None]
    if measured:
        line += "  | " + "  ".join(measured)
    left = row["seconds"] * (epochs - row["epoch"])
    return f"{line}  | {row['images_per_second']:.0f} img/s  eta {duration(left)}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"
