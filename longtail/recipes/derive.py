"""Few dials in, a whole recipe out: what was not said is derived from the data, and the reasons are printed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from longtail.data import tails
from longtail.data.benchmarks import is_benchmark
from longtail.errors import LongtailError
from longtail.methods import find, settings_of
from longtail.models.backbone import is_clip
from longtail.recipe import Data, Optim, Recipe, Stage, check_dials


def derive(
    data: Data,
    counts: np.ndarray,
    image_size: int | None,
    *,
    method: str | None = None,
    model: str | None = None,
    teacher: str | None = None,
    first_stage: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
    pretrained: bool = True,
    weights: str | None = None,
    sentences: str | None = None,
    seed: int = 0,
    precision: str = "auto",
) -> tuple[Recipe, list[str]]:
    """`image_size` is None for images on disk, whose sizes differ.

    `teacher` is a model's name or a run folder, `first_stage` a run folder.
    """
    check_dials(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed)
    images, why = int(counts.sum()), []
    if method is None:
        words, method = tails.verdict(counts)
        why.append(f"method {method}: {words}")
    said = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "augment": augment}
    small = image_size is not None and image_size <= 64
    published = find(method)
    if model is None and "templates" in settings_of(method):
        model = "clip:ViT-B-16/openai"
        why.append(f"model {model}: {method} reads sentences")
    if model is None:
        model = (
            ("resnet32" if image_size == 32 else "small") if small else "resnet18" if images < 20_000 else "resnet50"
        )
        why.append(f"model {model}: {images:,} images" + (f" of {image_size} pixels" if small else ""))
    if batch_size is None:
        batch_size = int(min(128, max(16, 2 ** round(np.log2(images / 20)))))
    if epochs is None:
        epochs = 200 if small else 30 if pretrained else 90
        if not is_clip(model):
            why.append(f"{epochs} epochs: " + ("small images, trained from scratch" if small else "larger images"))
    if augment is None:
        augment = _augmentation(data.source, small)
    if lr is None:
        lr = 0.1 * batch_size / 128 * (1 if small or not pretrained else 0.2)
    base = Stage(
        method=method,
        model=model,
        pretrained=pretrained and (is_clip(model) or not small),
        weights=weights,
        epochs=epochs,
        batch_size=batch_size,
        augment=augment,
        optim=Optim(lr=lr, warmup_epochs=min(5.0, epochs / 20)),
        settings=_settings(method, counts, why) | _text(method, sentences),
    )
    if is_clip(model):
        from longtail.recipes.clip import fine_tuned

        base = fine_tuned(base, counts, said, why)
    why.append(_schedule(base))
    stages = published.stages(base)
    if teacher is not None:
        stages = _with_teacher(method, stages, teacher)
    if first_stage is not None:
        stages = _with_first_stage(method, stages, first_stage)
    return Recipe(
        data=data,
        stages=stages,
        name=f"{data.source.rstrip('/').split('/')[-1]}-{method}",
        seed=seed,
        precision=precision,
        evaluate_every=max(1, base.epochs // 10),
        groups="threshold" if is_benchmark(data.source) else "terciles",
    ), why


def _schedule(stage: Stage) -> str:
    optim = stage.optim
    return (
        f"{optim.kind} from {optim.lr:.3g} for batch {stage.batch_size}, {optim.schedule}, "
        f"{optim.warmup_epochs:g} epochs of warm-up | views: {stage.augment}"
    )


def _augmentation(source: str, small: bool) -> str:
    if is_benchmark(source, "cifar"):
        return "autoaugment"
    if is_benchmark(source, "digits"):
        return "shift"  # a mirrored digit is another sign
    return "weak" if small else "randaugment"


def _settings(method: str, counts: np.ndarray, why: list[str]) -> dict[str, Any]:
    """k from the numbers of classes and of images, and the distillation that the paper's small experiments need."""
    known = settings_of(method)
    if "k" not in known or "k_m" not in known:
        return {}
    wanted = max(8 * len(counts), int(counts.sum()) // 3)
    k = int(min(65536, 2 ** int(np.ceil(np.log2(max(wanted, 64))))))
    why.append(f"bank of {k:,} samples: {len(counts)} classes, {int(counts.sum()):,} images")
    return {"k": k} | ({"kd_weight": 1.0} if "kd_weight" in known else {})


def _text(method: str, sentences: str | None) -> dict[str, Any]:
    if sentences is None:
        return {}
    if "sentences" not in settings_of(method):
        raise LongtailError(f"{method} reads no sentences: leave --sentences out, or train --method gml_text")
    return {"sentences": sentences}


def _with_teacher(method: str, stages: tuple[Stage, ...], teacher: str) -> tuple[Stage, ...]:
    """A run folder replaces the teacher's stage, as `momentum` does; a model's name says what that stage trains."""
    if len(stages) == 1 or not stages[-1].keys:
        raise LongtailError(f"{method} has no stage with a teacher: leave --teacher out")
    if teacher == "momentum" or "/" in teacher or teacher.startswith("."):
        return (replace(stages[-1], name="train", keys=teacher),)
    return (replace(stages[0], model=teacher), *stages[1:])


def _with_first_stage(method: str, stages: tuple[Stage, ...], run: str) -> tuple[Stage, ...]:
    """A run folder replaces the stage that the others start from, so that several methods share one backbone."""
    first, *rest = stages
    if not rest or any(stage.start_from != first.name for stage in rest):
        raise LongtailError(f"{method} has no stage that starts from an earlier one: leave --first-stage out")
    return tuple(replace(stage, start_from=run) for stage in rest)
