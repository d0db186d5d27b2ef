"""A recipe becomes a run folder: stage after stage, each trained, answered and saved, in one command.

The last stage owns the run folder; an earlier one has a folder in it under its own name. A stage that later ones only
read (a teacher) is also kept in a cache, under the hash of everything it depends on, and reused.
"""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail import __version__
from longtail.contrast.momentum import MomentumEncoder
from longtail.data import benchmarks, splits
from longtail.data.batch_augment import named
from longtail.data.columns import Columns
from longtail.data.decode import BadImage
from longtail.data.loader import Loader
from longtail.data.samplers import class_shares
from longtail.data.table import FileStore, ImageStore, ImageTable, first_good, in_memory
from longtail.engine import dist, second_answer, trained
from longtail.engine.device import Device
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.engine.loop import train
from longtail.engine.optim import learning_rate
from longtail.engine.preflight import preflight
from longtail.engine.profile import profile
from longtail.errors import LongtailError
from longtail.files import atomic, read_json, write_json
from longtail.measure.counters import Counters
from longtail.measure.groups import Groups, by_terciles, by_threshold
from longtail.measure.metrics import Summary, summarise
from longtail.measure.per_class import PerClass, write_csv
from longtail.methods import build_objective, find
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.models.teacher import Teacher
from longtail.prior import log_prior
from longtail.recipe import Data, Recipe, Stage, nearest, to_dict
from longtail.wording import number_of

VIEWS = ("class", "query", "key")  # a method takes one, two or all of them


@dataclass(frozen=True)
class Finished:
    """What is known of a finished stage; `result.json` in its folder."""

    stage: str
    method: str
    model: str
    parameters: int
    epochs: int
    hours: float
    summary: Summary  # of the last epoch, answered as trained
    second: dict[str, Summary] = field(default_factory=dict)  # what a bank answers, see `second_answer.py`
    reused: bool = False


def load_data(data: Data, say: Callable[[str], None] = lambda line: None) -> ImageTable:
    """The table of a recipe, with something to report on and, where its images are small, in memory."""
    table = benchmarks.load(
        os.path.expanduser(data.source),
        root=data.root and os.path.expanduser(data.root),
        imbalance=data.imbalance,
        profile=data.profile,
        subset_seed=data.subset_seed,
        columns=Columns(label=data.label_column, group=data.group_column),
    )
    return ready(table, data, say)


def ready(table: ImageTable, data: Data, say: Callable[[str], None] = lambda line: None) -> ImageTable:
    """A table with the splits that a recipe wants."""
    if data.on_bad_image not in ("stop", "skip"):
        raise LongtailError(f"--on-bad-image is stop or skip, not {data.on_bad_image!r}")
    if not len(table.rows("train")):
        raise LongtailError(f"{data.source} has no training images")
    if (present := np.flatnonzero(table.counts())).size == 1:
        raise LongtailError(
            f'all training images of {data.source} are of the class "{table.classes[present[0]]}": a classifier needs '
            f"a second one to tell it from"
        )
    table = _held_in_memory(table, data.on_bad_image, say)
    if not len(table.rows("test")) and not len(table.rows("val")):
        table, report = splits.hold_out(table, "test", data.test_fraction)
        say(report)
    if not 0 <= data.val_fraction < 1:
        raise LongtailError(f"--hold-out takes a share of each class, from 0 to under 1, not {data.val_fraction:g}")
    if data.val_fraction and not len(table.rows("val")):
        table, report = splits.hold_out(table, "val", data.val_fraction)
        say(report)
    if leaks := splits.leaking_groups(table):
        say(
            f"groups on both sides of a split: {leaks['groups']:,}, with {leaks['images']:,} images; results will be "
            f"better than on new groups (leave the split out, and one is made that keeps groups together)"
        )
    return table


def _held_in_memory(table: ImageTable, on_bad_image: str, say: Callable[[str], None]) -> ImageTable:
    """Small images of one size are decoded once; all others stay where they are and are read as they are needed."""
    height, width, _ = first_good(table)[1].shape
    if max(height, width) > 64 or len(table) * height * width * 3 > 4e9:
        return table
    bad: dict[int, str] = {}
    try:
        held = in_memory(table, bad if on_bad_image == "skip" else None)
    except BadImage:
        raise
    except LongtailError:  # sizes differ
        return table
    if bad:
        say(f"images that cannot be used: {len(bad):,}, left out; the first: {bad[min(bad)]}")
    return held


def run(
    recipe: Recipe,
    table: ImageTable,
    out: Path,
    device: Device,
    *,
    progress: Progress,
    stop_requested: Callable[[], int | None] = lambda: None,
    use_cache: bool = True,
    workers: int | None = None,
) -> list[Finished]:
    """Train every stage that is not finished yet; the answering one is last."""
    check(recipe, table)
    inputs = Inputs.of(recipe, table, device, workers)
    finished = []
    for number, stage in enumerate(recipe.stages):
        folder = out if number == len(recipe.stages) - 1 else out / stage.name
        folder.mkdir(parents=True, exist_ok=True)
        cached, cache = False, None
        if dist.is_main() and use_cache and _is_teacher(recipe, stage):
            cache = _cache_folder(recipe, number, table)
            cached = not (folder / "result.json").exists() and _take_from_cache(cache, folder)
        dist.barrier()
        if (done := _read_result(folder)) is None:
            progress.say(f"{stage.name}: {describe(stage)}")
            done = _train_stage(recipe, stage, inputs, out, folder, progress, stop_requested)
            _report_bad_images(inputs, out, progress)
            if cache is not None:
                _put_into_cache(cache, folder)
        elif cached:
            done = replace(done, reused=True)
            progress.say(f"{stage.name}: taken from the cache")
        if dist.is_main():  # the stage is over: nothing is left to resume
            shutil.rmtree(folder / "state", ignore_errors=True)
        finished.append(done)
    return finished


def _report_bad_images(inputs: Inputs, out: Path, progress: Progress) -> None:
    """Count and name what was skipped, whichever rank met it."""
    if inputs.on_bad_image == "stop" or inputs.pixels is not None:
        return
    images = inputs.table.images
    met = torch.zeros(len(inputs.table), dtype=torch.int32)
    met[sorted(inputs.bad)] = 1
    rows = dist.sum_over_ranks(met).nonzero()[:, 0].tolist()
    if not (rows and dist.is_main()):
        return
    text = io.StringIO()
    csv.writer(text).writerows(
        [("image", "reason"), *((images.name(row), inputs.bad.get(row, "met by another rank")) for row in rows)]
    )
    with atomic(out / "bad_images.csv") as file:
        file.write(text.getvalue().encode())
    progress.say(
        f"images that cannot be used: {len(rows):,}; a training took others of their batches instead, an evaluation "
        f"left them out; {out / 'bad_images.csv'} names them"
    )


def check(recipe: Recipe, table: ImageTable) -> None:
    """Find a mistake in a later stage before an earlier one has trained for hours."""
    earlier: list[str] = []
    for stage in recipe.stages:
        backbones.check_name(stage.model)
        objective: Any = build_objective(stage.method, table.counts(), 8, stage.settings, 8, stage.model)
        if unknown := sorted(set(stage.views) - set(VIEWS)):
            raise LongtailError(f"stage {stage.name}: there is no view {unknown[0]!r}{nearest(unknown[0], VIEWS)}")
        named([stage.views.get(view, stage.augment) for view in objective.student_views + objective.key_views])
        _check_cached(stage, objective)
        class_shares(stage.sampler, table.counts())
        if stage.keys == "momentum" and hasattr(objective, "bank") and getattr(objective, "wants_full_bank", False):
            raise LongtailError(
                f"{stage.name}: a full bank is filled once, before training, when a momentum encoder knows nothing: "
                "take bank=ring, or a teacher"
            )
        learning_rate(stage.optim, 0.0, stage.epochs)
        for start in (stage.keys, stage.start_from):
            if start and start not in ("momentum", "frozen", *earlier):
                trained.same_classes(table.classes, trained.load(start).classes, start)
        earlier.append(stage.name)


def _check_cached(stage: Stage, objective: Any) -> None:
    views = getattr(objective, "bank_views", 0)
    if stage.cached_views < views:
        raise LongtailError(f"bank_views={views} takes {views} of the cached views: say cached_views={views} or more")
    if not stage.cached_views:
        return
    asked = objective.wants_key_scores or getattr(objective, "class_keys", False) or views
    if stage.keys in ("", "momentum") or objective.student_views[0] != "class" or not asked:
        raise LongtailError(
            f"cached_views={stage.cached_views} keeps what a frozen teacher says of the class view, and nothing here "
            "asks it: set kd_weight or keys_of=class and a teacher, or leave cached_views out"
        )
    if getattr(objective, "mixup", 0):
        raise LongtailError("cached_views keeps what the teacher says of whole images, and mixup shows it mixed ones")


def try_out(
    recipe: Recipe,
    table: ImageTable,
    folder: Path,
    device: Device,
    progress: Progress,
    workers: int | None,
    profiling: bool = False,
) -> None:
    """Everything up to the first epoch of every stage, with untrained teachers, in a folder that is thrown away.

    `profiling`: then a few steps, and where their time went.
    """
    check(recipe, table)
    inputs = Inputs.of(recipe, table, device, workers)
    for stage in recipe.stages:
        method = build_method(stage, table, folder)
        method.to(device.torch, memory_format=device.memory_format)  # type: ignore[call-overload]
        (folder / stage.name).mkdir()
        loader, test = inputs.train(stage, method.views), inputs.plain(inputs.reported)
        seconds = preflight(stage, method, loader, test, device, folder).seconds if stage.epochs else 0.0
        trained.save(folder / stage.name, method, stage, inputs.card())
        progress.say(f"{stage.name}: {describe(stage)}\n  preflight ok {seconds:.1f} s, {len(loader)} steps an epoch")
        if profiling and stage.epochs:
            _prepare(stage, method, inputs)
            progress.say(profile(stage, method, loader, device, recipe.seed))


def forget(folder: Path) -> None:
    """Remove what an earlier run left in a folder, so that a run starts from nothing."""
    for name in ("result.json", "metrics.jsonl"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "state", ignore_errors=True)


def _train_stage(
    recipe: Recipe, stage: Stage, inputs: Inputs, out: Path, folder: Path, progress: Progress, stop_requested
) -> Finished:
    table, device = inputs.table, inputs.device
    torch.manual_seed(recipe.seed)
    method = build_method(stage, table, out)
    method.to(device.torch, memory_format=device.memory_format)  # type: ignore[call-overload]
    method.join(dist.ranks())
    if stage.ema:
        method.keep_average(stage.ema)
    loader, test = inputs.train(stage, method.views), inputs.plain(inputs.reported)
    groups = groups_of(recipe, table)

    def counted(method: Method) -> PerClass | None:
        """None of an encoder, which cannot answer."""
        method.eval()
        return count(method.scores, test, table.num_classes, device) if stage.answers else None

    def summary_of(classes: PerClass | None) -> Summary:
        return {} if classes is None else summarise(classes, table.counts(), lambda counts: groups)

    def evaluate(method: Method) -> Summary:
        with method.answering():
            return summary_of(counted(method))

    some_unused = False
    if stage.epochs:
        passed = preflight(stage, method, loader, test, device, folder)
        some_unused = bool(dist.largest(passed.some_unused))
        progress.say(f"preflight ok (one step, one evaluation batch, one checkpoint round trip) {passed.seconds:.1f} s")
    _prepare(stage, method, inputs)
    if stage.epochs:  # a post-hoc method makes its head from an earlier stage's and trains nothing
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
            some_unused=some_unused,
        )
    with method.answering():
        classes = counted(method)
        weight, second = None, {}
        if stage.answers and second_answer.has_bank(method):
            weight = second_answer.fitted_weight(method, inputs)
            second = second_answer.count(method, test, table.num_classes, device, weight)
        result = Finished(
            stage.name,
            stage.method,
            stage.model,
            parameters=backbones.count_parameters(method.backbone)
            + backbones.count_parameters(method.objective.likelihood),  # type: ignore[arg-type]
            epochs=stage.epochs,
            hours=sum(row["seconds"] for row in _read_metrics(folder)) / 3600,
            summary=summary_of(classes),
            second={name: summary_of(answer) for name, answer in second.items()},
        )
        if dist.is_main():
            if classes is not None:
                write_csv(folder / "per_class.csv", classes, table.classes, table.counts(), groups)
            about = inputs.card() | {"groups": recipe.groups}
            about |= {} if weight is None else {"kernel_weight": weight}
            trained.save(folder, method, stage, about)
            write_json(folder / "result.json", result.__dict__)
    dist.barrier()
    return result


@torch.no_grad()
def _prepare(stage: Stage, method: Method, inputs: Inputs) -> None:
    """What is asked of a frozen teacher once, before the first step."""
    method.eval()
    with inputs.device.autocast():
        if stage.cached_views:
            method.remember(inputs.pictures(stage).epoch, stage.cached_views)
        method.prepare(inputs.plain("train").epoch(0))


def build_method(stage: Stage, table: ImageTable, out: Path, *, reads: bool = True) -> Method:
    """Backbone, key encoder and objective of a stage, with the weights it starts from.

    Without `reads` an objective that can `imagine` what is said about the classes is left to do so.
    """
    find(stage.method)
    counts = table.counts()
    if (counts == 0).all():
        raise LongtailError(f"{table.name} has no training images")
    pretrained = stage.pretrained and not stage.weights
    backbone = backbones.build(stage.model, pretrained=pretrained, zero_init=stage.zero_init)
    if stage.weights:
        trained.load_backbone(backbone, stage.weights)
    teacher = None
    if stage.keys and stage.keys not in ("momentum", "frozen"):
        folder = out / stage.keys if (out / stage.keys / "model.json").exists() else Path(stage.keys)
        model = trained.load(folder)
        trained.same_classes(table.classes, model.classes, folder)
        theirs: Any = model.method.objective
        teacher = Teacher(model.method.backbone, theirs.likelihood, theirs.log_mass, theirs.log_added)  # type: ignore[arg-type]
    dim: int = backbone.dim  # type: ignore[assignment]
    key_dim = teacher.dim if teacher else dim
    objective = build_objective(stage.method, counts, dim, stage.settings, key_dim, stage.model)
    if stage.sampler != "instance":
        shares = class_shares(stage.sampler, counts, stage.epochs - 1, stage.epochs)
        # On top of class weights. A class without images has no mass before or after: -inf - -inf is nothing to add.
        objective.log_mass += (log_prior(shares) - log_prior(counts)).nan_to_num(nan=0.0)  # type: ignore[operator]
    earlier = None
    if stage.start_from:
        earlier = trained.load(out / stage.start_from if (out / stage.start_from).exists() else Path(stage.start_from))
        backbone.load_state_dict(earlier.method.backbone.state_dict())
        if hasattr(objective.likelihood, "inherit"):
            objective.likelihood.inherit(earlier.method.objective.likelihood)  # type: ignore[operator]
    if hasattr(objective, "read") and (reads or not hasattr(objective, "imagine")):
        tower = getattr(earlier.method.objective, "tower", None) if earlier else None  # one that has been trained
        objective.read(table.classes, tower or text_tower(stage))  # type: ignore[operator]
    if stage.trains == "head":
        backbone.requires_grad_(False)
    if stage.keys == "momentum":
        teacher = MomentumEncoder(backbone, objective.likelihood)  # type: ignore[arg-type]
    elif stage.keys == "frozen":
        teacher = Teacher(copy.deepcopy(backbone), torch.nn.Identity())
    return Method(backbone, objective, teacher)


def text_tower(stage: Stage) -> torch.nn.Module:
    """What reads the sentences of a method that has some."""
    from longtail.vision_language.clip import TextTower

    if not backbones.is_clip(stage.model):
        raise LongtailError(
            f"{stage.method} reads sentences and {stage.model} cannot: choose a CLIP, as in --clip ViT-B-16/openai"
        )
    return TextTower(stage.model, pretrained=stage.pretrained)


@torch.no_grad()
def count(answer: Callable[[torch.Tensor], torch.Tensor], loader: Loader, num_classes: int, device: Device) -> PerClass:
    """Answer every image of a loader, and count. Each rank answers its share."""
    counters = Counters(num_classes, device=device.torch)
    for batch in loader.epoch(0):
        with device.autocast():
            scores_bc = answer(batch.views[0])
        counters.update(scores_bc, batch.labels)
    dist.sum_over_ranks(counters.state)
    return counters.per_class()


def groups_of(recipe: Recipe, table: ImageTable) -> Groups:
    return (by_threshold if recipe.groups == "threshold" else by_terciles)(table.counts())


def describe(stage: Stage) -> str:
    """The stage in a line, with its row of the method table."""
    row = find(stage.method)
    keys = f", keys from {stage.keys}" if stage.keys else ""
    return (
        f"{stage.method} on {stage.model}, {number_of(stage.epochs, 'epoch')}, batch {stage.batch_size}{keys}\n"
        f"  likelihood {row.likelihood} | samples {row.samples} | prior {row.prior} | numerator {row.numerator}"
    )


# ---- the cache of teachers ----------------------------------------------------------------------------------------


def _is_teacher(recipe: Recipe, stage: Stage) -> bool:
    return any(stage.name in (other.keys, other.start_from) for other in recipe.stages)


def _cache_folder(recipe: Recipe, number: int, table: ImageTable) -> Path:
    """Named by a hash of what a stage's result depends on: images, all stages up to it, seed, precision, version."""
    train_rows = table.rows("train")
    digest = hashlib.sha256(table.labels[train_rows].tobytes() + "\0".join(table.classes).encode())
    for row in train_rows.tolist():
        digest.update(_identity(table.images, row))
    stages = [to_dict(replace(stage, name=str(i))) for i, stage in enumerate(recipe.stages[: number + 1])]
    digest.update(json.dumps([stages, recipe.seed, recipe.precision, __version__], sort_keys=True).encode())
    for stage in recipe.stages[: number + 1]:
        for file in backbones.files_of(stage.model):  # another CLIP may have come to lie in the same folder
            digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    root = Path(os.environ.get("LONGTAIL_CACHE") or Path.home() / ".cache" / "longtail")
    return root / "teachers" / digest.hexdigest()[:32]


def _identity(images: ImageStore, row: int) -> bytes:
    """Pixels where they are at hand; of a file name, size and date, because reading them all would take an epoch."""
    if not isinstance(images, FileStore):
        return images.content(row)
    try:
        status = os.stat(images.root / images.name(row))
    except OSError:  # gone: whoever decodes it says so
        return images.name(row).encode(errors="surrogateescape")
    return f"{images.name(row)} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")


def _put_into_cache(target: Path, folder: Path) -> None:
    """A cache that cannot be written to (a full disk, somebody else's home) ends no run."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.mkdtemp(prefix=target.name, suffix=".tmp", dir=target.parent)
        try:
            shutil.copytree(folder, temporary, dirs_exist_ok=True, ignore=shutil.ignore_patterns("state"))
            if not target.exists():  # another run may have finished the same teacher meanwhile
                os.rename(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        warnings.warn(f"{folder} is not kept for other runs in {target} ({error})", stacklevel=2)


def _take_from_cache(source: Path, folder: Path) -> bool:
    """Whether it was there. The result, which says that a stage is complete, comes last."""
    if not (source / "result.json").exists():
        return False
    try:
        trained.load(source)
    except LongtailError as error:
        warnings.warn(f"{error}; it is trained again", stacklevel=2)
        shutil.rmtree(source, ignore_errors=True)
        return False
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("result.json"))
    write_json(folder / "result.json", read_json(source / "result.json"))
    return True


def _read_result(folder: Path) -> Finished | None:
    path = folder / "result.json"
    return Finished(**read_json(path)) if path.exists() else None


def _read_metrics(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
