"""Noise-contrastive estimation against a memory (Tian et al., ICLR 2020, eq. 18): is this pair of one image?

    h(s) = (e^s / Z) / ( e^s / Z + k / N )
    L    = -log h(s_own) - sum_{j=1..k} log( 1 - h(s_j) )

s are similarities over tau, N the size of the training set, k negatives a sample. Z makes e^s / Z a probability over
the N samples; it is measured once, on the first batch, while the memory is random, and stays.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.template import at_least_float32


def noise_contrast(scores_bk: Tensor, log_z: Tensor, size: int) -> Tensor:
    """Scores [B, 1 + k], the own sample's first -> [B]."""
    log_odds_bk = at_least_float32(scores_bk) - log_z - torch.log(scores_bk.new_tensor((scores_bk.shape[1] - 1) / size))
    return -F.logsigmoid(log_odds_bk[:, 0]) - F.logsigmoid(-log_odds_bk[:, 1:]).sum(dim=1)


def log_normaliser(scores_bk: Tensor, size: int) -> Tensor:
    """log( N mean e^s ): the log Z of a batch."""
    scores = at_least_float32(scores_bk.detach()).flatten()
    return torch.logsumexp(scores, dim=0) + torch.log(scores.new_tensor(size / len(scores)))
