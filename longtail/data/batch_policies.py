"""Plans of random operations, from uniform numbers [B, draws]: AutoAugment, RandAugment, colour jitter."""

import torch
from torch import Tensor

from longtail.data.batch_operations import NOTHING, OPERATIONS, Step

# (operation, probability, level from 0 to 9), twice a sub-policy; no level where the operation has no magnitude.
CIFAR_POLICY = (
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


def auto_augment_magnitude(operation: str, level: int, sign: int) -> float:
    """What level 0..9 means. Translations are shares of the side; a factor of 1 changes nothing."""
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


# The policy as tables, by sub-policy and step (and sign).
_OPERATION = torch.tensor([[OPERATIONS.index(name) for name, _, _ in pair] for pair in CIFAR_POLICY])
_PROBABILITY = torch.tensor([[probability for _, probability, _ in pair] for pair in CIFAR_POLICY])
_MAGNITUDE = torch.tensor(
    [[[auto_augment_magnitude(name, level, s) for s in (-1, 1)] for name, _, level in pair] for pair in CIFAR_POLICY]
)


def auto_augment(u: Tensor) -> list[Step]:
    """u [B, 5]: sub-policy, two chances, two signs.

    Cubuk et al., "AutoAugment: Learning Augmentation Strategies from Data" (CVPR 2019), the policy for CIFAR-10: one of
    25 sub-policies for an image; each of its two operations happens with its probability, at its magnitude, with a
    random sign if it has one. Pixels from outside are grey 128, `run`'s default, as in the implementation behind PaCo,
    BCL and GML (torchvision's default is 0). That one also shears bicubically, rotates in one direction only, and
    solarizes from 256 down where torchvision and this policy start at 255.
    """
    sub_policy = (u[:, 0] * len(CIFAR_POLICY)).to(torch.int64)
    plan = []
    for step in (0, 1):
        happens = u[:, 1 + step] < _PROBABILITY[sub_policy, step]
        sign = (u[:, 3 + step] < 0.5).to(torch.int64)
        operation = torch.where(happens, _OPERATION[sub_policy, step], NOTHING)
        plan.append((operation, _MAGNITUDE[sub_policy, step, sign]))
    return plan


# name: magnitude at level 0, at level 10, and whether it has a random sign or is a whole number
_RAND_AUGMENT = {
    "autocontrast": (0.0, 0.0, ""),
    "equalize": (0.0, 0.0, ""),
    "invert": (0.0, 0.0, ""),
    "rotate": (0.0, 30.0, "signed"),
    "posterize": (0.0, 4.0, "whole"),
    "solarize": (0.0, 256.0, "whole"),
    "solarize_add": (0.0, 110.0, "whole"),
    "color": (0.1, 1.9, ""),
    "contrast": (0.1, 1.9, ""),
    "brightness": (0.1, 1.9, ""),
    "sharpness": (0.1, 1.9, ""),
    "shear_x": (0.0, 0.3, "signed"),
    "shear_y": (0.0, 0.3, "signed"),
    "translate_x": (0.0, 0.45, "signed"),
    "translate_y": (0.0, 0.45, "signed"),
}
_RAND_OPERATION = torch.tensor([OPERATIONS.index(name) for name in _RAND_AUGMENT])
_RAND_LOW = torch.tensor([low for low, _, _ in _RAND_AUGMENT.values()])
_RAND_HIGH = torch.tensor([high for _, high, _ in _RAND_AUGMENT.values()])
_RAND_SIGNED = torch.tensor([kind == "signed" for _, _, kind in _RAND_AUGMENT.values()])
_RAND_WHOLE = torch.tensor([kind == "whole" for _, _, kind in _RAND_AUGMENT.values()])


def rand_augment(u: Tensor, level: float = 10, deviation: float = 0.5) -> list[Step]:
    """u [B, 4 n]: operation, chance, level, sign of each of n steps.

    timm's "rand-n<n>-m<level>-mstd<deviation>": n operations drawn with replacement, each applied with probability 1/2
    at a level from a normal distribution cut to 0..10. As there, and as PaCo, BCL and GML use it, posterize and
    solarize get *weaker* with the level, and near level 10 the enhancing operations only ever enhance. timm resamples
    bilinearly or bicubically at random, this bilinearly.
    """
    plan = []
    for choice, chance, spread, sign in (numbers.unbind(1) for numbers in u.split(4, 1)):
        which = (choice * len(_RAND_AUGMENT)).to(torch.int64)
        share = (level + deviation * 2**0.5 * torch.erfinv(2 * spread - 1)).clamp_(0, 10) / 10
        magnitude = torch.lerp(_RAND_LOW[which], _RAND_HIGH[which], share)
        magnitude = torch.where(_RAND_WHOLE[which], magnitude.floor(), magnitude)
        magnitude = torch.where(_RAND_SIGNED[which] & (sign < 0.5), -magnitude, magnitude)
        plan.append((torch.where(chance < 0.5, _RAND_OPERATION[which], NOTHING), magnitude))
    return plan


def colour_jitter(
    u: Tensor, brightness: float, contrast: float, saturation: float, hue: float, probability: float
) -> list[Step]:
    """u [B, 9]: chance, four numbers whose ranks are the image's own order of operations, four factors.

    torchvision's ColorJitter, and RandomApply around it: factors uniform in 1 +- amount, hue in +- `hue` of a circle.
    """
    names = torch.tensor([OPERATIONS.index(name) for name in ("brightness", "contrast", "color", "hue")])
    if hue == 0:
        names[3] = NOTHING
    amounts = torch.tensor([brightness, contrast, saturation, hue])
    factors = (2 * u[:, 5:] - 1) * amounts + torch.tensor([1.0, 1.0, 1.0, 0.0])  # [B, 4]
    happens = u[:, 0] < probability
    return [
        (torch.where(happens, names[which], NOTHING), factors.gather(1, which[:, None])[:, 0])
        for which in u[:, 1:5].argsort(1).unbind(1)
    ]


def sometimes(operation: str, chance: Tensor, probability: float, magnitude: Tensor | None = None) -> Step:
    """One operation for the images whose `chance` [B] is below `probability`."""
    which = torch.where(chance < probability, OPERATIONS.index(operation), NOTHING)
    return which, torch.zeros_like(chance) if magnitude is None else magnitude
