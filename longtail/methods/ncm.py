"""Nearest class mean, NCM (Kang et al., ICLR 2020): cross-entropy's features, each class answered by its mean.

    scores = -|x' - m_c|^2 / (2 sigma^2),   x' = (x - mean x) / |x - mean x|,   m_c = mean of x' over class c

No head is trained. The authors measure the same distance in the same centred, normalised space; sigma changes no
answer and makes the scores a likelihood. Means are of the training images as they are, without augmentation. A mean
does not know how many images it is of, so the scores are free of the prior. Good with strong features and few images a
class.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from longtail.likelihood.class_means import ClassMeans
from longtail.methods.decoupled import after_cross_entropy
from longtail.methods.published import Published
from longtail.prior import log_prior


class NCM(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    wants_full_bank = True
    log_added: Tensor
    log_mass: Tensor

    def __init__(self, counts: Sequence[int] | Tensor, dim: int) -> None:
        super().__init__()
        self.likelihood = ClassMeans(dim, len(counts))
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def fill(self, features: Tensor, labels: Tensor, ids: Tensor) -> None:
        self.likelihood.fit(features, labels)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "ncm",
    NCM,
    paper="Kang et al., ICLR 2020",
    likelihood="class means, frozen features",
    samples="one mean a class",
    prior="any",
    numerator="-",
    weight="-",
    stages=after_cross_entropy,
)
