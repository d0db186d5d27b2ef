"""Keys without a teacher: a slowly moving copy of the student (He et al., 2020).

The copy's weights are an exponential moving average of the student's. Its BatchNorm uses the key batch's own
statistics, as the student's does. Features leave in the order the images came in: no shuffling over devices, which the
released code of the paper does for the features but not for their labels, so that its bank is filled at random.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


class MomentumEncoder(nn.Module):
    """images -> (features [B, D], scores [B, C]) from the moving average of the student; no gradient."""

    momentum = True

    def __init__(self, backbone: nn.Module, likelihood: nn.Module, m: float = 0.999) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.likelihood = copy.deepcopy(likelihood).requires_grad_(False)
        self.dim: int = backbone.dim  # type: ignore[assignment]
        self.m = m

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features_bd = self.backbone(images)
        return features_bd, self.likelihood(features_bd)

    def follow(self, backbone: nn.Module, likelihood: nn.Module) -> None:
        """One step towards the student."""
        move_towards(self.backbone, backbone, self.m)
        move_towards(self.likelihood, likelihood, self.m)


@torch.no_grad()
def move_towards(mine: nn.Module, theirs: nn.Module, m: float) -> None:
    """mine <- m mine + (1 - m) theirs, parameters only; an encoder without a head has none in its place."""
    if parameters := list(mine.parameters()):
        torch._foreach_lerp_(parameters, list(theirs.parameters()), 1 - m)  # type: ignore
