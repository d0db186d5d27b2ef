"""The one-view objective: cross-entropy of a likelihood plus tau log p. Most baselines are an argument of it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from longtail.prior import log_prior
from longtail.template import add_prior, cross_entropy
from longtail.types import Counts, Losses


class Classifier(nn.Module):
    """L = w_y * -log softmax_c( log s(x|c) + tau log p_c )[y], per sample.

    tau = 0 learns the training set's class mix into the scores, tau = 1 keeps it out of them. `loss` takes the place of
    the cross-entropy (focal does); class weights w multiply it and count as class mass.
    """

    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor
    class_weights: Tensor

    def __init__(
        self,
        likelihood: nn.Module,
        counts: Counts,
        tau: float = 1.0,
        *,
        loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
        class_weights_c: Tensor | None = None,
        mixup: float = 0.0,
    ) -> None:
        super().__init__()
        counts_c = torch.as_tensor(counts)
        weights_c = torch.ones(len(counts_c)) if class_weights_c is None else class_weights_c
        self.likelihood, self.loss, self.mixup = likelihood, loss, mixup
        self.register_buffer("log_added", log_prior(counts_c, tau))
        self.register_buffer("log_mass", log_prior(counts_c * weights_c))
        self.register_buffer("class_weights", weights_c, persistent=False)

    def forward(
        self, features: Tensor, labels: Tensor, ids: Tensor | None = None, *, target: Tensor | None = None
    ) -> Losses:
        """`target` [B, C] takes the place of the labels where images were mixed."""
        logits_bc = add_prior(self.likelihood(features), self.log_added)
        loss_b = self.class_weights[labels] * self.loss(logits_bc, labels if target is None else target)
        return Losses(loss_b, {"cls": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        """What was trained, [B, C]; `prior.prior_free` makes it a log-likelihood."""
        return self.likelihood(features)
