"""LDAM-DRW (Cao et al., NeurIPS 2019): a margin for rare classes on a cosine head, class weights late in training.

    L = w_y * -log softmax_c( (cos(x, m_c) - Delta_y [c = y]) / tau_s )[y],   Delta_c = max_margin (n_min / n_c)^(1/4)
    w = 1 until `defer` of the training is done, then the effective-number weights of `class_balanced.py`

Defaults: tau_s = 1/30, max_margin = 0.5, beta = 0.9999, defer = 0.8 (epoch 160 of 200). defer = 1 is LDAM alone. At
test there is no margin.

As in the authors' code the weighted mean divides by the batch's sum of weights, so the loss keeps its size when the
weights come in. Not as there: the deferred weights are found by the share of training done, where epoch // 160 leaves
its table beyond 320 epochs; and the reported number is the last epoch's, not the best on the test split.

The class mass is that of the weighted end of the training. The margin is not a prior and is not taken out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.likelihood.cosine import Cosine
from longtail.losses.class_weights import effective_number_weights
from longtail.losses.margin import ldam_margins, with_margin
from longtail.methods.published import Published
from longtail.prior import log_prior, uniform
from longtail.types import Losses


class LDAM(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor
    margins: Tensor
    class_weights: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        max_margin: float = 0.5,
        tau_s: float = 1 / 30,
        beta: float = 0.9999,
        defer: float = 0.8,
    ) -> None:
        super().__init__()
        counts_c = torch.as_tensor(counts)
        weights_c = effective_number_weights(counts_c, beta)
        self.likelihood = Cosine(dim, len(counts_c), tau_s)
        self.tau_s, self.defer, self.progress = tau_s, defer, 0.0
        self.register_buffer("margins", ldam_margins(counts_c, max_margin), persistent=False)
        self.register_buffer("class_weights", weights_c, persistent=False)
        self.register_buffer("log_added", uniform(len(counts_c)))
        self.register_buffer("log_mass", log_prior(counts_c * weights_c if defer < 1 else counts_c))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        loss_b = with_margin(self.likelihood(features), labels, self.margins, 1 / self.tau_s)
        if self.progress >= self.defer:
            weights_b = self.class_weights[labels]
            loss_b = loss_b * weights_b / weights_b.mean()
        return Losses(loss_b, {"cls": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "ldam_drw",
    LDAM,
    paper="Cao et al., NeurIPS 2019",
    likelihood="cosine with margin",
    samples="one learned centre a class",
    prior="uniform",
    numerator="exact",
    weight="deferred class",
)
