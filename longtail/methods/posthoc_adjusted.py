"""Post-hoc logit adjustment (Menon et al., ICLR 2021): plain cross-entropy, answered without the training prior.

    scores = w_c . x + b_c - tau log p_c

on a linear head that cross-entropy has trained, which is the same head with other biases. It is a row so that it can
stand in a table: every run of `cross_entropy` gives the same answers with `longtail evaluate RUN --prior uniform`. tau
= 1 is what theory asks for; another tau must be chosen on a validation split. In training the prior is added
(`balanced_softmax`), after training it is subtracted: the sign is the classic mistake.

No difference between the paper's formula and the authors' code is known; that code trains CIFAR-100-LT for 1419
epochs.

Bookkeeping: what is left of log p in these scores is (1 - tau) log p, as if tau log p had been added in training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.likelihood.linear import Linear
from longtail.methods.decoupled import after_cross_entropy
from longtail.methods.posthoc import PostHoc
from longtail.methods.published import Published
from longtail.prior import log_prior, prior_free, uniform


class AdjustedLinear(nn.Module):
    """A linear head whose biases have lost `log_prior_c`."""

    log_prior: Tensor

    def __init__(self, dim: int, log_prior_c: Tensor) -> None:
        super().__init__()
        self.linear = Linear(dim, len(log_prior_c))
        self.register_buffer("log_prior", log_prior_c, persistent=False)

    def forward(self, features_bd: Tensor) -> Tensor:
        return self.linear(features_bd)

    @torch.no_grad()
    def inherit(self, earlier: nn.Module) -> None:
        self.linear.load_state_dict(earlier.state_dict())
        bias_c = self.linear.linear.bias
        bias_c.copy_(prior_free(bias_c[None], self.log_prior, uniform(len(bias_c)))[0])


def posthoc_adjusted(counts: Sequence[int] | Tensor, dim: int, *, tau: float = 1.0) -> PostHoc:
    return PostHoc(AdjustedLinear(dim, log_prior(counts, tau)), log_prior(counts, tau), log_prior(counts))


METHOD = Published(
    "posthoc_adjusted",
    posthoc_adjusted,
    paper="Menon et al., ICLR 2021",
    likelihood="linear",
    samples="-",
    prior="uniform; tau * log p taken out afterwards",
    numerator="exact",
    weight="-",
    stages=after_cross_entropy,
)
