"""Batched augmentation against torchvision, one image at a time, and against itself in batches of one."""

import numpy as np
import pytest
import torch
from torchvision.transforms import AutoAugment, AutoAugmentPolicy
from torchvision.transforms.v2 import functional as tv

from longtail.data import batch_autoaugment
from longtail.data.batch_augment import VIEWS, cutout, normalise, shift_flip
from longtail.data.randomness import keys, uniforms

# torchvision fuses product and sum where the processor can, so a value that is a whole number in exact arithmetic may
# be truncated to the one below on either side. Everything else is equal.
ROUNDS = {"color", "contrast", "sharpness"}
# At levels 2 and 6 a shear lands some pixels exactly half way between two others, and either is right.
LEVELS = [0, 1, 3, 4, 5, 7, 8, 9]


def pictures(n: int = 48, height: int = 32, width: int = 32) -> torch.Tensor:
    """Smooth gradients with noise, a flat image, a two-valued one: histograms with and without gaps."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width] / 32
    waves = [
        127 + 100 * np.sin(rng.normal(size=(3, 1, 1)) * 4 * x + rng.normal(size=(3, 1, 1)) * 4 * y) for _ in range(n)
    ]
    images = np.clip(
        np.stack(waves) + rng.normal(size=(n, 3, height, width)) * rng.uniform(0, 30, size=(n, 1, 1, 1)), 0, 255
    )
    images[0], images[1] = 77, np.where(images[1] > 128, 200, 10)
    return torch.from_numpy(images.astype(np.uint8))


def numbers(view: str, n: int, epoch: int = 0) -> torch.Tensor:
    return uniforms(keys(0, epoch, torch.arange(n)), VIEWS[view].draws)


def by_torchvision(operation: str, image: torch.Tensor, magnitude: float, fill: int) -> torch.Tensor:
    height, width = image.shape[1:]

    def affine(translate=(0, 0), shear=(0.0, 0.0), center=None):
        return tv.affine(image, 0.0, list(translate), 1.0, list(shear), fill=[float(fill)] * 3, center=center)

    match operation:
        case "invert" | "autocontrast" | "equalize":
            return getattr(tv, operation)(image)
        case "posterize":
            return tv.posterize(image, int(magnitude))
        case "solarize":
            return tv.solarize(image, magnitude)
        case "brightness" | "contrast" | "sharpness":
            return getattr(tv, f"adjust_{operation}")(image, magnitude)
        case "color":
            return tv.adjust_saturation(image, magnitude)
        case "shear_y":
            return affine(shear=(0.0, np.degrees(np.arctan(magnitude))), center=[0, 0])
        case "translate_x":
            return affine(translate=(int(magnitude * width), 0))
        case "translate_y":
            return affine(translate=(0, int(magnitude * height)))
        case _:
            return tv.rotate(image, magnitude, fill=[float(fill)] * 3)


@pytest.mark.parametrize("operation", batch_autoaugment.OPERATIONS)
@pytest.mark.parametrize(("size", "fill"), [((32, 32), 128), ((20, 36), 0)])
def test_operation_is_torchvisions(operation, size, fill):
    images = pictures(60, *size)
    magnitudes = [batch_autoaugment.magnitude(operation, LEVELS[i % 8], (-1) ** (i // 8)) for i in range(60)]
    got = batch_autoaugment.apply(operation, images, torch.tensor(magnitudes), fill)
    want = torch.stack([by_torchvision(operation, x, m, fill) for x, m in zip(images, magnitudes, strict=True)])
    assert got.dtype == torch.uint8
    difference = (got.int() - want.int()).abs()
    if operation in ROUNDS:
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.05
    else:
        assert torch.equal(got, want)


def test_policy_is_torchvisions():
    peer = AutoAugment(AutoAugmentPolicy.CIFAR10)
    name = {"color": "Color", "autocontrast": "AutoContrast", "shear_y": "ShearY"}
    name |= {"translate_x": "TranslateX", "translate_y": "TranslateY"}
    ours = [
        tuple((name.get(operation, operation.capitalize()), chance) for operation, chance, _ in pair)
        for pair in batch_autoaugment._POLICY
    ]
    assert ours == [tuple((operation, chance) for operation, chance, _ in pair) for pair in peer.policies]
    space = peer._augmentation_space(10, (32, 32))
    for pair, theirs in zip(batch_autoaugment._POLICY, peer.policies, strict=True):
        for (operation, _, level), (their_name, _, their_level) in zip(pair, theirs, strict=True):
            if their_level is None:
                continue
            value = batch_autoaugment.magnitude(operation, level, 1)
            value = value * 32 if "translate" in operation else value
            neutral = 1 if operation in ("brightness", "color", "contrast", "sharpness") else 0
            assert value - neutral == pytest.approx(float(space[their_name][0][their_level]), abs=1e-4)


def test_auto_augment_follows_its_numbers():
    """Sub-policy 21 translates twice, sub-policy 2 sharpens twice: chances, signs and order are read as documented."""
    images = pictures(4)
    u = torch.tensor([[21.5 / 25, 0.0, 0.0, 0.0, 0.0]] * 4)
    u[1, 3], u[2, 2], u[3, 1:3] = 0.9, 0.99, 0.99
    got = batch_autoaugment.auto_augment(images, u, fill=7)

    def down(image, pixels):
        return tv.affine(image, 0.0, [0, pixels], 1.0, [0.0, 0.0], fill=[7.0] * 3)

    assert torch.equal(got[0], down(down(images[0], 14), 14))
    assert torch.equal(got[1], down(down(images[1], -14), 14))
    assert torch.equal(got[2], down(images[2], 14))
    assert torch.equal(got[3], images[3])


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (16, 24)])
def test_shift_flip_is_pad_crop_and_flip(size):
    images = pictures(40, *size)
    u = uniforms(keys(1, 0, torch.arange(40)), 3)
    got = shift_flip(images, u)
    pads = [side // 8 for side in size]
    for image, result, (down, right, flip) in zip(images, got, u.tolist(), strict=True):
        top, left = (int(v * (2 * pad + 1)) for v, pad in zip((down, right), pads, strict=True))
        want = tv.crop(tv.pad(image, [pads[1], pads[0]]), top, left, *size)
        assert torch.equal(result, tv.horizontal_flip(want) if flip < 0.5 else want)


def test_shifts_are_uniform():
    marks = torch.zeros(20_000, 3, 32, 32, dtype=torch.uint8)
    marks[:, :, 16, 16] = 255
    moved = VIEWS["shift"](marks, uniforms(keys(0, 0, torch.arange(20_000)), 2))[:, 0].flatten(1).argmax(1)
    table = torch.bincount(moved, minlength=1024).view(32, 32)[12:21, 12:21]
    assert table.sum() == 20_000
    assert ((table - 20_000 / 81).abs() < 5 * (20_000 / 81) ** 0.5).all()


def test_cutout_hole():
    white = torch.full((3, 3, 32, 32), 255, dtype=torch.uint8)
    holes = cutout(white, torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.999, 0.25]])) == 0
    assert holes.sum((1, 2, 3)).tolist() == [3 * 8 * 8, 3 * 16 * 16, 3 * 9 * 16]
    assert holes[1, :, 8:24, 8:24].all()
    assert holes[2, :, 23:, :16].all()


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_image_does_not_depend_on_its_batch(name):
    view, images = VIEWS[name], pictures(67)
    original = images.clone()
    u = numbers(name, 67)
    together = view(images, u)
    assert torch.equal(images, original)
    order = torch.randperm(67, generator=torch.Generator().manual_seed(0))
    assert torch.equal(view(images[order], u[order]), together[order])
    alone = torch.cat([view(images[i : i + 1], u[i : i + 1]) for i in range(67)])
    assert torch.equal(alone, together)
    assert view(images[:0], u[:0]).shape[0] == 0


def test_autoaugment_frequencies():
    """Share of images that each operation visits: the policy's own average, within five standard errors."""
    n, visits = 20_000, dict.fromkeys(batch_autoaugment.OPERATIONS, 0)
    real = batch_autoaugment.apply
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            batch_autoaugment,
            "apply",
            lambda name, images, *rest: (visits.update({name: visits[name] + len(images)}), real(name, images, *rest))[
                1
            ],
        )
        batch_autoaugment.auto_augment(
            torch.zeros(n, 3, 4, 4, dtype=torch.uint8), uniforms(keys(0, 0, torch.arange(n)), 5)
        )
    for name, count in visits.items():
        share = sum(p for pair in batch_autoaugment._POLICY for operation, p, _ in pair if operation == name) / 25
        assert count / n == pytest.approx(share, abs=5 * (share / n) ** 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_normalise(dtype, channels_last):
    images, mean, std = pictures(5), (0.49, 0.48, 0.44), (0.2, 0.19, 0.21)
    got = normalise(images, mean, std, dtype, channels_last)
    want = tv.normalize(tv.to_dtype(images, torch.float32, scale=True), list(mean), list(std))
    assert got.dtype == dtype
    assert got.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    torch.testing.assert_close(got, want.to(dtype), rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)
    assert torch.equal(normalise(images[3:4], mean, std, dtype, channels_last), got[3:4])
