"""Settings of segmentations, derived from the data; the paper's experiment itself is `longtail/recipes/ade20k.py`.

What is said nowhere is mmsegmentation's, on which the paper's runs were made: SGD with momentum 0.9, a poly schedule
from 0.01 at a batch of 16, weight decay 5e-4, an auxiliary loss of weight 0.4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from longtail.errors import LongtailError
from longtail.methods import find
from longtail.recipe import Data, Optim, Pixels, Recipe, Stage, check_dials
from longtail.segmentation.table import PixelTable

TAU_S, TAU_G, K_M = 0.05, 0.07, 27  # the paper's, for ADE20K


def settings_for(method: str, alpha: float, k: int) -> dict[str, Any]:
    """Alpha multiplies the prior and never the loss. L_cls follows it: the classifier is what answers."""
    if method == "cross_entropy":
        return {}
    if method == "balanced_softmax":
        return {"tau": alpha}
    if method == "logit_adjusted":
        return {"tau_s": TAU_S, "tau": alpha}
    return {"tau_s": TAU_S, "tau_g": TAU_G, "k": k, "k_m": K_M, "alpha": alpha, "alpha_cls": alpha}


def stages_of(base: Stage, teacher: str | None) -> tuple[Stage, ...]:
    """GML's teacher is the same network under L_cls with the whole prior, unless a trained one is named."""
    stages = find(base.method).stages(base if teacher is None else replace(base, keys=teacher))
    return tuple(
        replace(stage, settings=settings_for(stage.method, 1.0, 0)) if stage.name == "teacher" else stage
        for stage in stages
    )


def derive(
    data: Data,
    table: PixelTable,
    *,
    method: str = "gml",
    alpha: float | None = None,
    model: str | None = None,
    teacher: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    pretrained: bool = True,
    weights: str | None = None,
    seed: int = 0,
    precision: str = "auto",
) -> tuple[Recipe, list[str]]:
    """Few dials in, a whole recipe out, and the reasons."""
    find(method)
    check_dials(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed)
    if teacher is not None and method != "gml":
        raise LongtailError(f"{method} has no stage with a teacher: leave --teacher out")
    images, why = len(table.rows("train")), []
    alpha = 1.0 if alpha is None else alpha
    model = model or ("resnet18" if images < 2_000 else "resnet50")
    height, width, _ = table.images.decode(int(table.rows("train")[0])).shape
    small = min(height, width) <= 384
    crop = (height // 16 * 16, width // 16 * 16) if small else (512, 512)
    why.append(f"model {model}: {images:,} images; crops of {crop[1]} x {crop[0]}, the first being {width} x {height}")
    batch_size = batch_size or min(16, max(2, images // 8))
    if epochs is None:
        epochs = max(1, round((20_000 if images < 2_000 else 80_000) * batch_size / images))
    k = int(2 ** np.ceil(np.log2(max(1024, 2 * K_M * table.num_classes))))
    if method == "gml":
        why.append(f"bank of {k:,} pixels: {table.num_classes} classes, at least {K_M} each; alpha {alpha:g}")
    base = Stage(
        method=method,
        settings=settings_for(method, alpha, k),
        model=model,
        pretrained=pretrained and weights is None,
        weights=weights,
        epochs=epochs,
        batch_size=batch_size,
        optim=Optim(lr=0.01 * batch_size / 16 if lr is None else lr, schedule="poly"),
    )
    name = data.source.rstrip("/").split("/")[-1]
    return Recipe(
        data=data,
        stages=stages_of(base, teacher),
        name=f"{name}-{method}" + (f"-{alpha:g}" if method != "cross_entropy" else ""),
        seed=seed,
        precision=precision,
        evaluate_every=max(1, epochs // 10),
        pixels=Pixels(crop=crop, short_side=None if small else 512, auxiliary=0.4),
    ), why
