"""Focal loss on a linear head (Lin et al., ICCV 2017), in the softmax form of the long-tailed literature.

    L = (1 - p_y)^gamma * -log p_y,   p = softmax(z),   z = w_c . x + b_c

Default gamma = 1, as in LDAM's code; 2 is usual in detection. For one's own comparison tables: the weight follows the
network's confidence and not the class, so it does little for a tail. Use `logit_adjusted` for results.

Where paper and code differ: the paper's loss is a sum of sigmoids over classes (`class_balanced_focal` has that form);
this is the one of LDAM's code and of the tables. With class weights that code takes p from the weighted loss, so that a
weight changes p; there are none here.

The class mass is that of the counts; that easy samples count less is not in it.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from longtail.likelihood.linear import Linear
from longtail.losses.focal import focal as focal_loss
from longtail.methods.classifier import Classifier
from longtail.methods.published import Published


def focal(counts: Sequence[int] | Tensor, dim: int, *, gamma: float = 1.0) -> Classifier:
    return Classifier(Linear(dim, len(counts)), counts, tau=0.0, loss=partial(focal_loss, gamma=gamma))


METHOD = Published(
    "focal",
    focal,
    paper="Lin et al., ICCV 2017",
    likelihood="linear",
    samples="-",
    prior="uniform",
    numerator="exact",
    weight="confidence",
)
