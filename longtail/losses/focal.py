"""Focal loss (Lin et al., ICCV 2017): a sample that is already right counts less.

    softmax   (1 - p_y)^gamma * -log p_y,                 p = softmax(logits)
    sigmoid   sum_c (1 - q_c)^gamma * -log q_c,           q_c = sigmoid(logit_c) for c = y, else sigmoid(-logit_c)

The first is what the long-tailed literature reports, the second the original. p is the network's own: a class weight
multiplies the loss afterwards (`classifier.py`). The code of LDAM, RIDE and LIFT takes p from the weighted loss
instead, so that a weight changes p.
"""

import torch.nn.functional as F
from torch import Tensor

from longtail.template import at_least_float32, cross_entropy, one_hot


def focal(logits_bc: Tensor, labels_b: Tensor, gamma: float) -> Tensor:
    """[B, C] -> [B]. gamma = 0 is cross-entropy."""
    loss_b = cross_entropy(logits_bc, labels_b)
    # 1 - p as expm1 keeps its digits, and its slope, where p is almost 1.
    return loss_b if gamma == 0 else _power(-(-loss_b).expm1(), gamma) * loss_b


def focal_sigmoid(logits_bc: Tensor, labels_b: Tensor, gamma: float) -> Tensor:
    """[B, C] -> [B]. gamma = 0 is one binary cross-entropy a class."""
    logits_bc = at_least_float32(logits_bc)
    right_bc = logits_bc * (2 * one_hot(labels_b, logits_bc.shape[1], logits_bc.dtype) - 1)
    loss_bc = -F.logsigmoid(right_bc)
    return (loss_bc if gamma == 0 else (-right_bc).sigmoid() ** gamma * loss_bc).sum(dim=1)


def _power(base_b: Tensor, gamma: float) -> Tensor:
    """base^gamma with a finite slope at 0, where p is 1 to the last digit and gamma under 1."""
    return base_b.clamp_min(1e-12) ** gamma
