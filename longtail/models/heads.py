"""The projection MLP of a contrastive branch: Linear, BatchNorm, ReLU, Linear, then unit length."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Projection(nn.Module):
    """[N, D] features -> [N, dim_out] on the unit sphere.

    `rows` [N] says which rows are real. A bank that is still filling has empty slots; they pass through (their result
    is masked later) but the batch statistics count real rows only.
    """

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim_in, dim_hidden)
        self.norm = nn.BatchNorm1d(dim_hidden)
        self.out = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        x = self.hidden(x)
        if rows is not None and self.training:
            x = batch_norm_of_rows(self.norm, x, rows)
        elif len(x) == 1 and self.training:  # torch refuses a batch of one; its normalised value is the bias
            x = batch_norm_of_rows(self.norm, x, torch.ones(1, dtype=torch.bool, device=x.device))
        else:
            x = self.norm(x)
        return F.normalize(self.out(F.relu(x)), dim=1)


def batch_norm_of_rows(norm: nn.BatchNorm1d, x: Tensor, rows: Tensor) -> Tensor:
    """Training-mode BatchNorm whose mean and variance are those of the given rows; no shape depends on their number."""
    x, weight = x.float(), rows.float()[:, None]
    count = weight.sum().clamp_min(1)
    mean = (x * weight).sum(dim=0) / count
    variance = ((x - mean).square() * weight).sum(dim=0) / count
    if norm.track_running_stats:
        with torch.no_grad():
            assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None
            assert norm.num_batches_tracked is not None
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * count / (count - 1).clamp_min(1), norm.momentum)
            norm.num_batches_tracked += 1
    return (x - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
