"""A margin that is larger for rarer classes (Cao et al., NeurIPS 2019), taken off the true class's score.

    Delta_c = max_margin * (n_min / n_c)^(1/4)
    L = -log softmax_c( s_c - scale Delta_y [c = y] )[y],     s_c = scale cos(x, m_c)

Scores come scaled, so the margin is scaled here. (Some ports expect scaled scores and others do not; mixing the two
scales twice.) At test there is no margin.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from longtail.template import at_least_float32, cross_entropy


def ldam_margins(counts_c: Sequence[float] | Tensor, max_margin: float = 0.5) -> Tensor:
    """[C] float32; the rarest class that has images gets `max_margin`."""
    counts = torch.as_tensor(counts_c, dtype=torch.float64)
    margins = torch.where(counts > 0, counts.clamp_min(1) ** -0.25, 0)
    return (max_margin * margins / margins.max()).float()


def with_margin(scores_bc: Tensor, labels_b: Tensor, margins_c: Tensor, scale: float) -> Tensor:
    """Scaled scores [B, C], each true class's lowered by its scaled margin -> per-sample cross-entropy [B]."""
    scores_bc = at_least_float32(scores_bc)
    margin_b1 = (scale * margins_c.to(scores_bc.dtype)[labels_b])[:, None]
    return cross_entropy(scores_bc.scatter_add(1, labels_b[:, None], -margin_b1), labels_b)
