"""log s(x|c) = -|x' - m_c|^2 / (2 sigma^2): a Gaussian around the mean of each class's training features.

x' is the feature less the mean over all training images, at unit length, and m_c the mean of the x' of class c. One
sigma for all classes and directions, its maximum-likelihood value, so that the scores are a likelihood and not only an
order.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.likelihood.prototypes import class_means
from longtail.template import at_least_float32


class ClassMeans(nn.Module):
    """[B, D] -> [B, C] once it has been given features; a class without images scores -inf."""

    centre: Tensor
    means: Tensor
    known: Tensor
    variance: Tensor

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("means", torch.zeros(num_classes, dim))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))
        self.register_buffer("variance", torch.ones(()))

    @torch.no_grad()
    def fit(self, features_nd: Tensor, labels_n: Tensor) -> None:
        features_nd = at_least_float32(features_nd)
        self.centre.copy_(features_nd.mean(dim=0))
        unit_nd = self._unit(features_nd)
        means_cd, known_c = class_means(unit_nd, labels_n, len(self.known))
        self.means.copy_(means_cd)
        self.known.copy_(known_c)
        self.variance.copy_((unit_nd - means_cd[labels_n]).square().mean().clamp_min(1e-6))

    def forward(self, features_bd: Tensor) -> Tensor:
        square_bc = torch.cdist(self._unit(at_least_float32(features_bd)), self.means).square()
        return (-square_bc / (2 * self.variance)).masked_fill(~self.known, -torch.inf)

    def _unit(self, features_nd: Tensor) -> Tensor:
        return F.normalize(features_nd - self.centre, dim=1)
