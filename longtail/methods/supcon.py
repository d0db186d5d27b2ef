"""Supervised contrastive learning (Khosla et al., NeurIPS 2020): an encoder, then a head on its frozen features.

    L_i = -(1/|P_i|) sum_{p in P_i} log( e^{v_i.v_p / tau} / sum_{a != i} e^{v_i.v_a / tau} ),   v = MLP(x) / |MLP(x)|

over all 2B rows of two views, P_i the other rows of i's class. In the template: a mixture over the batch, the count of
contrasts as prior, Jensen's bound as numerator. tau = 0.1.

Two stages. The encoder's has no head and does not answer. The second trains a head on frozen features for a tenth of
the epochs: a logit-adjusted cosine head, as the paper of GML does for its comparison; the authors' plain linear one is
`--set method=cross_entropy`. The authors multiply the loss by tau / 0.07, a factor on the learning rate, which is left
out. An anchor always has its own other view, so 0 / 0 cannot occur.

It wants large batches and long training (1024 and 1000 epochs in the paper), and its features are the head's: see
`bcl`, `paco` and `gml` for what the tail needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from longtail.contrast.batch import Rows
from longtail.losses.contrastive import contrastive, similarities
from longtail.methods.encoder import refuse_scores
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.recipe import Stage
from longtail.types import Losses


class SupCon(nn.Module):
    student_views = ("query", "key")
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        tau: float = 0.1,
        hidden: int | None = None,  # of the projection; as wide as the features if not given
        embed: int = 128,
    ) -> None:
        super().__init__()
        self.likelihood = nn.Identity()
        self.embed = Projection(dim, hidden or dim, embed, norm=False)
        self.tau = tau
        self.ranks: Ranks = ALONE
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None, *, key: Tensor) -> Losses:
        embedded = self.embed(torch.cat([features, key]), ranks=self.ranks).chunk(2)
        loss_b = supcon_loss(embedded, labels, self.tau, self.ranks)
        return Losses(loss_b, {"supcon": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        refuse_scores("supcon")


def supcon_loss(views_bd: tuple[Tensor, ...], labels_b: Tensor, tau: float, ranks: Ranks = ALONE) -> Tensor:
    """Unit features of V views -> [B]: the mean over a sample's views as anchors."""
    anchors = Rows.of(views_bd, labels_b, ranks)
    contrasts = anchors.of_all(ranks)
    seen_nk = anchors.sees(contrasts)
    scores_nk = similarities(anchors.features, contrasts.features, tau)
    loss_n, _ = contrastive(scores_nk, seen_nk, seen_nk & anchors.same_class(contrasts))
    return loss_n.view(len(views_bd), -1).mean(dim=0)


def stages(base: Stage) -> tuple[Stage, ...]:
    encoder = replace(base, name="encoder", answers=False)
    epochs = max(1, round(base.epochs / 10))
    head = replace(base, method="logit_adjusted", settings={}, start_from="encoder", trains="head", epochs=epochs)
    return (encoder, replace(head, keys="", optim=replace(base.optim, warmup_epochs=0.0)))  # a head alone needs none


METHOD = Published(
    "supcon",
    SupCon,
    paper="Khosla et al., NeurIPS 2020",
    likelihood="mixture",
    samples="batch",
    prior="count of contrasts",
    numerator="Jensen",
    weight="-",
    stages=stages,
)
