"""Generalised parametric contrastive learning, GPaCo (Cui et al., TPAMI 2023): PaCo without the momentum encoder.

    L_i = -( beta sum_c t_c lp(centre c) + alpha sum_{k of class y} lp(k) ) / ( beta + alpha #{k of class y} )
    lp  = log softmax over { w_c . x + b_c + log p_c : c } u { v_i.k / tau : k },   v = MLP(x) / |MLP(x)|

t is 1 at y and 0 elsewhere; with label smoothing 1 - s at y and s / (C - 1) elsewhere. The contrasts k are the other
2B - 1 projections of the batch and the queue; gamma = 1 multiplies them in the softmax's sum. It is the loss of
`paco.py`, but both views pass through the same network with gradient, both are anchors and both have their centres'
term; the queue holds the network's own past projections of the second view. The projection has two hidden layers and no
BatchNorm.

Views: class, key. Defaults: alpha = 0.05, beta = 1, tau = 0.2, queue of 8192. No CIFAR code was ever released. The
batch enters the queue after it was scored, for both its views are contrasts with gradient already.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.contrast.batch import Rows
from longtail.contrast.queue import Queue
from longtail.likelihood.linear import Linear
from longtail.losses.contrastive import similarities
from longtail.losses.parametric import parametric_contrast
from longtail.methods.published import Published
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.template import add_prior
from longtail.types import Losses


class GPaCo(nn.Module):
    student_views = ("class", "key")
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        k: int = 8192,
        tau: float = 0.2,
        alpha: float = 0.05,
        beta: float = 1.0,
        gamma: float = 1.0,
        smooth: float = 0.0,
        hidden: int | None = None,
        embed: int | None = None,  # half the features, at most 128
    ) -> None:
        super().__init__()
        hidden, embed = hidden or dim, embed or min(128, dim // 2)
        self.likelihood = Linear(dim, len(counts))
        self.embed = nn.Sequential(
            nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, embed)
        )
        self.queue = Queue(k, embed)
        self.tau, self.alpha, self.beta, self.gamma, self.smooth = tau, alpha, beta, gamma, smooth
        self.ranks: Ranks = ALONE
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor, *, key: Tensor) -> Losses:
        both = torch.cat([features, key])
        views = F.normalize(self.embed(both), dim=1).chunk(2)
        anchors = Rows.of(views, labels, self.ranks)
        contrasts = anchors.of_all(self.ranks).joined(self.queue.features, self.queue.labels)
        loss_n = parametric_contrast(
            add_prior(self.likelihood(both), self.log_added),
            similarities(anchors.features, contrasts.features, self.tau),
            anchors.sees(contrasts),
            anchors.same_class(contrasts),
            anchors.labels,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            smooth=self.smooth,
        )
        self.queue.enqueue(*(self.ranks.gather(x) for x in (views[1].detach(), labels, ids)))
        loss_b = loss_n.view(2, -1).mean(dim=0)
        return Losses(loss_b, {"paco": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "gpaco",
    GPaCo,
    paper="Cui et al., TPAMI 2023",
    likelihood="mixture",
    samples="own past and learned centres",
    prior="counts",
    numerator="weighted Jensen",
    weight="-",
)
