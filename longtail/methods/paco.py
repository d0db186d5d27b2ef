"""Parametric contrastive learning, PaCo (Cui et al., ICCV 2021): SupCon with a queue and one learned centre a class.

    L_i = -( lp(centre y) + alpha sum_{k of class y} lp(k) ) / ( 1 + alpha #{k of class y} )

lp is log softmax over the centres' logits z_c + log p_c and the scores v_i.k / tau of the batch's keys, the batch's
other queries and the queue. Centres are an ordinary linear head on the features, not on the projected v, and answer
without the prior. Keys come from a momentum encoder (m = 0.999) behind a projection that follows likewise.

Two views: class (which is the query: only it is an anchor), key. Defaults are CIFAR's: alpha = 0.01, tau = 0.05, queue
of 1024, projection 64-64-32; ImageNet-LT has 0.05, 0.2 (0.07 with ResNeXt-50), 8192 and 128. The published rows take
400 epochs, warm-up 10, and the last epoch here where the authors keep the best on the test split.

For CIFAR the authors give the class view AutoAugment and Cutout and the key view MoCo's augmentation. Here one
augmentation is for every view unless it is said otherwise: `--set views.key=simclr`.

Where this differs from the authors' code: the ring of k rows holds the batch's keys too, which enter before it is
scored (there k rows beside them); unfilled rows are masked (there random, normalised along the wrong axis, so nearly
zero); BatchNorm statistics are of the key batch as it is, not shuffled over devices; other ranks' queries are
contrasts too.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from longtail.contrast.batch import Rows
from longtail.contrast.momentum import move_towards
from longtail.contrast.queue import Queue
from longtail.likelihood.linear import Linear
from longtail.losses.contrastive import similarities
from longtail.losses.parametric import parametric_contrast
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.recipe import Stage
from longtail.template import add_prior
from longtail.types import Losses


class PaCo(nn.Module):
    student_views = ("class",)
    key_views = ("key",)
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        k: int = 1024,
        tau: float = 0.05,
        alpha: float = 0.01,
        beta: float = 1.0,
        gamma: float = 1.0,
        m: float = 0.999,
        hidden: int | None = None,
        embed: int | None = None,  # half the features, at most 128
    ) -> None:
        super().__init__()
        embed = embed or min(128, dim // 2)
        self.likelihood = Linear(dim, len(counts))
        self.embed_query = Projection(dim, hidden or dim, embed)
        self.embed_key = copy.deepcopy(self.embed_query).requires_grad_(False)
        self.queue = Queue(k, embed)
        self.tau, self.m = tau, m
        self.ranks: Ranks = ALONE
        self.alpha, self.beta, self.gamma = alpha, beta, gamma
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        self.queue.enqueue(self.embed_key(keys), labels, ids)

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        """Against the batch and the queue, into which `enqueue` has put the batch's keys."""
        anchors = Rows.of((self.embed_query(features, ranks=self.ranks),), labels, self.ranks)
        contrasts = anchors.of_all(self.ranks).joined(self.queue.features, self.queue.labels)
        loss_b = parametric_contrast(
            add_prior(self.likelihood(features), self.log_added),
            similarities(anchors.features, contrasts.features, self.tau),
            anchors.sees(contrasts),
            anchors.same_class(contrasts),
            labels,
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
        )
        return Losses(loss_b, {"paco": loss_b.detach().mean()})

    def after_step(self) -> None:
        move_towards(self.embed_key, self.embed_query, self.m)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


def stages(base: Stage) -> tuple[Stage, ...]:
    return (replace(base, keys="momentum"),)


METHOD = Published(
    "paco",
    PaCo,
    paper="Cui et al., ICCV 2021",
    likelihood="mixture",
    samples="queue and learned centres",
    prior="counts",
    numerator="weighted Jensen",
    weight="-",
    stages=stages,
)
