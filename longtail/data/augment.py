"""Photographs of all sizes, brought to the one size a backbone takes, in the process that decodes them.

Everything after that is done on whole batches (`batch_augment`). For evaluation Pillow resizes, because published
accuracies were measured with it; for training torch does, in a third of the time and within one grey level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from longtail.errors import LongtailError

_FILTERS = {name: Image.Resampling[name.upper()] for name in ("nearest", "bilinear", "bicubic", "lanczos")}


@dataclass(frozen=True)
class ImageFormat:
    """What a backbone takes, and how it is evaluated."""

    size: int = 224
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    interpolation: str = "bilinear"
    crop_pct: float = 0.875  # the centred square that is seen, as a share of the shorter side

    @staticmethod
    def of_timm(config: Mapping[str, Any]) -> "ImageFormat":
        """From a timm model's `pretrained_cfg`."""
        height, width = config["input_size"][1:]
        if height != width or config["interpolation"] not in _FILTERS:
            raise LongtailError(
                f"This backbone takes images of {width} x {height}, resized by {config['interpolation']}: choose one "
                f"that takes squares, resized by {', '.join(_FILTERS)}."
            )
        return ImageFormat(
            height, tuple(config["mean"]), tuple(config["std"]), config["interpolation"], config["crop_pct"]
        )


def centred(image: np.ndarray, format: ImageFormat) -> Tensor:
    """uint8 [H, W, 3] -> uint8 [3, size, size]: the shorter side to size / crop_pct, then the middle."""
    height, width = image.shape[:2]
    short = int(format.size / format.crop_pct)
    if height < width:
        resized = short, int(short * width / height)
    else:
        resized = int(short * height / width), short
    picture = Image.fromarray(image)
    if resized != (height, width):
        picture = picture.resize((resized[1], resized[0]), _FILTERS[format.interpolation])
    top, left = (round((side - format.size) / 2) for side in resized)
    middle = picture.crop((left, top, left + format.size, top + format.size))
    return torch.from_numpy(np.array(middle)).permute(2, 0, 1)


def cropped(image: np.ndarray, box: Sequence[int], size: int) -> Tensor:
    """uint8 [H, W, 3] -> uint8 [3, size, size]: the box (top, left, height, width), resized bilinearly."""
    top, left, height, width = box
    part = torch.from_numpy(image[top : top + height, left : left + width]).permute(2, 0, 1)
    return F.interpolate(part[None], (size, size), mode="bilinear", antialias=True)[0]
