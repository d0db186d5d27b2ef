"""The mean feature of every class over the previous epoch and the current one: samples that grow old and are dropped.

An epoch is as many samples as the training set has. No step waits for the device to know whether one has ended.
"""

import torch
from torch import Tensor, nn


class RunningMeans(nn.Module):
    past: Tensor
    now: Tensor

    def __init__(self, num_classes: int, dim: int, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch  # features that make one
        # A class's sum of features, and in the last column their number.
        self.register_buffer("past", torch.zeros(num_classes, dim + 1))
        self.register_buffer("now", torch.zeros(num_classes, dim + 1))

    @torch.no_grad()
    def add(self, features_bd: Tensor, labels_b: Tensor) -> None:
        full = self.now[:, -1].sum() >= self.epoch
        self.past.copy_(torch.where(full, self.now, self.past))
        self.now.masked_fill_(full, 0)
        rows = torch.cat([features_bd, torch.ones_like(features_bd[:, :1])], dim=1)
        self.now.index_add_(0, labels_b, rows.to(self.now.dtype))

    def means(self) -> tuple[Tensor, Tensor]:
        """[C, D], and [C] bool: which classes have been seen."""
        total = self.past + self.now
        return total[:, :-1] / total[:, -1:].clamp_min(1), total[:, -1] > 0
