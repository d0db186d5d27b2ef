"""Plain cross-entropy on a linear head: the floor every table starts from.

    L = -log softmax_c( w_c . x + b_c )[y]

It learns the training set's class mix, which is then taken out of the answer (`log_mass - log_added = log p`).
"""

from longtail.likelihood.linear import Linear
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published
from longtail.types import Counts


def cross_entropy(counts: Counts, dim: int, *, mixup: float = 0.0) -> Classifier:
    return Classifier(Linear(dim, len(counts)), counts, tau=0.0, mixup=mixup)


METHOD = Published(
    "cross_entropy",
    cross_entropy,
    paper="(the floor)",
    likelihood="linear",
    samples="-",
    prior="uniform",
    numerator="exact",
    weight="-",
)
