"""SGD or AdamW, its groups of parameters, and the learning rate as a function of the epoch."""

from __future__ import annotations

import math

import torch
from torch import nn

from longtail.errors import LongtailError
from longtail.recipe import Optim, nearest


def build_optimiser(method: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Groups by what decays and by rate. Scalars are temperatures and are never decayed."""
    spared_below = 1 if optim.decay_norm_and_bias else 2
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            rate = next((rate for start, rate in optim.rates.items() if name.startswith(start)), 1.0)
            decay = optim.weight_decay if parameter.ndim >= spared_below else 0.0
            groups.setdefault((rate, decay), []).append(parameter)
    described = [{"params": params, "rate": rate, "weight_decay": decay} for (rate, decay), params in groups.items()]
    if optim.kind == "adamw":
        return torch.optim.AdamW(described, lr=optim.lr)
    if optim.kind == "sgd":
        return torch.optim.SGD(described, lr=optim.lr, momentum=optim.momentum, nesterov=optim.nesterov)
    raise LongtailError(f"there is no optimiser {optim.kind!r}{nearest(optim.kind, ('sgd', 'adamw'))}")


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
    known = nearest(optim.schedule, ("cosine", "steps", "poly"))
    raise LongtailError(f"there is no schedule {optim.schedule!r}{known}")
