"""Learned weight scaling, LWS (Kang et al., ICLR 2020): one factor a class on a trained linear head.

    z_c = f_c (w_c . x + b_c),   f_c = 1 at first; w, b and the backbone are frozen, f learns under balanced sampling

The factor multiplies the bias too, as in the authors' code. They train it for 5 epochs after 90, here an eighteenth of
the epochs. Cheaper than `crt` (C numbers instead of a head) and about as good. Uniform class mass, as there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.likelihood.linear import Linear
from longtail.methods.classifier import Classifier
from longtail.methods.decoupled import after_cross_entropy
from longtail.methods.published import Published
from longtail.recipe import Stage


class ScaledLinear(nn.Module):
    """[B, D] -> [B, C]; only the factors learn."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.linear = Linear(dim, num_classes).requires_grad_(False)
        self.factors = nn.Parameter(torch.ones(num_classes))

    def forward(self, features_bd: Tensor) -> Tensor:
        return self.linear(features_bd) * self.factors

    def inherit(self, earlier: nn.Module) -> None:
        self.linear.load_state_dict(earlier.state_dict())


def lws(counts: Sequence[int] | Tensor, dim: int) -> Classifier:
    return Classifier(ScaledLinear(dim, len(counts)), counts, tau=0.0)


def stages(base: Stage) -> tuple[Stage, ...]:
    return after_cross_entropy(base, share=1 / 18, sampler="k-per-class")


METHOD = Published(
    "lws",
    lws,
    paper="Kang et al., ICLR 2020",
    likelihood="linear, frozen features",
    samples="-",
    prior="uniform, balanced sampler",
    numerator="exact",
    weight="-",
    stages=stages,
)
