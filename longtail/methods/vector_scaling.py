"""Vector scaling, the VS loss (Kini et al., NeurIPS 2021): a prior added to the scores, and a factor a class on them.

    L = -log softmax_c( s_c z_c + tau log p_c )[y],   s_c = (n_c / n_max)^gamma,   z = w_c . x + b_c

gamma = 0 is logit adjustment, tau = 0 the class-dependent temperature of CDT (Ye et al., 2020). What is added moves the
answers early; once every training image is fitted only the factors still move the boundary, which is the paper's point
for networks that train to zero error. At test z answers, without factor and prior.

Defaults are those of the authors' script, gamma = 0.3 and tau = 1. Their tables tune both, so choose them on a
validation split: `--hold-out 0.1`. The factors shrink the gradient of rare classes too, a reason for a small gamma.

Where this differs from the authors' code: it divides by (n_max / n_c)^gamma, which is the same; and it keeps the best
epoch on the test split, where the number here is the last epoch's.

The factor is no prior and is not taken out of the scores: an answer under another prior is right to first order only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from longtail.likelihood.linear import Linear
from longtail.methods.published import Published
from longtail.prior import log_prior
from longtail.template import add_prior, cross_entropy
from longtail.types import Counts, Losses


class VectorScaling(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor
    scale: Tensor

    def __init__(
        self,
        counts: Counts,
        dim: int,
        *,
        gamma: float = 0.3,  # 0 is logit adjustment
        tau: float = 1.0,  # multiplies log p; 0 is CDT
    ) -> None:
        super().__init__()
        counts_c = torch.as_tensor(counts)
        self.likelihood = Linear(dim, len(counts_c))
        self.register_buffer("scale", (counts_c / counts_c.max()) ** gamma, persistent=False)
        self.register_buffer("log_added", log_prior(counts_c, tau))
        self.register_buffer("log_mass", log_prior(counts_c))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        scores_bc = self.likelihood(features)
        loss_b = cross_entropy(add_prior(self.scale * scores_bc, self.log_added), labels)
        return Losses(loss_b, {"cls": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "vector_scaling",
    VectorScaling,
    paper="Kini et al., NeurIPS 2021",
    likelihood="linear, scaled by class",
    samples="one learned centre a class",
    prior="tau * log p",
    numerator="exact",
    weight="-",
)
