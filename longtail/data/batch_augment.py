"""Views: named, final augmentations of a whole uint8 batch, with parameters of its own for every image.

A view is a pure function of the images and of `draws` uniform numbers for each of them (see `randomness`): an augmented
image does not depend on the batch it is in, and no Python runs per image. The numbers stay on the host, which decides
from them what there is to do; the images may be on any device, and nothing waits for it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longtail.data.batch_crop import CROP_DRAWS, crop_boxes, cutout, resized_crop, shift_flip
from longtail.data.batch_operations import Step, run
from longtail.data.batch_policies import auto_augment, colour_jitter, rand_augment, sometimes
from longtail.errors import LongtailError

IMAGENET_GREY = (124, 116, 104)


@dataclass(frozen=True)
class View:
    """A random resized crop, for views that have one, then `augment(images, u)`.

    The two are apart because photographs of all sizes are cropped where they are decoded, from the same numbers.
    """

    augment: Callable[[Tensor, Tensor], Tensor]  # uint8 [B, 3, H, W], float32 [B, own_draws] -> uint8 [B, 3, H, W]
    own_draws: int
    crop_scale: tuple[float, float] | None = None  # share of the image's area

    @property
    def draws(self) -> int:
        return self.own_draws + (CROP_DRAWS if self.crop_scale else 0)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """images uint8 [B, 3, H, W], u float32 [B, draws] on the host -> uint8 [B, 3, H, W]."""
        assert images.dtype == torch.uint8, images.dtype
        assert u.shape == (len(images), self.draws), u.shape
        if self.crop_scale:
            size = images.shape[2], images.shape[3]
            images = resized_crop(images, crop_boxes(u[:, :CROP_DRAWS], *size, self.crop_scale), size)
        return self.after_crop(images, u)

    def after_crop(self, images: Tensor, u: Tensor) -> Tensor:
        """For images that have been cropped; u [B, draws] all the same."""
        return self.augment(images, u[:, self.draws - self.own_draws :])


def auto_augment_cutout(images: Tensor, u: Tensor) -> Tensor:
    """Shift, flip, AutoAugment, Cutout: PaCo's, BCL's and GML's view of CIFAR."""
    return cutout(run(shift_flip(images, u[:, :3]), auto_augment(u[:, 3:8])), u[:, 8:])


def _flip(u: Tensor) -> Step:
    return sometimes("mirror", u[:, 0], 0.5)


def _grey(u: Tensor) -> Step:
    return sometimes("color", u[:, 0], 0.2)  # saturation 0


def _blur(u: Tensor) -> Step:
    return sometimes("blur", u[:, 0], 0.5, 0.1 + 1.9 * u[:, 1])


def flipped(images: Tensor, u: Tensor) -> Tensor:
    return run(images, [_flip(u)])


def jitter_rand_augment(images: Tensor, u: Tensor) -> Tensor:
    """The class view of PaCo, BCL and GML on ImageNet-LT: flip, jitter of .4, RandAugment (n 2, m 10, mstd .5)."""
    flip, jitter, rand = u.tensor_split([1, 10], 1)
    plan = [_flip(flip), *colour_jitter(jitter, 0.4, 0.4, 0.4, 0, 1.0), *rand_augment(rand)]
    return run(images, plan, IMAGENET_GREY, smooth=True)


def stacked(images: Tensor, u: Tensor) -> Tensor:
    """The contrastive views of GML's ImageNet-LT script: as above, with grey (.2) and blur (.5) before RandAugment."""
    flip, jitter, grey, blur, rand = u.tensor_split([1, 10, 11, 13], 1)
    plan = [_flip(flip), *colour_jitter(jitter, 0.4, 0.4, 0.4, 0, 1.0), _grey(grey), _blur(blur), *rand_augment(rand)]
    return run(images, plan, IMAGENET_GREY, smooth=True)


def sim(hue: float, probability: float, blurred: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """SimCLR's family: flip, jitter of .4 (hue apart) with a probability, grey (.2), blur (.5, deviation .1 to 2)."""

    def augment(images: Tensor, u: Tensor) -> Tensor:
        flip, jitter, grey, blur = u.tensor_split([1, 10, 11], 1)
        plan = [_flip(flip), *colour_jitter(jitter, 0.4, 0.4, 0.4, hue, probability), _grey(grey)]
        return run(images, [*plan, _blur(blur)] if blurred else plan)

    return augment


VIEWS: dict[str, View] = {
    "none": View(lambda images, u: images, 0),
    "shift": View(shift_flip, 2),  # for images whose mirror image means something else: digits, text
    "weak": View(shift_flip, 3),
    "autoaugment": View(auto_augment_cutout, 10),
    # Photographs. "sim" is the authors' for ImageNet-LT; "simclr", its ancestor (MoCo v2), is PaCo's for CIFAR.
    "crop": View(flipped, 1, (0.08, 1.0)),
    "mild_crop": View(flipped, 1, (0.2, 1.0)),  # SupCon's for a classifier on CIFAR
    "randaugment": View(jitter_rand_augment, 18, (0.08, 1.0)),
    "sim": View(sim(hue=0.0, probability=1.0), 13, (0.08, 1.0)),
    "simclr": View(sim(hue=0.1, probability=0.8), 13, (0.2, 1.0)),
    "supcon": View(sim(hue=0.1, probability=0.8, blurred=False), 11, (0.2, 1.0)),  # SupCon's for CIFAR
    "randstack": View(stacked, 21, (0.08, 1.0)),
}


def named(names: Sequence[str]) -> tuple[View, ...]:
    for name in names:
        if name not in VIEWS:
            raise LongtailError(f"There is no augmentation {name!r}; choose from {', '.join(VIEWS)}.")
    return tuple(VIEWS[name] for name in names)


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
