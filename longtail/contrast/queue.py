"""The newest k keys in one ring, whatever their class: MoCo's queue, which PaCo labels.

The other bank, with a ring for every class, is `bank.py`. What is not filled yet has label and id -1 and must be
masked.
"""

import torch
from torch import Tensor, nn


class Queue(nn.Module):
    features: Tensor
    labels: Tensor
    ids: Tensor
    pointer: Tensor

    def __init__(self, k: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(k, dim))
        self.register_buffer("labels", torch.full((k,), -1))
        self.register_buffer("ids", torch.full((k,), -1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.entered = 0  # rows of the last `enqueue`

    @property
    def filled(self) -> Tensor:
        return self.labels >= 0

    @property
    def newest(self) -> Tensor:
        """[k] bool: what entered last, which is the batch that is being scored."""
        age_k = (self.pointer - 1 - torch.arange(len(self.labels), device=self.labels.device)) % len(self.labels)
        return age_k < self.entered

    @torch.no_grad()
    def enqueue(self, features_bd: Tensor, labels_b: Tensor, ids_b: Tensor) -> None:
        """New over old; of a batch larger than the ring the last rows stay."""
        k = len(self.labels)
        kept = slice(max(0, len(labels_b) - k), None)
        row = (self.pointer + torch.arange(len(labels_b[kept]), device=labels_b.device)) % k
        self.features.index_copy_(0, row, features_bd[kept].to(self.features.dtype))
        self.labels.index_copy_(0, row, labels_b[kept])
        self.ids.index_copy_(0, row, ids_b[kept])
        self.pointer.copy_((self.pointer + len(row)) % k)
        self.entered = len(row)
