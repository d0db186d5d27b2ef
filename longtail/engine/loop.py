"""The training loop. It is meant to be read, copied and changed.

One optimiser step, in order: learning rate, batch, forward (which enqueues the batch's keys before it scores the batch),
mean over the total batch, backward, NaN watch, optimiser, moving averages. The data's randomness is a function of
(seed, epoch, position), so a checkpoint holds the weights, the optimiser, torch's generator and where we are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from longtail.data.loader import Loader
from longtail.engine import checkpoint, dist
from longtail.engine.device import Device
from longtail.engine.logs import Metrics, NaNWatch, Progress, StepLog
from longtail.engine.optim import build_optimiser, learning_rate
from longtail.methods.method import Method
from longtail.recipe import Stage
from longtail.types import Batch


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
) -> None:
    """Train `method` in place for `stage.epochs`, carrying on from `folder/state` where there is one."""
    optimiser = build_optimiser(method, stage.optim)
    epoch_0, step_0, log_state = 0, 0, None
    torch.manual_seed(seed)
    if (state := checkpoint.load(folder / "state")) is not None:
        epoch_0, step_0, log_state = state["epoch"], state["step"], state["log"]
        method.load_resume_state(state["method"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["rng"])
        progress.say(f"carrying on from epoch {epoch_0}, step {step_0}")

    def save(epoch: int, step: int, log: StepLog | None) -> None:
        state = {"method": method.resume_state(), "optimiser": optimiser.state_dict(), "rng": torch.get_rng_state()}
        state |= {"epoch": epoch, "step": step, "log": log.state() if log else None}
        if dist.is_main():
            checkpoint.save(folder / "state", state, step=epoch * len(loader) + step)
        dist.barrier()

    model = dist.wrap(method, device.torch)
    metrics = Metrics(folder / "metrics.jsonl", keep_through=epoch_0) if dist.is_main() else None
    watch = NaNWatch(folder)
    for epoch in range(epoch_0, stage.epochs):
        set_training_mode(method, stage)
        log, lr = StepLog(log_state), 0.0
        for step, batch in enumerate(loader.epoch(epoch, step_0), step_0):
            now = epoch + step / len(loader)
            lr = learning_rate(stage.optim, now, stage.epochs)
            for group in optimiser.param_groups:
                group["lr"] = lr * group["rate"]
            method.set_progress(now / stage.epochs)

            shares = loader.shares(step)  # how many of the total batch's images each rank holds
            method.exchange = dist.rows_of_all_ranks(shares)
            for part in split(batch, stage.accumulate):
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

            if step + 1 < len(loader) and (signal := stop_requested()) is not None:
                watch.finish()
                save(epoch, step + 1, log)
                raise Interrupted(signal)
        watch.finish()

        row: dict[str, Any] = {"epoch": epoch + 1, "lr": lr, **log.means(dist.sum_over_ranks), "seconds": log.seconds}
        row["images_per_second"] = loader.images_per_epoch / max(log.seconds, 1e-9)
        if epoch + 1 == stage.epochs or (epoch + 1) % evaluate_every == 0:
            row |= evaluate(method)
        if metrics is not None:
            metrics.write(row)
        save(epoch + 1, 0, None)
        step_0, log_state = 0, None
        progress.say(epoch_line(row, stage.epochs))
        if epoch + 1 < stage.epochs and (signal := stop_requested()) is not None:
            raise Interrupted(signal)


def set_training_mode(method: Method, stage: Stage) -> None:
    """Where only the head learns, the backbone keeps its running statistics too."""
    method.train()
    if stage.trains == "head":
        method.backbone.eval()


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """Equal micro-batches, for accumulation. A contrastive loss then scores each against what came before it."""
    size = -(-len(batch.labels) // parts)
    for i in range(0, len(batch.labels), size):
        part = slice(i, i + size)
        yield Batch(tuple(view[part] for view in batch.views), batch.labels[part], batch.ids[part])


def epoch_line(row: dict[str, Any], epochs: int) -> str:
    """One line an epoch, the same on a terminal and in a file."""
    parts = " + ".join(f"{name} {row[name]:.3f}" for name in ("cls", "gml", "kd") if name in row)
    line = (
        f"epoch {row['epoch']:3d}/{epochs}  loss {row['loss']:.3f}{f' ({parts})' if parts else ''}  lr {row['lr']:.4f}"
    )
    shown = [("acc", "accuracy"), ("many", "many"), ("med", "medium"), ("few", "few")]
    measured = [f"{short} {100 * row[name]:.1f}" for short, name in shown if row.get(name) is not None]
    if measured:
        line += "  | " + "  ".join(measured)
    left = row["seconds"] * (epochs - row["epoch"])
    return f"{line}  | {row['images_per_second']:.0f} img/s  eta {duration(left)}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f}s"
    return f"{seconds / 60:.0f}m" if seconds < 5400 else f"{seconds / 3600:.1f}h"
