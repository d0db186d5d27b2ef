"""A recipe with pixels becomes a run folder: stage after stage, as in `engine/stages.py`.

The loop, its checkpoints and its checks are the engine's; what is a batch, a model and an evaluation is said here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail.data.loader import Shard
from longtail.data.table import SPLITS
from longtail.engine import dist, trained
from longtail.engine.device import Device
from longtail.engine.logs import Progress
from longtail.engine.loop import train
from longtail.engine.optim import learning_rate
from longtail.engine.preflight import preflight
from longtail.engine.profile import profile
from longtail.engine.stages import Finished
from longtail.errors import LongtailError
from longtail.files import write_json
from longtail.measure.groups import by_terciles
from longtail.methods.method import Method
from longtail.models.backbone import count_parameters
from longtail.recipe import Pixels, Recipe, Stage
from longtail.segmentation import metrics, model, objective
from longtail.segmentation.augment import Crops, Whole
from longtail.segmentation.loader import IMAGENET_MEAN, IMAGENET_STD, PixelLoader, endless
from longtail.segmentation.metrics import Confusion
from longtail.segmentation.model import PixelModel
from longtail.segmentation.table import PixelTable
from longtail.wording import number_of


def run(
    recipe: Recipe,
    table: PixelTable,
    out: Path,
    device: Device,
    *,
    progress: Progress,
    stop_requested: Callable[[], int | None] = lambda: None,
    workers: int | None = None,
) -> list[Finished]:
    """Train every stage that is not finished yet; the answering one is last."""
    check(recipe, table)
    finished = []
    for number, stage in enumerate(recipe.stages):
        folder = out if number == len(recipe.stages) - 1 else out / stage.name
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "result.json").exists():
            done = Finished(**json.loads((folder / "result.json").read_text()))
        else:
            progress.say(f"{stage.name}: {describe(stage, pixels_of(recipe))}")
            done = _train_stage(recipe, stage, table, out, folder, device, progress, stop_requested, workers)
        finished.append(done)
    return finished


def check(recipe: Recipe, table: PixelTable) -> None:
    """Find a mistake in a later stage before an earlier one has trained for hours."""
    pixels, counts = pixels_of(recipe), table.counts()
    if not counts.any():
        raise LongtailError(f"{table.name} has no labelled training pixel: look at its masks and its class list")
    if not len(table.rows("test")) and not len(table.rows("val")):
        raise LongtailError(f"{table.name} has no images to test on: put some in images/test and masks/test")
    if pixels.inference not in ("whole", "slide"):
        raise LongtailError(f"inference is whole or slide, not {pixels.inference!r}")
    for stage in recipe.stages:
        if stage.sampler != "instance" or stage.trains != "all" or stage.start_from:
            raise LongtailError("segmentation has no samplers, no head stage and no earlier start: leave them out")
        objective.build(stage.method, counts.tolist(), 8, stage.settings)
        learning_rate(stage.optim, 0.0, stage.epochs)
        if stage.ema:
            raise LongtailError("segmentation keeps no average of the weights: leave ema out")
        if stage.keys == "momentum":
            raise LongtailError("segmentation takes its keys from a teacher: name a run folder, or leave --teacher out")
        if stage.keys and stage.keys not in [other.name for other in recipe.stages]:
            trained.same_classes(table.classes, model.load(stage.keys).classes, stage.keys)


def try_out(
    recipe: Recipe,
    table: PixelTable,
    folder: Path,
    device: Device,
    progress: Progress,
    workers: int | None,
    profiling: bool = False,
) -> None:
    """Everything up to the first epoch of every stage, with untrained teachers, in a folder that is thrown away."""
    check(recipe, table)
    pixels = pixels_of(recipe)
    for stage in recipe.stages:
        method = build_method(stage, pixels, table, folder, device)
        (folder / stage.name).mkdir()
        loader = training_images(stage, pixels, table, device, recipe.seed, workers, len(method.views))
        passed = preflight(stage, method, loader, whole_images(pixels, table, device, workers), device, folder)
        model.save(folder / stage.name, method, stage, pixels, table, IMAGENET_MEAN, IMAGENET_STD)
        progress.say(f"{stage.name}: {describe(stage, pixels)}")
        progress.say(f"  preflight ok {passed.seconds:.1f} s, {len(loader)} steps an epoch")
        if profiling and stage.epochs:
            progress.say(profile(stage, method, loader, device, recipe.seed))


def _train_stage(
    recipe: Recipe,
    stage: Stage,
    table: PixelTable,
    out: Path,
    folder: Path,
    device: Device,
    progress: Progress,
    stop_requested: Callable[[], int | None],
    workers: int | None,
) -> Finished:
    pixels = pixels_of(recipe)
    torch.manual_seed(recipe.seed)
    method = build_method(stage, pixels, table, out, device)
    method.join(dist.ranks())
    loader = training_images(stage, pixels, table, device, recipe.seed, workers, len(method.views))
    test, groups = whole_images(pixels, table, device, workers), by_terciles(table.counts())

    def evaluate(method: Method) -> dict[str, Any]:
        method.eval()
        return metrics.summarise(count(scores_of(method, pixels), test, table.num_classes, device), groups)

    passed = preflight(stage, method, loader, test, device, folder)
    progress.say(f"preflight ok (one step, one evaluation batch, one checkpoint round trip) {passed.seconds:.1f} s")
    train(
        stage,
        method,
        loader,
        device,
        folder,
        seed=recipe.seed,
        evaluate=evaluate,
        evaluate_every=recipe.evaluate_every,
        progress=progress,
        stop_requested=stop_requested,
        some_unused=bool(dist.largest(passed.some_unused)),
    )
    method.eval()
    matrix = count(scores_of(method, pixels), test, table.num_classes, device)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = Finished(
        stage.name,
        stage.method,
        stage.model,
        parameters=count_parameters(method.backbone) + count_parameters(method.objective.likelihood),  # type: ignore[arg-type]
        epochs=stage.epochs,
        hours=sum(row["seconds"] for row in rows) / 3600,
        summary=metrics.summarise(matrix, groups),
    )
    if dist.is_main():
        metrics.write_csv(folder / "per_class.csv", matrix, table.classes, table.counts(), groups)
        model.save(folder, method, stage, pixels, table, IMAGENET_MEAN, IMAGENET_STD)
        write_json(folder / "result.json", result.__dict__)
    dist.barrier()
    return result


def build_method(stage: Stage, pixels: Pixels, table: PixelTable, out: Path, device: Device) -> Method:
    """On the device; a teacher comes from its folder below `out`, or from elsewhere."""
    teacher: PixelModel | None = None
    if stage.keys:
        folder = out / stage.keys if (out / stage.keys / "model.json").exists() else Path(stage.keys)
        teacher = model.load(folder)
    wanted = stage.pretrained and not stage.weights
    method = model.build_method(stage, pixels, table.counts(), teacher, pretrained=wanted)
    if stage.weights:
        trained.load_backbone(method.backbone.encoder.model, stage.weights)  # type: ignore[arg-type, union-attr]
    method.to(device.torch, memory_format=device.memory_format)  # type: ignore[call-overload]
    return method


def training_images(
    stage: Stage, pixels: Pixels, table: PixelTable, device: Device, seed: int, workers: int | None, views: int = 1
) -> PixelLoader:
    rows = table.rows("train")
    steps = pixels.steps or max(1, len(rows) // stage.batch_size)
    return PixelLoader(
        table,
        endless(rows, steps * stage.batch_size, seed),
        Shard(stage.batch_size, dist.rank(), dist.world()),
        Crops(pixels.crop, pixels.scale, pixels.short_side),
        views=views,
        seed=seed,
        device=device.torch,
        workers=_workers(workers),
        channels_last=device.channels_last,
    )


def tested(table: PixelTable) -> str:
    """The split that is reported on."""
    return "test" if len(table.rows("test")) else "val"


def whole_images(
    pixels: Pixels, table: PixelTable, device: Device, workers: int | None = None, split: str | None = None
) -> PixelLoader:
    """Of a split, one image at a time, because their sizes differ."""
    split = split or tested(table)
    rows = table.rows(split) if split in SPLITS else np.empty(0, np.int64)
    if not len(rows):
        there = ", ".join(name for name in SPLITS if len(table.rows(name)))
        raise LongtailError(f"{table.name} has no images in a split {split!r}: it has {there}")
    return PixelLoader(
        table,
        lambda epoch: rows,
        Shard(dist.world(), dist.rank(), dist.world(), drop_last=False),
        Whole(pixels.short_side),
        device=device.torch,
        workers=_workers(workers),
        channels_last=device.channels_last,
    )


def _workers(asked: int | None) -> int:
    return max(1, (os.cpu_count() or 2) - 1) if asked is None else asked


Answer = Callable[[Tensor, tuple[int, int]], Tensor]  # images [B, 3, h, w], a size -> scores [B, C, *size]


def scores_of(method: Method, pixels: Pixels) -> Answer:
    return lambda images, size: model.answers(method, method.scores, images, size, pixels)


@torch.no_grad()
def count(answer: Answer, loader: PixelLoader, num_classes: int, device: Device):
    """Answer every image of a loader, and count: the confusion matrix [C, C]. Each rank answers its share."""
    confusion = Confusion(num_classes, device.torch)
    for batch in loader.epoch(0):
        with device.autocast():
            scores = answer(batch.views[0], (batch.labels.shape[1], batch.labels.shape[2]))
        confusion.update(scores.argmax(1), batch.labels)
    dist.sum_over_ranks(confusion.state)
    return confusion.matrix()


def pixels_of(recipe: Recipe) -> Pixels:
    if recipe.pixels is None:
        raise LongtailError("this is a recipe of a classifier: a segmentation's has a table `pixels`")
    return recipe.pixels


def describe(stage: Stage, pixels: Pixels) -> str:
    keys = f", keys from {stage.keys}" if stage.keys else ""
    return (
        f"{stage.method} {stage.settings or ''} on {pixels.architecture} over {stage.model}, stride "
        f"{pixels.output_stride}, crops of {pixels.crop[1]} x {pixels.crop[0]}, {number_of(stage.epochs, 'epoch')}, "
        f"batch {stage.batch_size}{keys}"
    )
