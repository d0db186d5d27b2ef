"""A bank's second answer: the mixture over it, and the average of that and the head's, measured beside the head's own.

    average = (1 - w) log s_head(x|c) + w log s_bank(x|c)

w is fitted on `val` where there is one, for a training row would find itself in the bank. Without a `val` split it is
1/2: both are log-likelihoods, and nothing is chosen on the test split.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longtail.contrast.bank import Bank
from longtail.data.loader import Loader
from longtail.engine import dist
from longtail.engine.device import Device
from longtail.engine.inputs import Inputs
from longtail.measure.calibrate import average_weight
from longtail.measure.counters import Counters
from longtail.measure.per_class import PerClass
from longtail.methods.method import Method
from longtail.prior import prior_free

UNFITTED = 0.5


def has_bank(method: Method) -> bool:
    bank = getattr(method.objective, "bank", None)
    return isinstance(bank, Bank) and bank.any_filled


@torch.no_grad()
def fitted_weight(method: Method, inputs: Inputs) -> float | None:
    """w, or None where there is no `val`. Every rank answers all of it."""
    if not len(inputs.table.rows("val")):
        return None
    cosine, kernel, labels = [], [], []
    for batch in inputs.plain("val", whole=True).epoch(0):
        with inputs.device.autocast():
            first_bc, second_bc = _both(method, batch.views[0])
        cosine.append(first_bc)
        kernel.append(second_bc)
        labels.append(batch.labels)
    first, second, truth = (torch.cat(parts).cpu() for parts in (cosine, kernel, labels))
    return average_weight(first.float().numpy(), second.float().numpy(), truth.numpy())


@torch.no_grad()
def count(
    method: Method, loader: Loader, num_classes: int, device: Device, weight: float | None
) -> dict[str, PerClass]:
    """What the mixture (`kernel`) and the average of both (`both`) answer, prior-free, in one pass."""
    weight = UNFITTED if weight is None else weight
    counters = {name: Counters(num_classes, device=device.torch) for name in ("kernel", "both")}
    for batch in loader.epoch(0):
        with device.autocast():
            cosine_bc, kernel_bc = _both(method, batch.views[0])
        counters["kernel"].update(kernel_bc, batch.labels)
        counters["both"].update(average(cosine_bc, kernel_bc, weight), batch.labels)
    for counter in counters.values():
        dist.sum_over_ranks(counter.state)
    return {name: counter.per_class() for name, counter in counters.items()}


def average(cosine_bc: Tensor, kernel_bc: Tensor, weight: float) -> Tensor:
    """A class of which the bank holds nothing is the head's alone."""
    known = kernel_bc > -torch.inf
    return torch.where(known, (1 - weight) * cosine_bc + weight * kernel_bc.where(known, 0.0), cosine_bc)


def _both(method: Method, images: Tensor) -> tuple[Tensor, Tensor]:
    objective: Any = method.objective
    features_bd = method.backbone(images)
    cosine_bc = prior_free(objective.scores(features_bd), objective.log_mass, objective.log_added)
    return cosine_bc, objective.kernel_loglik(features_bd)
