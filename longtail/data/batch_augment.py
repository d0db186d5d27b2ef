"""Views: named, final augmentations of a whole uint8 batch, with parameters of its own for every image.

A view is a pure function of the images and of `draws` uniform numbers for each of them (see `randomness`): an augmented
image does not depend on the batch it is in, and no Python runs per image. The numbers stay on the host, which decides
from them what there is to do; the images may be on any device, and nothing waits for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.data.batch_autoaugment import auto_augment


@dataclass(frozen=True)
class View:
    """`augment(images uint8 [B, 3, H, W], u float32 [B, draws] on the host) -> uint8 [B, 3, h, w]`."""

    draws: int
    augment: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        assert images.dtype == torch.uint8, images.dtype
        assert u.shape == (len(images), self.draws), u.shape
        return self.augment(images, u)


def shift_flip(images: Tensor, u: Tensor) -> Tensor:
    """Random crop after padding with black by an eighth of the side (4 at 32 pixels); u [B, 2], [B, 3] to flip too."""
    size = images.shape[2:]
    pad = [side // 8 for side in size]
    u = u.to(images.device, non_blocking=True)
    x, y = (torch.arange(side, device=u.device) for side in reversed(size))
    if u.shape[1] == 3:
        x = torch.where(u[:, 2:] < 0.5, x.flip(0), x)  # [B, W]
    x = x + (u[:, 1:2] * (2 * pad[1] + 1)).to(torch.int64)
    y = y + (u[:, :1] * (2 * pad[0] + 1)).to(torch.int64)
    index = (y[:, :, None] * (size[1] + 2 * pad[1]) + x[:, None, :]).flatten(1)  # [B, HW] into the padded image
    padded = F.pad(images, (pad[1], pad[1], pad[0], pad[0])).flatten(2)
    return padded.gather(2, index[:, None].expand(-1, images.shape[1], -1)).view_as(images)


def cutout(images: Tensor, u: Tensor) -> Tensor:
    """One black square of half the side (16 at 32 pixels), its centre anywhere, clipped at the border; u [B, 2].

    DeVries & Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout" (2017).
    """
    u = u.to(images.device, non_blocking=True)

    def outside(u: Tensor, side: int) -> Tensor:
        offset = torch.arange(side, device=u.device) - (u[:, None] * side).to(torch.int64)
        return (offset < -(side // 4)) | (offset >= side // 4)  # [B, side]

    keep = outside(u[:, 0], images.shape[2])[:, :, None] | outside(u[:, 1], images.shape[3])[:, None, :]
    return images * keep[:, None]


def autoaugment_view(images: Tensor, u: Tensor, fill: int = 128) -> Tensor:
    """Crop, flip, AutoAugment, Cutout: PaCo's, BCL's and GML's view of CIFAR. `fill` is the grey of vacated pixels."""
    return cutout(auto_augment(shift_flip(images, u[:, :3]), u[:, 3:8], fill), u[:, 8:])


VIEWS: dict[str, View] = {
    "none": View(0, lambda images, u: images),
    "shift": View(2, shift_flip),  # for images whose mirror image means something else: digits, text
    "weak": View(3, shift_flip),
    "autoaugment": View(10, autoaugment_view),
}


def normalise(
    images: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """uint8 [B, 3, H, W] -> (pixel / 255 - mean) / std, computed in float32 and returned as `dtype`."""
    line = torch.tensor([[1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]])
    scale, shift = line[..., None, None].to(images.device, non_blocking=True)  # [3, 1, 1] each
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return (images.contiguous(memory_format=layout) * scale).add_(shift).to(dtype)
