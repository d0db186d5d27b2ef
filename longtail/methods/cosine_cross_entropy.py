"""Cross-entropy on a cosine head: `logit_adjusted` without the prior.

    L = -log softmax_c( cos(x, m_c) / tau_s )[y],   tau_s = 1/30

A floor of its own beside `cross_entropy`: a bounded score cannot grow with a class's frequency, so this head alone
already does something for the tail. A table that mixes the two floors compares heads, not methods.
"""

from collections.abc import Sequence

from torch import Tensor

from longtail.likelihood.cosine import Cosine
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published


def cosine_cross_entropy(counts: Sequence[int] | Tensor, dim: int, *, tau_s: float = 1 / 30) -> Classifier:
    return Classifier(Cosine(dim, len(counts), tau_s), counts, tau=0.0)


METHOD = Published(
    "cosine_cross_entropy",
    cosine_cross_entropy,
    paper="(the cosine floor)",
    likelihood="cosine",
    samples="one learned centre a class",
    prior="uniform",
    numerator="exact",
    weight="-",
)
