"""AutoAugment (the CIFAR-10 policy) on a whole batch, each image with a sub-policy of its own.

Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data" (CVPR 2019): one of 25 sub-policies is drawn for
an image; each of its two operations happens with its probability, at its magnitude, with a random sign if it has one.

The batch is sorted by operation, every operation works on its slice, and the batch is sorted back. How long a slice is
must be known to Python, so the random numbers stay on the host: the device is told, never asked, and nothing waits.

The operations are torchvision's on uint8, with a factor for each image. Products and sums stay separate kernels: fused,
they would round differently at the end of a tensor than in its middle, and an image would depend on its neighbours.

Geometric operations take the nearest pixel and fill with grey 128, as the implementation behind PaCo, BCL and GML does
(torchvision's own default is 0). That implementation differs in three details: it shears bicubically, rotates in one
direction only, and solarizes from 256 down where torchvision and this file start at 255.
"""

import torch
from torch import Tensor

# (operation, probability, level from 0 to 9), twice a sub-policy; no level where the operation has no magnitude.
_POLICY: tuple[tuple[tuple[str, float, int], tuple[str, float, int]], ...] = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("autocontrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("autocontrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("autocontrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("autocontrast", 0.9, 0)),
)


def _column(values: Tensor) -> Tensor:
    return values[:, None, None, None]


def _to_uint8(x: Tensor) -> Tensor:
    return x.clamp_(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """[n, 3, H, W] uint8 -> [n, 1, H, W] float32 with whole numbers."""
    red, green, blue = images.unbind(1)
    return (red * 0.2989).add_(green * 0.587).add_(blue * 0.114).floor_().unsqueeze(1)


def _blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return _to_uint8((images * _column(factor)).add_(other * _column(1 - factor)))


def _invert(images: Tensor, _: Tensor) -> Tensor:
    return ~images


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    return images & _column(256 - torch.exp2(8 - bits)).to(torch.uint8)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    return torch.where(images >= _column(threshold).ceil().to(torch.uint8), ~images, images)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    return _to_uint8(images * _column(factor))


def _color(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(images, _grey(images), factor)


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    pixels = images.shape[2] * images.shape[3]
    mean = _grey(images).sum((2, 3), keepdim=True, dtype=torch.int32) / pixels  # integers: exact in any order
    return _blend(images, mean, factor)


def _sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by the 3 x 3 kernel of ones with a 5 in its middle; the border stays as it is."""
    x = images.to(torch.int16)
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    inner = x[:, :, 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner
    smooth = (total * (1 / 13)).round_()  # total / 13 is never half way between two integers
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = _to_uint8((smooth - inner).mul_(_column(1 - factor)).add_(inner))
    return out


def _autocontrast(images: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel to 0..255; a channel of one value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = low == high
    scale = torch.where(flat, 1.0, (high - low) * (1 / 255))
    return _to_uint8((images - torch.where(flat, 0, low)).to(torch.float32).div_(scale))


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    """Pillow's histogram equalisation: a look-up table of 256 entries for each channel of each image."""
    n, channels, height, width = images.shape
    pixels = images.flatten(2).to(torch.int64)
    histogram = torch.zeros(n, channels, 256, dtype=torch.int32, device=images.device)
    histogram.scatter_add_(2, pixels, torch.ones((), dtype=torch.int32, device=images.device).expand_as(pixels))
    brightest = histogram.gather(2, images.amax((2, 3)).to(torch.int64)[..., None])
    step = (height * width - brightest) // 255
    below = histogram.cumsum(2, dtype=torch.int32) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, dtype=torch.int32, device=images.device))
    return table.to(torch.uint8).gather(2, pixels).view_as(images)


def _from_centre(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) - (size - 1) / 2


def _warp(images: Tensor, source: Tensor, fill: int) -> Tensor:
    """Nearest pixel. A row (a, b, c, d, e, f) of `source` [n, 6] sends the pixel at (x, y), counted from the centre,
    for the one at (a x + b y + c, d x + e y + f)."""
    height, width = images.shape[2:]
    x, y = _from_centre(width, images.device), _from_centre(height, images.device)[:, None]
    a, b, c, d, e, f = source[..., None, None].unbind(1)  # [n, 1, 1] each
    column = (a * x + b * y + (c + (width - 1) / 2)).round_().to(torch.int64)  # [n, H, W]
    row = (d * x + e * y + (f + (height - 1) / 2)).round_().to(torch.int64)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp_(0, height - 1) * width).add_(column.clamp_(0, width - 1)).flatten(1)
    moved = images.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1)).view_as(images)
    return torch.where(inside[:, None], moved, fill)


def _shear_y(slope: Tensor, height: int, width: int) -> tuple[Tensor | float, ...]:
    return 1.0, 0.0, 0.0, slope, 1.0, slope * (width / 2)  # the left edge stays


def _translate_x(share: Tensor, height: int, width: int) -> tuple[Tensor | float, ...]:
    return 1.0, 0.0, -(share * width).trunc(), 0.0, 1.0, 0.0


def _translate_y(share: Tensor, height: int, width: int) -> tuple[Tensor | float, ...]:
    return 1.0, 0.0, 0.0, 0.0, 1.0, -(share * height).trunc()


def _rotate(degrees: Tensor, height: int, width: int) -> tuple[Tensor | float, ...]:
    sine, cosine = torch.sin(torch.deg2rad(degrees)), torch.cos(torch.deg2rad(degrees))
    return cosine, -sine, 0.0, sine, cosine, 0.0  # counter-clockwise


_COLOURS = {
    "invert": _invert,
    "posterize": _posterize,
    "solarize": _solarize,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}
_MOVES = {"shear_y": _shear_y, "translate_x": _translate_x, "translate_y": _translate_y, "rotate": _rotate}
OPERATIONS = (*_COLOURS, *_MOVES)


def apply(operation: str, images: Tensor, magnitude: Tensor, fill: int = 128) -> Tensor:
    """One operation on uint8 [n, 3, H, W], with a magnitude [n] for each image. Returns new images."""
    if operation in _COLOURS:
        return _COLOURS[operation](images, magnitude)
    source = torch.zeros(len(images), 6, device=images.device)
    for i, coefficient in enumerate(_MOVES[operation](magnitude, *images.shape[2:])):
        source[:, i] = coefficient
    return _warp(images, source, fill)


def magnitude(operation: str, level: int, sign: int) -> float:
    """What level 0..9 means. Translations are shares of the side; the enhancing operations' neutral factor is 1."""
    match operation:
        case "shear_y":
            return sign * 0.3 * level / 9
        case "translate_x" | "translate_y":
            return sign * 150 / 331 * level / 9
        case "rotate":
            return sign * 30 * level / 9
        case "brightness" | "color" | "contrast" | "sharpness":
            return 1 + sign * 0.1 * level
        case "posterize":
            return 8 - round(level * 4 / 9)
        case "solarize":
            return 255 * (9 - level) / 9
        case _:
            return 0.0


# Look-up tables of the policy, by sub-policy and step; an operation's number is its place in OPERATIONS.
_OPERATION = torch.tensor([[OPERATIONS.index(name) for name, _, _ in pair] for pair in _POLICY])
_PROBABILITY = torch.tensor([[probability for _, probability, _ in pair] for pair in _POLICY])
_MAGNITUDE = torch.tensor(
    [[[magnitude(name, level, s) for s in (-1, 1)] for name, _, level in pair] for pair in _POLICY]
)

DRAWS = 5


def auto_augment(images: Tensor, u: Tensor, fill: int = 128) -> Tensor:
    """images uint8 [B, 3, H, W] on any device; u [B, 5] on the host: sub-policy, two chances, two signs."""
    assert u.device.type == "cpu", "random numbers stay on the host, or sorting by operation would wait for the device"
    sub_policy = (u[:, 0] * len(_POLICY)).to(torch.int64)
    for step in (0, 1):
        happens = u[:, 1 + step] < _PROBABILITY[sub_policy, step]
        operation = torch.where(
            happens, _OPERATION[sub_policy, step], len(OPERATIONS)
        )  # the last number: nothing happens
        sign = (u[:, 3 + step] < 0.5).to(torch.int64)
        order = operation.argsort(stable=True)
        strength = _MAGNITUDE[sub_policy, step, sign][order].to(images.device, non_blocking=True)
        back = order.argsort().to(images.device, non_blocking=True)
        images = images.index_select(0, order.to(images.device, non_blocking=True))
        lengths = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
        start = 0
        for name, length in zip(OPERATIONS, lengths, strict=False):
            if length:
                some = slice(start, start + length)
                images[some] = apply(name, images[some], strength[some], fill)
            start += length
        images = images.index_select(0, back)
    return images
