"""Balanced softmax (Ren et al., NeurIPS 2020): the class counts inside the softmax, on a linear head.

    L = -log( n_y e^{z_y} / sum_c n_c e^{z_c} ),   z = w_c . x + b_c

log n_c and log p_c differ by a constant, so this is logit adjustment (Menon et al., ICLR 2021) at tau = 1.

No difference between the paper's loss and the authors' code is known. What tables call BALMS is sometimes this loss and
sometimes the paper's whole method, whose second stage learns a sampler beside it; that stage is not here.
"""

from longtail.likelihood.linear import Linear
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published
from longtail.types import Counts


def balanced_softmax(counts: Counts, dim: int, *, tau: float = 1.0, mixup: float = 0.0) -> Classifier:
    return Classifier(Linear(dim, len(counts)), counts, tau, mixup=mixup)


METHOD = Published(
    "balanced_softmax",
    balanced_softmax,
    paper="Ren et al., NeurIPS 2020",
    likelihood="linear",
    samples="one learned centre a class",
    prior="tau * log p",
    numerator="exact",
    weight="-",
)
