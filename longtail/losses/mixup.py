"""Mixup (Zhang et al., ICLR 2018): two images and both their labels, in one proportion a batch.

    x = lambda x_i + (1 - lambda) x_j,   target = lambda [y_i] + (1 - lambda) [y_j],   lambda ~ Beta(alpha, alpha)

Only what a class is told of is mixed; contrast views and their labels stay as they are.
"""

import torch
from torch import Tensor

from longtail.template import one_hot


def mixed(images: Tensor, labels_b: Tensor, num_classes: int, alpha: float) -> tuple[Tensor, Tensor]:
    """[B, ...] images and [B] labels -> mixed images and [B, C] probabilities. Draws from the host's generator."""
    share = torch.distributions.Beta(alpha, alpha).sample().item()
    other = torch.randperm(len(labels_b)).to(labels_b.device)
    target_bc = one_hot(labels_b, num_classes, torch.float32)
    return images.lerp(images[other], 1 - share), target_bc.lerp(target_bc[other], 1 - share)
