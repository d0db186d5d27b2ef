"""How a CLIP is fine-tuned where nothing else is said: gently as a whole, or only the small parts put into it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from longtail.methods import settings_of
from longtail.recipe import Optim, Stage
from longtail.vision_language.adapters import adapter_width
from longtail.vision_language.clip import Name


def fine_tuned(base: Stage, counts: np.ndarray, said: dict[str, Any], why: list[str]) -> Stage:
    """`base` with a CLIP's usual training in place of what was not `said` (epochs, batch_size, lr, augment)."""
    name, batch_size = Name.parse(base.model), said["batch_size"] or 128
    if base.method == "zero_shot":
        return replace(base, epochs=0, trains="head")
    if base.method == "lift" and not name.adapter:
        layers = name.config["vision_cfg"].get("layers", 12)
        width = adapter_width(len(counts), layers if isinstance(layers, int) else sum(layers))
        base = replace(base, model=f"{base.model}+adaptformer{width}")
        why.append(f"adapters of width {width}: together about as large as a head of {len(counts)} classes")
    if Name.parse(base.model).adapter:
        epochs, lr = 10, 0.01 * batch_size / 128  # LIFT's
        optim = Optim(lr=said["lr"] or lr)
        why.append("a frozen CLIP: SGD on its adapters and the head")
    else:
        epochs, lr = 20, 1e-5 * (batch_size / 128) ** 0.5
        from_text = "templates" in settings_of(base.method)
        rates = {"objective.tower.": 1.0, "objective.": 10.0 if from_text and base.method != "vl_ltr" else 100.0}
        optim = Optim(kind="adamw", lr=said["lr"] or lr, weight_decay=0.05, decay_norm_and_bias=False, rates=rates)
        why.append(f"all of a CLIP fine-tuned: AdamW, the head learning {rates['objective.']:.0f} times as fast")
    epochs = said["epochs"] if said["epochs"] is not None else epochs
    why[-1] += f", {epochs} epochs"
    return replace(
        base,
        epochs=epochs,
        batch_size=batch_size,
        augment=said["augment"] or base.augment,
        optim=replace(optim, warmup_epochs=min(1.0, epochs / 20)),
    )
