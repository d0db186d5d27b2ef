"""Scores of every pixel of an image of any size: from the whole image at once, or from windows that slide over it.

A network sees as much context as it was trained with in a window, and all there is in a whole image; a window's memory
does not grow with the image. Windows overlap by a third and their scores are averaged where they do.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from longtail.recipe import Pixels
from longtail.segmentation.networks import resize
from longtail.template import at_least_float32

Score = Callable[[Tensor], Tensor]  # images [B, 3, H, W] -> scores [B, C, h, w] of a coarser grid


def score_pixels(score: Score, images: Tensor, size: tuple[int, int], pixels: Pixels) -> Tensor:
    """[B, 3, H, W] -> [B, C, *size], in float32."""
    if pixels.inference == "slide":
        return resize(sliding(score, images, pixels.crop), size)
    return resize(at_least_float32(score(images)), size)


def sliding(score: Score, images: Tensor, window: tuple[int, int]) -> Tensor:
    """[B, 3, H, W] -> [B, C, H, W]."""
    size = int(images.shape[2]), int(images.shape[3])
    tops, lefts = (places(side, extent) for side, extent in zip(size, window, strict=True))
    total, times = None, images.new_zeros(size, dtype=torch.float32)
    for top in tops:
        for left in lefts:
            part = (..., slice(top, top + window[0]), slice(left, left + window[1]))
            seen = images[part]
            scores = resize(at_least_float32(score(seen)), seen.shape[2:])
            if total is None:
                total = scores.new_zeros(len(images), scores.shape[1], *size)
            total[part] += scores
            times[part] += 1
    assert total is not None
    return total / times


def places(side: int, window: int) -> list[int]:
    """Where windows begin along a side: two thirds of a window apart, the last one ending where the side does."""
    last = max(side - window, 0)
    return [*range(0, last, max(1, window * 2 // 3)), last]
