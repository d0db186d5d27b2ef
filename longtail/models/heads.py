"""The projection MLP of a contrastive branch: Linear, BatchNorm if its method has one, ReLU, Linear, unit length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.ranks import ALONE, Ranks
from longtail.template import at_least_float32


class Projection(nn.Module):
    """[N, D] features -> [N, dim_out] on the unit sphere.

    `rows` [N] says which rows are real. A bank that is still filling has empty slots; they pass through (their result
    is masked later) but the batch statistics count real rows only. With `ranks`, those of all ranks: the result is that
    of one process that has all rows.
    """

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int, *, norm: bool = True) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim_in, dim_hidden)
        self.norm = nn.BatchNorm1d(dim_hidden) if norm else None
        self.out = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Tensor, rows: Tensor | None = None, ranks: Ranks = ALONE) -> Tensor:
        x = self.hidden(x)
        if self.norm is None:
            pass
        elif not self.training or (rows is None and ranks.world == 1 and len(x) > 1):
            x = self.norm(x)
        else:  # what torch cannot do; it also refuses a batch of one, whose normalised value is the bias
            rows = torch.ones(len(x), dtype=torch.bool, device=x.device) if rows is None else rows
            x = batch_norm_of_rows(self.norm, x, rows, ranks)
        return F.normalize(self.out(F.relu(x)), dim=1)


def batch_norm_of_rows(norm: nn.BatchNorm1d, x: Tensor, rows: Tensor, ranks: Ranks = ALONE) -> Tensor:
    """Training-mode BatchNorm whose mean and variance are those of the given rows; no shape depends on their number."""
    x = at_least_float32(x)
    weight = rows.to(x.dtype)[:, None]
    count = weight.sum()
    mean = (x * weight).sum(dim=0) / count.clamp_min(1)
    square = ((x - mean).square() * weight).sum(dim=0)
    if ranks.world > 1:
        count, mean, square = _combined(count, mean, square, ranks)
    count = count.clamp_min(1)
    variance = square / count
    if norm.track_running_stats:
        with torch.no_grad():
            assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
            assert norm.num_batches_tracked is not None
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * count / (count - 1).clamp_min(1), norm.momentum)
            norm.num_batches_tracked += 1
    return (x - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias


def _combined(count: Tensor, mean: Tensor, square: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
    """Number, mean and squared deviations from it, of all ranks' rows (Chan et al.: nothing large is subtracted)."""
    mine = torch.cat([count[None], mean, square])[None]
    counts, means, squares = ranks.gather(mine, [1] * ranks.world).split([1, len(mean), len(square)], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total.clamp_min(1)
    return total, mean, (squares + counts * (means - mean).square()).sum(dim=0)
