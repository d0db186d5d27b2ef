"""SGD, its weight-decay groups, and the learning rate as a function of the epoch."""

from __future__ import annotations

import math

import torch
from torch import nn

from longtail.errors import LongtailError
from longtail.recipe import Optim, nearest


def build_optimiser(method: nn.Module, optim: Optim) -> torch.optim.SGD:
    """Two groups: what decays and what does not. Scalars are temperatures and are never decayed."""
    learned = [parameter for parameter in method.parameters() if parameter.requires_grad]
    spared_below = 1 if optim.decay_norm_and_bias else 2
    groups = [
        {"params": [p for p in learned if p.ndim >= spared_below], "weight_decay": optim.weight_decay},
        {"params": [p for p in learned if p.ndim < spared_below], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]], lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov
    )


def learning_rate(optim: Optim, epoch: float, epochs: int) -> float:
    """At a fractional epoch: linear warm-up, then cosine to zero, steps or poly."""
    if epoch < optim.warmup_epochs:
        return optim.lr * (epoch + 1e-3) / optim.warmup_epochs
    if optim.schedule == "cosine":
        done = (epoch - optim.warmup_epochs) / max(epochs - optim.warmup_epochs, 1e-9)
        return optim.lr * 0.5 * (1 + math.cos(math.pi * done))
    if optim.schedule == "steps":
        return optim.lr * optim.step_factor ** sum(epoch >= at * epochs for at in optim.steps_at)
    if optim.schedule == "poly":  # of power 0.9, down to a hundredth: mmsegmentation's
        return optim.lr * (0.01 + 0.99 * (1 - epoch / epochs) ** 0.9)
    raise LongtailError(f"there is no schedule {optim.schedule!r}{nearest(optim.schedule, ('cosine', 'steps', 'poly'))}")
