"""A frozen teacher: a trained backbone and its head, which never learn again and never leave evaluation mode."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Teacher(nn.Module):
    """images -> (features [B, D'], prior-free scores [B, C]); no gradient, running statistics."""

    momentum = False

    def __init__(self, backbone: nn.Module, likelihood: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.likelihood = likelihood
        self.dim: int = backbone.dim  # type: ignore[assignment]
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Teacher:
        """Stays in evaluation mode whatever its owner does."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features_bd = self.backbone(images)
        return features_bd, self.likelihood(features_bd)

    def follow(self, backbone: nn.Module, likelihood: nn.Module) -> None:
        """A frozen teacher follows nobody; `contrast/momentum.py` is the key encoder that does."""
