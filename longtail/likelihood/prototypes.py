"""log s(x|c) from frozen centres: class means of features, or text features of the class's name."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.template import at_least_float32


class Prototypes(nn.Module):
    """cos(x, centre_c) / tau, [B, D] -> [B, C]. A class without a centre scores -inf: nothing is known of it.

    Always in float32: a bfloat16 cosine has a resolution of 1/256, which over CLIP's 0.01 is half a unit.
    """

    centres: Tensor
    known: Tensor
    tau: Tensor

    def __init__(self, centres_cd: Tensor, known_c: Tensor | None = None, tau: float = 1 / 30) -> None:
        super().__init__()
        self.register_buffer("tau", torch.tensor(tau))
        self.register_buffer("centres", F.normalize(centres_cd, dim=1))
        self.register_buffer("known", torch.ones(len(centres_cd), dtype=torch.bool) if known_c is None else known_c)

    def forward(self, features_bd: Tensor) -> Tensor:
        with torch.autocast(features_bd.device.type, enabled=False):
            features_bd = at_least_float32(features_bd)
            scores_bc = F.normalize(features_bd, dim=1) @ self.centres.to(features_bd.dtype).T / self.tau
        return scores_bc.masked_fill(~self.known, -torch.inf)


def class_means(features_nd: Tensor, labels_n: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean of each class's features [C, D], and which classes have any [C]."""
    if len(features_nd) == 0:
        raise LongtailError("class means need at least one sample, got none")
    count_c = features_nd.new_zeros(num_classes).index_add(0, labels_n, torch.ones_like(features_nd[:, 0]))
    total_cd = features_nd.new_zeros(num_classes, features_nd.shape[1]).index_add(0, labels_n, features_nd)
    return total_cd / count_c.clamp_min(1)[:, None], count_c > 0
