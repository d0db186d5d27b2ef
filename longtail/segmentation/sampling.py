"""Which pixels take part in a contrast, and their features.

L_GML compares query pixels with the bank. Its prior is log p of the pixels, so queries are drawn uniformly over the
labelled pixels of an image: drawn in any other way, the loss would see another class mass than its prior says. Keys may
be drawn as one likes, because a mixture's mean counts its own samples; they are drawn evenly over the classes an image
shows, so that a rare class's ring is renewed whenever it is seen, and the cost of a step does not depend on the scene.

All draws are with replacement and of a fixed number an image: no shape depends on the labels and nothing waits for the
device. They come from torch's generator on the host, which the training loop seeds at every step.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.template import at_least_float32

_WHOLE = 2**31  # weights are whole numbers, so that sums over a million pixels stay exact


def draw(weights_bp: Tensor, n: int) -> Tensor:
    """int64 [B, P] -> n pixels of each image, int64 [B, n], in proportion to their weights; pixel 0 where all are 0."""
    ends = weights_bp.cumsum(1)
    u = torch.rand(len(weights_bp), n).to(weights_bp.device, non_blocking=True)
    place = torch.minimum((u * ends[:, -1:]).to(torch.int64), ends[:, -1:] - 1)  # float32 may round up to the end
    return torch.searchsorted(ends, place, right=True)


def labelled(labels_bp: Tensor) -> Tensor:
    """Weights of queries: every labelled pixel alike."""
    return (labels_bp >= 0).to(torch.int64)


def evenly_by_class(labels_bp: Tensor, num_classes: int) -> Tensor:
    """Weights of keys: every class of an image alike, and every pixel of a class."""
    known = labels_bp >= 0
    label = labels_bp.clamp(min=0)
    size_bc = torch.zeros(len(label), num_classes, dtype=torch.int64, device=label.device)
    size_bc.scatter_add_(1, label, known.to(torch.int64))
    return known * (_WHOLE // size_bc.clamp(min=1)).gather(1, label)


def features_at(maps: Tensor, pixels: Tensor, size: Sequence[int]) -> Tensor:
    """[B, D, h, w] and pixels [B, n] of images of `size` -> [B, n, D]: what bilinear resizing gives at these pixels."""
    maps = at_least_float32(maps)  # a bfloat16 could not tell one pixel's place from the next one's
    places = torch.stack([pixels % size[1], pixels // size[1]], 2)[:, None]  # [B, 1, n, 2]
    grid = (2 * places + 1).to(maps.dtype) / places.new_tensor([size[1], size[0]]) - 1
    found = F.grid_sample(maps, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return found[:, :, 0].transpose(1, 2)
