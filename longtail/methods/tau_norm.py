"""tau-normalisation (Kang et al., ICLR 2020): a trained linear head with its class weights shortened, and no bias.

    scores = (w_c / |w_c|^tau) . x

The norms of cross-entropy's class weights follow the class counts, and this takes a share tau of that back: 0 leaves
the weights, 1 makes them equally long. tau belongs to the data and must be chosen on a validation split: 0.7, the
default, is the authors' for ImageNet-LT with ResNeXt-50 (about 0.3 for iNaturalist, which they chose on the evaluation
set).

Shortening is this method's way of removing the prior, so nothing is taken out of its scores a second time. They are
not a log-likelihood: a prior added to them is a rough one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.likelihood.linear import Linear
from longtail.methods.decoupled import after_cross_entropy
from longtail.methods.posthoc import PostHoc
from longtail.methods.published import Published
from longtail.prior import log_prior


class ShortenedLinear(nn.Module):
    """[B, D] -> [B, C]."""

    def __init__(self, dim: int, num_classes: int, tau: float) -> None:
        super().__init__()
        self.linear = Linear(dim, num_classes, bias=False)
        self.tau = tau

    def forward(self, features_bd: Tensor) -> Tensor:
        return self.linear(features_bd)

    @torch.no_grad()
    def inherit(self, earlier: Linear) -> None:
        weight_cd = earlier.linear.weight
        norm_c1 = weight_cd.norm(dim=1, keepdim=True).clamp_min(1e-12)
        self.linear.linear.weight.copy_(weight_cd / norm_c1**self.tau)


def tau_norm(counts: Sequence[int] | Tensor, dim: int, *, tau: float = 0.7) -> PostHoc:
    return PostHoc(ShortenedLinear(dim, len(counts), tau), log_prior(counts), log_prior(counts))


METHOD = Published(
    "tau_norm",
    tau_norm,
    paper="Kang et al., ICLR 2020",
    likelihood="linear, frozen features",
    samples="-",
    prior="uniform; weights shortened afterwards",
    numerator="exact",
    weight="-",
    stages=after_cross_entropy,
)
