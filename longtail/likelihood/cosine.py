"""log s(x|c) = cos(x, m_c) / tau_s: one isotropic Gaussian a class, on the unit sphere (eq. 8 of the paper).

The temperature is fixed: trained, it shrinks until this term drowns the others and the tail loses (the paper, 3.3).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.template import at_least_float32


class Cosine(nn.Module):
    """[B, D] features -> [B, C]. Neither side's length matters, and there is no bias.

    Always in float32: a bfloat16 cosine has a resolution of 1/256, which times 30 is a tenth of a logit.
    """

    def __init__(self, dim: int, num_classes: int, tau_s: float = 1 / 30) -> None:
        super().__init__()
        self.tau_s = tau_s
        self.centres = nn.Parameter(F.normalize(torch.empty(num_classes, dim).uniform_(-1, 1), dim=1))

    def forward(self, features_bd: Tensor) -> Tensor:
        with torch.autocast(features_bd.device.type, enabled=False):
            features_bd = at_least_float32(features_bd)
            return F.normalize(features_bd, dim=1) @ F.normalize(self.centres, dim=1).T / self.tau_s
