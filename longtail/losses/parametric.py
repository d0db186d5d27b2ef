"""PaCo's loss (Cui et al., ICCV 2021): contrasts and class centres in one softmax.

    D_i = { z_c + log p_c : c } u { v_i.k / tau : k }
    L_i = -( beta lp(centre y) + alpha sum_{k of class y} lp(k) ) / ( beta + alpha #{k of class y} )
    lp  = log softmax(D_i)

gamma weights the contrasts in the denominator. alpha = gamma = 0 is balanced softmax. `smooth` spreads a share of beta
over the wrong centres.
"""

import torch
from torch import Tensor

from longtail.losses.contrastive import contrastive
from longtail.template import at_least_float32, one_hot


def parametric_contrast(
    logits_nc: Tensor,
    scores_nk: Tensor,
    kept_nk: Tensor,
    same_nk: Tensor,
    labels_n: Tensor,
    *,
    alpha: float,
    beta: float = 1.0,
    gamma: float = 1.0,
    smooth: float = 0.0,
) -> Tensor:
    """Logits with the prior [N, C]; contrast scores [N, K], which of them are seen, and which are of the same class."""
    centre_nc = one_hot(labels_n, logits_nc.shape[1], scores_nk.dtype)
    if smooth:
        centre_nc = (1 - smooth) * centre_nc + smooth / (logits_nc.shape[1] - 1) * (1 - centre_nc)
    loss_n, _ = contrastive(
        torch.cat([at_least_float32(logits_nc), scores_nk], dim=1),
        torch.cat([torch.ones_like(centre_nc), gamma * kept_nk], dim=1),
        torch.cat([beta * centre_nc, alpha * (kept_nk & same_nk)], dim=1),
    )
    return loss_n
