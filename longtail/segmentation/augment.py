"""Random scale, crop, flip and colours: mmsegmentation's training views, as a pure function of uniform numbers.

An image is first scaled: its short side to `short_side` (its long side to at most four times that), if given, times a
number from `scale`. Of ten random crops the first is taken in which no class has three quarters of the labelled
pixels, else the last. Where the image is smaller than the crop, the rest is OUTSIDE.

Photometric distortion, each with probability one half: brightness, up to 32 grey levels up or down; contrast, a factor
from 1/2 to 3/2, before or after the colours; saturation, the same factor; hue, up to a tenth of the circle either way.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from longtail.data.batch_operations import run
from longtail.data.batch_policies import sometimes
from longtail.segmentation.masks import OUTSIDE, VOID

TRIES = 10
MOST_OF_A_CROP = 0.75
_PLACES = slice(1, 1 + 2 * TRIES)
_FLIP = 1 + 2 * TRIES
_COLOURS = slice(_FLIP + 1, _FLIP + 10)
DRAWS = _FLIP + 10


def scaled_size(height: int, width: int, short_side: int | None, ratio: float = 1.0) -> tuple[int, int]:
    """Where an image goes before it is cropped, and as what it is answered."""
    if short_side is not None:
        ratio *= min(short_side / min(height, width), 4 * short_side / max(height, width))
    return max(1, round(height * ratio)), max(1, round(width * ratio))


class Crops:
    """The training view: (image uint8 [H, W, 3], mask uint8 [H, W], u [DRAWS]) -> both at the size of the crop."""

    draws = DRAWS

    def __init__(self, crop: Sequence[int], scale: Sequence[float], short_side: int | None):
        self.crop, self.scale, self.short_side = tuple(crop), tuple(scale), short_side

    def cut(self, image: np.ndarray, mask: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = self.scale
        full = scaled_size(mask.shape[0], mask.shape[1], self.short_side, low + (high - low) * float(u[0]))
        size = min(self.crop[0], full[0]), min(self.crop[1], full[1])
        box = (0.0, 0.0, 0.0, 0.0)
        for place in u[_PLACES].reshape(TRIES, 2):
            box = _box(full, size, place, mask.shape)
            if _is_mixed(mask, box):
                break
        wide = size[1], size[0]
        image = np.asarray(Image.fromarray(image).resize(wide, Image.Resampling.BILINEAR, box))
        mask = np.asarray(Image.fromarray(mask).resize(wide, Image.Resampling.NEAREST, box))
        if u[_FLIP] < 0.5:
            image, mask = image[:, ::-1], mask[:, ::-1]
        rest = (0, self.crop[0] - size[0]), (0, self.crop[1] - size[1])
        return np.pad(image, (*rest, (0, 0))), np.pad(mask, rest, constant_values=OUTSIDE)

    def colour(self, images: Tensor, u: Tensor) -> Tensor:
        return distort_colours(images, u[:, _COLOURS])


class Whole:
    """The view that is answered: the image scaled, nothing random, the mask as it is."""

    draws = 0

    def __init__(self, short_side: int | None):
        self.short_side = short_side

    def cut(self, image: np.ndarray, mask: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.scale(image), mask

    def scale(self, image: np.ndarray) -> np.ndarray:
        size = scaled_size(image.shape[0], image.shape[1], self.short_side)
        if size == image.shape[:2]:
            return image
        return np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BILINEAR))

    def colour(self, images: Tensor, u: Tensor) -> Tensor:
        return images


def _box(full: tuple[int, int], size: tuple[int, int], place: np.ndarray, source: tuple[int, ...]):
    """A crop of `size` from the image scaled to `full`, as left, top, right, bottom in the source's own pixels."""
    top, left = (int(u * (f - s + 1)) for u, f, s in zip(place, full, size, strict=True))
    down, across = source[0] / full[0], source[1] / full[1]
    right, bottom = min((left + size[1]) * across, source[1]), min((top + size[0]) * down, source[0])
    return left * across, top * down, right, bottom


def _is_mixed(mask: np.ndarray, box: tuple[float, ...]) -> bool:
    left, top, right, bottom = (round(side) for side in box)
    counts = np.bincount(mask[top : max(bottom, top + 1), left : max(right, left + 1)].ravel(), minlength=256)
    counts[[VOID, OUTSIDE]] = 0
    return bool(np.count_nonzero(counts) > 1 and counts.max() < MOST_OF_A_CROP * counts.sum())


def distort_colours(images: Tensor, u: Tensor) -> Tensor:
    """uint8 [B, 3, H, W], u [B, 9] on the host -> uint8 [B, 3, H, W]."""

    def number(column: int, neutral: float, low: float, high: float) -> Tensor:
        """In [low, high) for one image in two, else what changes nothing; the draw beside it decides."""
        value = torch.where(u[:, column] < 0.5, low + (high - low) * u[:, column + 1], neutral)
        return value[:, None, None, None].to(images.device, non_blocking=True)

    contrast = number(2, 1.0, 0.5, 1.5)
    first = (u[:, 4] < 0.5)[:, None, None, None].to(images.device, non_blocking=True)
    x = (images + number(0, 0.0, -32.0, 32.0)).clamp_(0, 255)
    x = torch.where(first, (x * contrast).clamp_(0, 255), x)
    brightest = x.amax(1, keepdim=True)  # saturation moves the other channels to or from the largest
    x = (brightest - (brightest - x) * number(5, 1.0, 0.5, 1.5)).clamp_(min=0)
    x = run(x.round_().to(torch.uint8), [sometimes("hue", u[:, 7], 0.5, 0.2 * u[:, 8] - 0.1)])
    return torch.where(first, x, (x * contrast).clamp_(0, 255).round_().to(torch.uint8))
