"""Operations on a uint8 batch, each image with an operation and a magnitude of its own; no Python runs per image.

They are torchvision's on uint8 with a factor for each image. Products and sums stay separate kernels: fused, they would
round differently at the end of a tensor than in its middle, and an image would depend on its neighbours in the batch.

A plan is a list of steps, and a step says which operation and which magnitude each image gets. `run` sorts the batch by
operation and lets every operation work on its slice. How long a slice is must be known to Python, so plans are made on
the host: a device is told what to do, never asked, and nothing waits for it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Operation, int64 [B]: its place in OPERATIONS, or NOTHING. Magnitude, float32 [B]. Both on the host.
Step = tuple[Tensor, Tensor]
Fill = tuple[int, int, int]

BLUR_RADIUS = 6  # pixels; three deviations of the widest blur in use
CACHED = 2**19  # numbers; their float32 fits the cache of a core


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
    level = _column(threshold).ceil()
    inverted = (images >= level.clamp(max=255).to(torch.uint8)) & (level <= 255)
    return images ^ (inverted.to(torch.uint8) * 255)  # several times faster than torch.where on bytes


def _solarize_add(images: Tensor, amount: Tensor) -> Tensor:
    """Lighten the darker half of the scale."""
    return images + (images < 128) * _column(amount).to(torch.uint8)  # amount <= 127: no overflow


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


def _hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the colour wheel by a share of a full circle."""
    x = images.to(torch.float32)
    red, green, blue = x.unbind(1)
    value, low = x.amax(1), x.amin(1)
    span = value - low
    step = span.clamp(min=1)
    hue = torch.where(value == green, 2 + (blue - red) / step, 4 + (red - green) / step)
    hue = torch.where(value == red, (green - blue) / step, hue) + 6 * turn[:, None, None]  # in sixths of the circle
    # How far each channel lies below the brightest is a trapezium over the circle, the same for all but for its place.
    at = torch.stack([hue + 5, hue + 3, hue + 1], 1).remainder_(6)
    below = torch.minimum(at, 4 - at).clamp_(0, 1)
    return _to_uint8((value[:, None] - span[:, None] * below).mul_(255.999 / 255))  # torchvision's way back to bytes


def _blur(images: Tensor, deviation: Tensor) -> Tensor:
    """Gaussian, mirrored at the border; the kernel of 2 BLUR_RADIUS + 1 taps is applied to columns, then to rows."""
    at = torch.arange(-BLUR_RADIUS, BLUR_RADIUS + 1, device=images.device)
    kernel = torch.softmax(-(at**2) / (2 * deviation[:, None] ** 2), 1)[:, :, None, None, None]  # [n, taps, 1, 1, 1]
    x = F.pad(images.to(torch.float32), (BLUR_RADIUS,) * 4, mode="reflect")
    for dim in (2, 3):
        size, middle = images.shape[dim], kernel[:, BLUR_RADIUS]
        total = x.narrow(dim, BLUR_RADIUS, size) * middle
        for i in range(BLUR_RADIUS):
            pair = x.narrow(dim, i, size) + x.narrow(dim, 2 * BLUR_RADIUS - i, size)
            total += pair.mul_(kernel[:, i])
        x = total
    return _to_uint8(x.round_())


def _mirror(images: Tensor, _: Tensor) -> Tensor:
    return images.flip(3)


Coefficients = tuple[Tensor | float, ...]


def _shear_x(slope: Tensor, height: int, width: int) -> Coefficients:
    return 1.0, slope, slope * (height / 2), 0.0, 1.0, 0.0  # the upper edge stays


def _shear_y(slope: Tensor, height: int, width: int) -> Coefficients:
    return 1.0, 0.0, 0.0, slope, 1.0, slope * (width / 2)  # the left edge stays


def _translate_x(share: Tensor, height: int, width: int) -> Coefficients:
    return 1.0, 0.0, -(share * width).trunc(), 0.0, 1.0, 0.0


def _translate_y(share: Tensor, height: int, width: int) -> Coefficients:
    return 1.0, 0.0, 0.0, 0.0, 1.0, -(share * height).trunc()


def _rotate(degrees: Tensor, height: int, width: int) -> Coefficients:
    sine, cosine = torch.sin(torch.deg2rad(degrees)), torch.cos(torch.deg2rad(degrees))
    return cosine, -sine, 0.0, sine, cosine, 0.0  # counter-clockwise


def _warp(images: Tensor, coefficients: Coefficients, fill: Fill, smooth: bool) -> Tensor:
    """Coefficients (a, b, c, d, e, f) fetch the pixel for (x, y), from the centre, at (a x + b y + c, d x + e y + f).

    It is the nearest pixel or, where `smooth`, the bilinear mean of four; outside the image is `fill`.
    """
    n, channels, height, width = images.shape
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    a, b, c, d, e, f = (v[:, None, None] if isinstance(v, Tensor) else v for v in coefficients)
    column = (a * x + b * y + c).expand(n, height, width)
    row = (d * x + e * y + f).expand(n, height, width)
    colour = torch.tensor(fill, dtype=torch.uint8)[:, None, None].to(images.device, non_blocking=True)
    if smooth:
        grid = torch.stack([column * (2 / width), row * (2 / height)], 3)
        cover = torch.ones(n, 1, height, width, device=images.device)
        moved = F.grid_sample(torch.cat([images, cover], 1), grid, mode="bilinear", align_corners=False)
        cover = moved[:, channels:]
        return _to_uint8((moved[:, :channels] + (1 - cover) * colour).round_())
    column, row = ((v + (side - 1) / 2).round_().to(torch.int64) for v, side in ((column, width), (row, height)))
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    index = (row.clamp_(0, height - 1) * width).add_(column.clamp_(0, width - 1)).flatten(1)
    moved = images.flatten(2).gather(2, index[:, None].expand(-1, channels, -1)).view_as(images)
    inside = inside[:, None]
    return moved * inside + colour * ~inside


_PIXELS = {
    "invert": _invert,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "brightness": _brightness,
    "color": _color,
    "contrast": _contrast,
    "hue": _hue,
    "sharpness": _sharpness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "blur": _blur,
    "mirror": _mirror,
}
_MOVES = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
}
OPERATIONS = (*_PIXELS, *_MOVES)
NOTHING = len(OPERATIONS)


def apply(operation: str, images: Tensor, magnitude: Tensor, fill: Fill, smooth: bool) -> Tensor:
    """One operation on uint8 [n, 3, H, W], with a magnitude [n] for each image. Returns new images.

    Magnitudes: posterize, bits kept; solarize, threshold; solarize_add, amount up to 127; brightness, color, contrast,
    sharpness, factor (1 changes nothing); hue, share of a circle; blur, deviation in pixels; shear, slope; translate,
    share of the side; rotate, degrees counter-clockwise; none for the others.
    """
    if operation in _PIXELS:
        return _PIXELS[operation](images, magnitude)
    return _warp(images, _MOVES[operation](magnitude, *images.shape[2:]), fill, smooth)


def run(images: Tensor, plan: list[Step], fill: Fill = (128, 128, 128), smooth: bool = False) -> Tensor:
    """Carry out a plan's steps in order. The input stays as it is."""
    place = torch.arange(len(images))  # which image stands where; sorted back once, at the end
    # Large images go through a processor a few at a time: temporaries that fit its cache are several times faster.
    piece = max(1, CACHED // images[0].numel()) if images.device.type == "cpu" and len(images) else max(1, len(images))
    for operation, magnitude in plan:
        assert operation.device.type == magnitude.device.type == "cpu", "plans are made on the host"
        lengths = torch.bincount(operation, minlength=len(OPERATIONS)).tolist()
        order = operation[place].argsort(stable=True)
        place = place[order]
        images = images.index_select(0, order.to(images.device, non_blocking=True))
        strength = magnitude[place].to(images.device, non_blocking=True)
        start = 0
        for name, length in zip(OPERATIONS, lengths, strict=False):  # the rest of the batch has nothing done to it
            for first in range(start, start + length, piece):
                some = slice(first, min(first + piece, start + length))
                images[some] = apply(name, images[some], strength[some], fill, smooth)
            start += length
    return images.index_select(0, place.argsort().to(images.device, non_blocking=True))
