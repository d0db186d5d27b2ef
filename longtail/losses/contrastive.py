"""The supervised contrastive family: the template with Jensen's bound as its numerator.

    L_i = log sum_k w_ik e^{s_ik} - sum_k a_ik s_ik / sum_k a_ik

over contrasts k with scores s, weights w in the denominator and a in the numerator; both are 0 where a contrast is
left out, such as the anchor itself. What a method chooses:

    SupCon    w = 1                         a = 1 for the anchor's class
    BCL       w = 1 / size of k's class     a = 1 for the anchor's class
    PaCo      w = gamma, 1 for a centre     a = alpha for the anchor's class, beta for its centre (whose s has log p_c)
    MoCo      w = 1                         a = 1 for the anchor's own other view

With w = 1 / size the denominator is the sum of the classes' mean likelihoods: the mixture with a uniform prior. With w
= 1 the prior is the count of contrasts.
"""

import torch
from torch import Tensor

from longtail.template import at_least_float32, cross_entropy_with_numerator


def similarities(anchors_nd: Tensor, contrasts_kd: Tensor, tau: float) -> Tensor:
    """a . k / tau, [N, K], in float32 also under autocast: a bfloat16 cosine over 0.05 is a twelfth of a logit off."""
    with torch.autocast(anchors_nd.device.type, enabled=False):
        return at_least_float32(anchors_nd) @ at_least_float32(contrasts_kd).T / tau


def contrastive(scores_bk: Tensor, weights_bk: Tensor, positives_bk: Tensor) -> tuple[Tensor, Tensor]:
    """Loss [B], and [B] bool: which anchors have a positive. The loss of one that has none is 0, not 0 / 0."""
    scores_bk = at_least_float32(scores_bk)
    positives_bk = positives_bk.to(scores_bk.dtype)
    total_b = positives_bk.sum(dim=1)
    has_positive_b = total_b > 0
    numerator_b = (positives_bk * scores_bk).sum(dim=1) / total_b.clamp_min(1e-12)
    loss_b = cross_entropy_with_numerator(numerator_b, scores_bk + weights_bk.to(scores_bk.dtype).log())
    return torch.where(has_positive_b, loss_b, 0.0), has_positive_b
