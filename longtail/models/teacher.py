"""A frozen teacher: a trained backbone and its head, which never learn again and never leave evaluation mode."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longtail.prior import prior_free


class Memory(NamedTuple):
    """What a teacher said of each of V pictures of N images. Which of the two is not wanted is None."""

    ids: Tensor  # [N] int64
    labels: Tensor  # [N] int64
    place_of_id: Tensor  # [largest id + 1] int64
    features: Tensor | None  # [V, N, D]
    scores: Tensor | None  # [V, N, C]


class Teacher(nn.Module):
    """images -> (features [B, D'], prior-free scores [B, C]); no gradient, running statistics."""

    momentum = False

    log_mass: Tensor | None
    log_added: Tensor | None

    def __init__(
        self,
        backbone: nn.Module,
        likelihood: nn.Module,
        log_mass: Tensor | None = None,
        log_added: Tensor | None = None,
    ) -> None:
        """Without the two priors of its own training, what `likelihood` says is prior-free already."""
        super().__init__()
        self.backbone = backbone
        self.likelihood = likelihood
        self.register_buffer("log_mass", log_mass, persistent=False)
        self.register_buffer("log_added", log_added, persistent=False)
        self.dim: int = backbone.dim  # type: ignore[assignment]
        self.memory: Memory | None = None
        self.requires_grad_(False)
        self.train(False)

    def train(self, mode: bool = True) -> Teacher:
        """Stays in evaluation mode whatever its owner does."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features_bd = self.backbone(images)
        scores_bc = self.likelihood(features_bd)
        if self.log_mass is not None and self.log_added is not None:
            scores_bc = prior_free(scores_bc, self.log_mass, self.log_added)
        return features_bd, scores_bc

    def remember(self, ids: Tensor, labels: Tensor, features: list[Tensor] | None, scores: list[Tensor] | None) -> None:
        """What it says of V pictures of the images `ids` [N]; one tensor [N, ...] a picture."""
        place = ids.new_zeros(int(ids.max()) + 1)
        place[ids] = torch.arange(len(ids), device=ids.device)
        stacks = [None if said is None else torch.stack(said) for said in (features, scores)]
        self.memory = Memory(ids, labels, place, *stacks)

    def recall(self, ids: Tensor, picture: int) -> tuple[Tensor | None, Tensor | None]:
        """What `forward` says of this picture of each image."""
        assert self.memory is not None
        place, memory = self.memory.place_of_id[ids], self.memory
        features = None if memory.features is None else memory.features[picture].index_select(0, place)
        scores = None if memory.scores is None else memory.scores[picture].index_select(0, place)
        return features, scores

    def follow(self, backbone: nn.Module, likelihood: nn.Module) -> None:
        """A frozen teacher follows nobody; `contrast/momentum.py` is the key encoder that does."""
