"""Which part of an image is seen: shifts and flips, random resized crops, square holes, each image with its own."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CROP_DRAWS = 22  # ten tries at a size, as torchvision makes, then a place


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


def crop_boxes(u: Tensor, height: int, width: int, scale: tuple[float, float]) -> Tensor:
    """Boxes of torchvision's RandomResizedCrop, u [B, 22] -> int64 [B, 4]: top, left, height, width.

    The first of ten tries that fits, aspect ratios from 3/4 to 4/3; else the largest centred box of such a ratio.
    """
    u = u.to(torch.float64)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, :10])
    ratio = torch.exp((2 * u[:, 10:20] - 1) * math.log(4 / 3))
    h, w = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()  # [B, 10]
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    first = fits.to(torch.int8).argmax(1, keepdim=True)
    found = fits.any(1)
    h = torch.where(found, h.gather(1, first)[:, 0], min(height, round(width * 4 / 3)))
    w = torch.where(found, w.gather(1, first)[:, 0], min(width, round(height * 4 / 3)))
    top = torch.where(found, (u[:, 20] * (height - h + 1)).floor(), (height - h) // 2)
    left = torch.where(found, (u[:, 21] * (width - w + 1)).floor(), (width - w) // 2)
    return torch.stack([top, left, h, w], 1).to(torch.int64)


def _weights(start: Tensor, length: Tensor, side: int, size: int) -> Tensor:
    """[B, size, side]: each output pixel as a mean of the input pixels under its triangle (bilinear, antialiased)."""
    step = (length / size)[:, None, None]
    centre = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * step
    at = torch.arange(side, device=start.device) + 0.5
    weight = (1 - (at - centre).abs() / step.clamp(min=1)).clamp_(min=0)
    end = (start + length)[:, None, None]
    weight = weight * ((at > start[:, None, None]) & (at < end))
    return weight / weight.sum(2, keepdim=True)


def resized_crop(images: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut out each image's box and resize it: two products with matrices of its own, rounded once, at the end."""
    top, left, h, w = boxes.to(images.device, torch.float32, non_blocking=True).unbind(1)
    rows = _weights(top, h, images.shape[2], size[0])[:, None]  # [B, 1, h, H]
    columns = _weights(left, w, images.shape[3], size[1])[:, None]
    resized = rows @ images.to(torch.float32) @ columns.mT
    return resized.round_().clamp_(0, 255).to(torch.uint8)
