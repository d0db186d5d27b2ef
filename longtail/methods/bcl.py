"""Balanced contrastive learning, BCL (Zhu et al., CVPR 2022): SupCon in which every class weighs the same.

    D_i   = sum_c 1/(m_c - [c = y_i]) sum_{k in class c, k != i} e^{v_i.v_k / tau}
    L_i   = mean over positives p of -( v_i.v_p / tau - log D_i )
    L     = a L_cls + b L_BCL,   L_cls logit-adjusted on a cosine head, tau_s = 1/30

The contrasts are the two contrast views of the batch and one prototype a class, m_c their number in class c, prototype
included; positives are the others of i's class, its prototype included, so that there always is one. Prototypes are an
MLP of the head's own class weights, and the gradient reaches these. In the template: D_i is a sum of class mean
likelihoods, the mixture with a uniform prior, with Jensen's bound as numerator.

Three views: class, query, key. a = 1, b = 0.35 as in the authors' ImageNet and iNaturalist code (the paper's formula
has 2.0 and 0.6); tau = 0.1 for CIFAR, 0.07 for ImageNet. No CIFAR code was released, and users do not reach its CIFAR
numbers. The batch statistics of the MLP are of the two contrast views; in the authors' code the class view passes
through it too.

For CIFAR the paper gives the class view AutoAugment and Cutout and both contrast views SimCLR's augmentation. Here one
augmentation is for every view unless it is said otherwise: `--set views.query=simclr --set views.key=simclr`.

`teacher=True` is the paper of GML's ablation row "BCL with teacher-student", of which it says no more: here the key
view passes through the frozen teacher and an MLP of its own instead of through the student; all else is as above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from longtail.contrast.batch import Rows
from longtail.likelihood.cosine import Cosine
from longtail.losses.contrastive import contrastive, similarities
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.recipe import Stage
from longtail.template import add_prior, cross_entropy
from longtail.types import Losses


class BCL(nn.Module):
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        key_dim: int | None = None,
        teacher: bool = False,
        tau: float = 0.1,
        tau_s: float = 1 / 30,
        a: float = 1.0,
        b: float = 0.35,
        hidden: int | None = None,
        embed: int | None = None,
    ) -> None:
        super().__init__()
        hidden, embed = hidden or dim, embed or dim // 2
        self.likelihood = Cosine(dim, len(counts), tau_s)
        self.embed = Projection(dim, hidden, embed)
        self.embed_key = Projection(key_dim or dim, hidden, embed) if teacher else None
        self.embed_class = Projection(dim, hidden, embed)
        self.tau, self.a, self.b = tau, a, b
        self.ranks: Ranks = ALONE
        self.student_views = ("class", "query") if teacher else ("class", "query", "key")
        self.key_views = ("key",) if teacher else ()
        self.wants_keys = teacher
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(
        self,
        features: Tensor,
        labels: Tensor,
        ids: Tensor | None = None,
        *,
        query: Tensor,
        key: Tensor | None = None,  # the student's features of the key view
        keys: Tensor | None = None,  # or the teacher's
    ) -> Losses:
        cls_b = cross_entropy(add_prior(self.likelihood(features), self.log_added), labels)
        if self.embed_key is None:
            assert key is not None, "BCL contrasts two views: give key="
            embedded = self.embed(torch.cat([query, key]), ranks=self.ranks).chunk(2)
        else:
            assert keys is not None, "BCL with a teacher takes its features: give keys="
            embedded = (self.embed(query, ranks=self.ranks), self.embed_key(keys, ranks=self.ranks))
        bcl_b = bcl_loss(embedded, labels, self.embed_class(self.likelihood.centres), self.tau, self.ranks)
        parts = {"cls": cls_b.detach().mean(), "bcl": bcl_b.detach().mean()}
        return Losses(self.a * cls_b + self.b * bcl_b, parts)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


def bcl_loss(
    views_bd: tuple[Tensor, ...], labels_b: Tensor, prototypes_cd: Tensor, tau: float, ranks: Ranks = ALONE
) -> Tensor:
    """Unit features of V views and unit prototypes -> [B]: the mean over a sample's views as anchors."""
    anchors = Rows.of(views_bd, labels_b, ranks)
    classes_c = torch.arange(len(prototypes_cd), device=labels_b.device)
    contrasts = anchors.of_all(ranks).joined(prototypes_cd, classes_c)
    seen_nk, same_nk = anchors.sees(contrasts), anchors.same_class(contrasts)
    size_c = torch.zeros_like(classes_c).index_add(0, contrasts.labels, torch.ones_like(contrasts.labels))
    size_nk = size_c[contrasts.labels] - (seen_nk & same_nk).long()  # the anchor's own class, without the anchor
    scores_nk = similarities(anchors.features, contrasts.features, tau)
    loss_n, _ = contrastive(scores_nk, seen_nk / size_nk, seen_nk & same_nk)
    return loss_n.view(len(views_bd), -1).mean(dim=0)


def stages(base: Stage) -> tuple[Stage, ...]:
    if not base.settings.get("teacher") or base.keys:
        return (base,)
    teacher = replace(base, name="teacher", method="logit_adjusted", settings={})
    return (teacher, replace(base, name="student", keys="teacher"))


METHOD = Published(
    "bcl",
    BCL,
    paper="Zhu et al., CVPR 2022",
    likelihood="mixture",
    samples="batch and class centres",
    prior="uniform, beside a logit-adjusted head",
    numerator="Jensen",
    weight="-",
    stages=stages,
)
