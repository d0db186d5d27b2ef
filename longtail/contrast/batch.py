"""Contrasts from the batch itself: all views of all its samples, of which an anchor never sees its own row.

Under several ranks the anchors are a rank's own rows and the contrasts everybody's, with gradient to where they came
from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from longtail.ranks import ALONE, Ranks


class Rows(NamedTuple):
    """Anchors, or what they are contrasted with."""

    features: Tensor  # [N, D]
    labels: Tensor  # [N]; -1 where there is nothing
    numbers: Tensor  # [N]; a row of the batch has one of its own, anything else has -1

    @classmethod
    def of(cls, views_bd: tuple[Tensor, ...], labels_b: Tensor, ranks: Ranks = ALONE) -> Rows:
        """This rank's rows, view after view."""
        labels_n = labels_b.repeat(len(views_bd))
        return cls(
            torch.cat(views_bd), labels_n, torch.arange(len(labels_n), device=labels_b.device) + (ranks.rank << 32)
        )

    def of_all(self, ranks: Ranks) -> Rows:
        return Rows(*(ranks.gather(column) for column in self))

    def joined(self, features_kd: Tensor, labels_k: Tensor) -> Rows:
        """These, then contrasts that are no row of the batch: a queue, learned centres."""
        return Rows(
            torch.cat([self.features, features_kd.to(self.features.dtype)]),
            torch.cat([self.labels, labels_k]),
            torch.cat([self.numbers, torch.full_like(labels_k, -1)]),
        )

    def sees(self, contrasts: Rows) -> Tensor:
        """[N, K] bool: all that is there but the anchor's own row."""
        return (self.numbers[:, None] != contrasts.numbers) & (contrasts.labels >= 0)

    def same_class(self, contrasts: Rows) -> Tensor:
        """[N, K] bool."""
        return self.labels[:, None] == contrasts.labels
