"""Class weights from counts: the effective number of samples (Cui et al., CVPR 2019).

    E_c = (1 - beta^n_c) / (1 - beta),     w_c = (1 / E_c) * C / sum_c' 1 / E_c'

beta = 0 weights all classes alike and beta -> 1 by 1 / n_c. A class without images has weight 0: it is no sample's
label.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def effective_number_weights(counts_c: Sequence[float] | Tensor, beta: float = 0.9999) -> Tensor:
    """[C] float32, summing to the number of classes that have images."""
    counts = torch.as_tensor(counts_c, dtype=torch.float64)
    present = counts > 0
    weights = torch.where(present, (1 - beta) / (1 - beta ** counts.clamp_min(1)), 0)
    return (weights * present.sum() / weights.sum()).float()
