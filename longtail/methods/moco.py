"""MoCo (He et al., CVPR 2020) as pre-training: no labels at first, then a logit-adjusted classifier on that start.

    L_i = -log( e^{q_i.k_i / tau} / ( e^{q_i.k_i / tau} + sum_{n in queue} e^{q_i.n / tau} ) )

q from the encoder's view, k from its moving average's, both behind a projection of their own, the key's projection a
moving average too (v2's MLP head). In the template's words: one positive contrast and as many classes as images.
Defaults: tau = 0.2, queue of 4096 (65,536 for ImageNet), m = 0.999. The second stage trains everything, from the
pre-trained backbone, as long as the first: the budget is doubled, and `compare` counts it.

Where this differs from the authors' code: the batch's keys enter the queue before it is scored, so the other keys of
the batch are negatives too; keys of the query's own image, older copies included, are not; nothing is shuffled over
devices; the queue begins empty and masked, not random, and its length need not divide by the batch. BatchNorm of the
key encoder uses the key batch's own statistics.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from longtail.contrast.momentum import move_towards
from longtail.contrast.queue import Queue
from longtail.losses.contrastive import contrastive, similarities
from longtail.methods.encoder import refuse_scores
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior
from longtail.recipe import Stage
from longtail.types import Losses


class MoCo(nn.Module):
    student_views = ("query",)
    key_views = ("key",)
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        k: int = 4096,
        tau: float = 0.2,
        m: float = 0.999,
        hidden: int | None = None,
        embed: int = 128,
    ) -> None:
        super().__init__()
        self.likelihood = nn.Identity()
        self.embed_query = Projection(dim, hidden or dim, embed, norm=False)
        self.embed_key = copy.deepcopy(self.embed_query).requires_grad_(False)
        self.queue = Queue(k, embed)
        self.tau, self.m = tau, m
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    @torch.no_grad()
    def enqueue(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        self.queue.enqueue(self.embed_key(keys), labels, ids)

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor) -> Losses:
        """Against the queue, into which `enqueue` has put the batch's keys."""
        queue, query_bd = self.queue, self.embed_query(features)
        same_image_bk = queue.ids == ids[:, None]
        own_bk = same_image_bk & queue.newest
        kept_bk = own_bk | (queue.filled & ~same_image_bk)
        loss_b, _ = contrastive(similarities(query_bd, queue.features, self.tau), kept_bk, own_bk)
        return Losses(loss_b, {"moco": loss_b.detach().mean()})

    def after_step(self) -> None:
        move_towards(self.embed_key, self.embed_query, self.m)

    def scores(self, features: Tensor) -> Tensor:
        refuse_scores("moco")


def stages(base: Stage) -> tuple[Stage, ...]:
    pretrain = replace(base, name="pretrain", keys="momentum", answers=False)
    return (pretrain, replace(base, method="logit_adjusted", settings={}, start_from="pretrain", keys=""))


METHOD = Published(
    "moco",
    MoCo,
    paper="He et al., CVPR 2020",
    likelihood="mixture",
    samples="queue from a momentum encoder",
    prior="uniform over images",
    numerator="one contrast",
    weight="-",
    stages=stages,
)
