"""Class-balanced loss on a linear head (Cui et al., CVPR 2019): weights from the effective number of samples.

    L = w_y * -log softmax(z)[y],   w_c ~ (1 - beta) / (1 - beta^n_c), summing to C

The mean is over samples, as in the authors' TensorFlow code; PyTorch's weighted cross-entropy divides by the batch's
sum of weights instead, which gives tail-heavy batches less. Their best beta differs from one imbalance to the next;
0.9999 is their script's. Weights shift the decision boundary to first order only: prefer `balanced_softmax` unless
this row is what you need.
"""

from collections.abc import Sequence

from torch import Tensor

from longtail.likelihood.linear import Linear
from longtail.losses.class_weights import effective_number_weights
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published


def class_balanced(counts: Sequence[int] | Tensor, dim: int, *, beta: float = 0.9999) -> Classifier:
    weights_c = effective_number_weights(counts, beta)
    return Classifier(Linear(dim, len(counts)), counts, tau=0.0, class_weights_c=weights_c)


METHOD = Published(
    "class_balanced",
    class_balanced,
    paper="Cui et al., CVPR 2019",
    likelihood="linear",
    samples="-",
    prior="uniform",
    numerator="exact",
    weight="class",
)
