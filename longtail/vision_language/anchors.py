"""Anchor sentences: of all that is said about a class, what fits its training images best (VL-LTR, ECCV 2022).

    loss(t) = log sum_i exp( s t . x_i ) - s t . mean of x_i over the images of t's class

the cross-entropy of a sentence t against all training images x_i, the right ones being those of its class; s is CLIP's
inverse temperature. The second term is a mean, so one product with the class means has it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.likelihood.prototypes import class_means
from longtail.segments import Segments
from longtail.vision_language.text import TextBank

BLOCK = 2**26  # similarities at a time: 256 MB


def sentence_losses(bank: TextBank, image_nd: Tensor, label_n: Tensor, scale: float) -> Tensor:
    """[K]; 0 for the sentences of a class without images, about which images say nothing."""
    image_nd = F.normalize(image_nd.float(), dim=1)
    mean_cd, known_c = class_means(image_nd, label_n, bank.num_classes)
    own_k = (bank.features * mean_cd[bank.class_of]).sum(1)
    rows = max(1, BLOCK // len(image_nd))
    all_k = torch.cat([torch.logsumexp(scale * part @ image_nd.T, dim=1) for part in bank.features.split(rows)])
    return torch.where(known_c[bank.class_of], all_k - scale * own_k, 0.0)


def select_anchors(bank: TextBank, image_nd: Tensor, label_n: Tensor, scale: float, anchors: int) -> TextBank:
    """At most so many sentences a class, those of the smallest loss; where losses are equal, the first ones."""
    losses = sentence_losses(bank, image_nd, label_n, scale)
    by_loss = losses.argsort(stable=True)
    order = by_loss[bank.class_of[by_loss].argsort(stable=True)]
    start = Segments.of(torch.bincount(bank.class_of, minlength=bank.num_classes)).offsets
    rank = torch.arange(len(order), device=order.device) - start[bank.class_of]
    return bank.take(order[rank < anchors].sort().values)
