"""Class-balanced focal loss on a linear head (Cui et al., CVPR 2019): the row "CB-Focal" of the paper's tables.

    L = w_y * sum_c (1 - q_c)^gamma * -log q_c,   q_c = sigmoid(z_c) for c = y, else sigmoid(-z_c)

with the weights of `class_balanced.py`, beta = 0.9999 and gamma = 1 as in the authors' script. `form="softmax"` is the
focal loss of `focal.py` in its place, as most re-implementations have it. The sigmoid form starts with biases of
-log((1 - pi) / pi), pi = 1/C: at zero the C - 1 wrong classes of every sample would drown the right one. They decay as
all weights do; the authors are said to spare them, as `--set optim.decay_norm_and_bias=false` spares every bias.

Scores of the sigmoid form are one-against-all log odds; the class mass taken out of them is a first-order correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.likelihood.linear import Linear
from longtail.losses.class_weights import effective_number_weights
from longtail.losses.focal import focal, focal_sigmoid
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published


def class_balanced_focal(
    counts: Sequence[int] | Tensor, dim: int, *, beta: float = 0.9999, gamma: float = 1.0, form: str = "sigmoid"
) -> Classifier:
    if form not in ("sigmoid", "softmax"):
        raise LongtailError(f"form is sigmoid or softmax, not {form!r}")
    likelihood = Linear(dim, len(counts))
    if form == "sigmoid":
        nn.init.constant_(likelihood.linear.bias, -math.log(max(len(counts) - 1, 1)))
    loss = partial(focal_sigmoid if form == "sigmoid" else focal, gamma=gamma)
    weights_c = effective_number_weights(counts, beta)
    return Classifier(likelihood, counts, tau=0.0, loss=loss, class_weights_c=weights_c)


METHOD = Published(
    "class_balanced_focal",
    class_balanced_focal,
    paper="Cui et al., CVPR 2019",
    likelihood="linear",
    samples="-",
    prior="uniform",
    numerator="exact",
    weight="class, confidence",
)
