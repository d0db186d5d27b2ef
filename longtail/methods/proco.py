"""ProCo (Du et al., TPAMI 2024): supervised contrast with infinitely many samples of every class, in closed form.

    s(x|c)  = C_D(kappa_c) / C_D( |kappa_c mu_c + v / tau| ),   v = MLP(x) / |MLP(x)|          (`likelihood/vmf.py`)
    L_ProCo = -log softmax_c( log s(x|c) + log p_c )[y]
    L       = L_cls + weight L_ProCo,   L_cls logit-adjusted on a linear head, which answers

A class is a von Mises-Fisher distribution with the mean and concentration of its features in the previous epoch and in
this one. Three views: class for the head, query and key for the contrast, whose losses are averaged. Defaults: tau =
0.1, weight 1, a projection of 512 and 128, as in the authors' CIFAR script (batch 256, learning rate 0.3 there). In the
template it is GML with another likelihood: where a bank has few samples of a class, this one has a distribution fitted
to them.

Where paper and code differ: kappa = R (D - R^2) / (1 - R^2) in the paper, and here; R D / (1 - R^2) in the code. Where
this differs from the code: both views enter the statistics before either is scored (there one after the other); a
class not seen yet contributes no column (there a random direction); an epoch is counted in samples; the statistics are
buffers, so that a resumed run has them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.contrast.running import RunningMeans
from longtail.likelihood.linear import Linear
from longtail.likelihood.vmf import concentration, vmf_loglik
from longtail.methods.published import Published
from longtail.models.heads import Projection
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.template import add_prior, cross_entropy
from longtail.types import Losses


class ProCo(nn.Module):
    student_views = ("class", "query", "key")
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
        weight: float = 1.0,
        hidden: int = 512,  # of the projection
        embed: int = 128,
    ) -> None:
        super().__init__()
        self.likelihood = Linear(dim, len(counts))
        self.embed = Projection(dim, hidden, embed)
        self.running = RunningMeans(len(counts), embed, epoch=2 * int(torch.as_tensor(counts).sum()))
        self.tau, self.weight = tau, weight
        self.ranks: Ranks = ALONE
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(
        self, features: Tensor, labels: Tensor, ids: Tensor | None = None, *, query: Tensor, key: Tensor
    ) -> Losses:
        cls_b = cross_entropy(add_prior(self.likelihood(features), self.log_added), labels)
        embedded, labels_2b = self.embed(torch.cat([query, key]), ranks=self.ranks), labels.repeat(2)
        self.running.add(self.ranks.gather(embedded.detach()), self.ranks.gather(labels_2b))
        mean_cd, seen_c = self.running.means()
        loglik = vmf_loglik(embedded, concentration(mean_cd), self.tau).masked_fill(~seen_c, -torch.inf)
        proco_b = cross_entropy(add_prior(loglik, self.log_added), labels_2b).view(2, -1).mean(dim=0)
        parts = {"cls": cls_b.detach().mean(), "proco": proco_b.detach().mean()}
        return Losses(cls_b + self.weight * proco_b, parts)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "proco",
    ProCo,
    paper="Du et al., TPAMI 2024",
    likelihood="vMF",
    samples="running class statistics",
    prior="log p",
    numerator="exact",
    weight="-",
)
