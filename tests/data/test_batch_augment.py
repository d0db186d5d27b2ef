"""Batched augmentation against torchvision and timm, one image at a time, and against itself in batches of one."""

import random

import numpy as np
import pytest
import torch
from timm.data import auto_augment as timm_augment
from torchvision import transforms
from torchvision.transforms.v2 import functional as tv

from longtail.data import batch_policies
from longtail.data.batch_augment import VIEWS, normalise
from longtail.data.batch_crop import CROP_DRAWS, crop_boxes, cutout, resized_crop, shift_flip
from longtail.data.batch_operations import BLUR_RADIUS, NOTHING, OPERATIONS, apply, run
from longtail.data.randomness import keys, uniforms

GREY = (128, 128, 128)
# torchvision fuses product and sum where the processor can, so a value that is a whole number in exact arithmetic may
# be truncated to the one below on either side; kernels and bilinear means are summed in another order. These differ by
# one grey level in a few pixels. Everything else is equal.
ROUNDS = {"color", "contrast", "sharpness", "hue", "blur"}


def pictures(n: int = 48, height: int = 32, width: int = 32) -> torch.Tensor:
    """Smooth gradients with noise, a flat image, a two-valued one: histograms with and without gaps."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width] / 32
    waves = [
        127 + 100 * np.sin(rng.normal(size=(3, 1, 1)) * 4 * x + rng.normal(size=(3, 1, 1)) * 4 * y) for _ in range(n)
    ]
    noise = rng.normal(size=(n, 3, height, width)) * rng.uniform(0, 30, size=(n, 1, 1, 1))
    images = np.clip(np.stack(waves) + noise, 0, 255)
    images[0], images[1] = 77, np.where(images[1] > 128, 200, 10)
    return torch.from_numpy(images.astype(np.uint8))


def numbers(n: int, draws: int, epoch: int = 0) -> torch.Tensor:
    return uniforms(keys(0, epoch, torch.arange(n)), draws)


def magnitudes(operation: str, n: int) -> list[float]:
    """n sensible values. Of the shears, none that puts a pixel exactly half way between two others."""
    unit = [(i + 0.5) / n for i in range(n)]
    match operation:
        case "posterize":
            return [float(i % 9) for i in range(n)]
        case "solarize":
            return [float(i * 256 // (n - 1)) for i in range(n)]
        case "solarize_add":
            return [float(int(110 * v)) for v in unit]
        case "brightness" | "color" | "contrast" | "sharpness":
            return [round(i * 2 / (n - 1), 1) for i in range(n)]
        case "hue":
            return [v - 0.5 for v in unit]
        case "blur":
            return [0.1 + 1.9 * v for v in unit]
        case "rotate":
            return [60 * v - 30 for v in unit]
        case _:
            return [0.6 * v - 0.3 + 0.001234 for v in unit]


def by_torchvision(operation: str, image: torch.Tensor, magnitude: float, fill=GREY, smooth=False) -> torch.Tensor:
    height, width = image.shape[1:]
    interpolation = transforms.InterpolationMode.BILINEAR if smooth else transforms.InterpolationMode.NEAREST
    moves: dict = {"fill": [float(v) for v in fill] if any(fill) else None, "interpolation": interpolation}

    def affine(translate=(0, 0), shear=(0.0, 0.0), center=None):
        return tv.affine(image, 0.0, list(translate), 1.0, list(shear), center=center, **moves)

    degrees = float(np.degrees(np.arctan(magnitude)))
    match operation:
        case "invert" | "autocontrast" | "equalize":
            return getattr(tv, operation)(image)
        case "posterize":
            return tv.posterize(image, int(magnitude))
        case "solarize":
            return image if magnitude > 255 else tv.solarize(image, magnitude)
        case "solarize_add":
            return torch.where(image < 128, image + int(magnitude), image)
        case "brightness" | "contrast" | "sharpness" | "hue":
            return getattr(tv, f"adjust_{operation}")(image, magnitude)
        case "color":
            return tv.adjust_saturation(image, magnitude)
        case "blur":
            return tv.gaussian_blur(image, [2 * BLUR_RADIUS + 1] * 2, [magnitude])
        case "mirror":
            return tv.horizontal_flip(image)
        case "shear_x":
            return affine(shear=(degrees, 0.0), center=[0, 0])
        case "shear_y":
            return affine(shear=(0.0, degrees), center=[0, 0])
        case "translate_x":
            return affine(translate=(int(magnitude * width), 0))
        case "translate_y":
            return affine(translate=(0, int(magnitude * height)))
        case _:
            return tv.rotate(image, magnitude, **moves)


def assert_close(got: torch.Tensor, want: torch.Tensor, share: float) -> None:
    """Equal but for one grey level in at most `share` of the pixels."""
    difference = (got.int() - want.int()).abs()
    assert got.dtype == want.dtype == torch.uint8
    assert difference.max() <= 1
    assert (difference > 0).float().mean() <= share


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("size", "fill", "smooth"), [((32, 32), GREY, False), ((20, 36), (0, 0, 0), True)])
def test_operation_is_torchvisions(operation, size, fill, smooth):
    images, values = pictures(61, *size), magnitudes(operation, 61)
    got = apply(operation, images, torch.tensor(values), fill, smooth)
    want = [by_torchvision(operation, x, value, fill, smooth) for x, value in zip(images, values, strict=True)]
    moves = operation.startswith(("shear", "translate", "rotate"))
    assert_close(got, torch.stack(want), 0.05 if operation in ROUNDS or (moves and smooth) else 0)


@pytest.mark.parametrize("smooth", [False, True])
def test_fill_covers_what_the_image_does_not(smooth):
    """At the border torchvision lets a filling colour fade twice, so the comparison above fills with black."""
    fill = (10, 20, 30)
    images = torch.tensor(fill, dtype=torch.uint8)[:, None, None].expand(1, 3, 32, 32)
    assert torch.equal(apply("rotate", images, torch.tensor([17.0]), fill, smooth), images)


def test_run_follows_its_plan():
    images = pictures(40)
    generator = torch.Generator().manual_seed(0)
    plan = [
        (torch.randint(len(OPERATIONS) + 1, (40,), generator=generator), torch.rand(40, generator=generator))
        for _ in range(3)
    ]
    want = list(images)
    for operation, magnitude in plan:
        for i, (code, value) in enumerate(zip(operation.tolist(), magnitude, strict=True)):
            if code != NOTHING:
                want[i] = apply(OPERATIONS[code], want[i][None], value[None], GREY, False)[0]
    assert torch.equal(run(images, plan), torch.stack(want))


def test_auto_augment_policy_is_torchvisions():
    peer = transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)
    space = peer._augmentation_space(10, (32, 32))
    their_name = {name.lower(): name for name in space}
    for pair, theirs in zip(batch_policies.CIFAR_POLICY, peer.policies, strict=True):
        for (operation, chance, level), (name, their_chance, their_level) in zip(pair, theirs, strict=True):
            assert (their_name[operation.replace("_", "")], chance) == (name, their_chance)
            values, signed = space[name]
            if their_level is not None:
                up, down = (batch_policies.auto_augment_magnitude(operation, level, sign) for sign in (1, -1))
                side = 32 if "translate" in operation else 1
                neutral = 1 if operation in ("brightness", "color", "contrast", "sharpness") else 0
                assert (up - neutral) * side == pytest.approx(float(values[their_level]), abs=1e-4)
                assert (down - neutral) == pytest.approx((neutral - up) if signed else up)


def test_auto_augment_reads_its_numbers():
    """Sub-policy 21 translates twice: chances, signs and order are read as documented."""
    u = torch.tensor([[21.5 / 25, 0.0, 0.0, 0.0, 0.0]] * 4)
    u[1, 3], u[2, 2], u[3, 1:3] = 0.9, 0.99, 0.99
    images = pictures(4)
    got = run(images, batch_policies.auto_augment(u), fill=(7, 7, 7))

    def down(image, pixels):
        return by_torchvision("translate_y", image, pixels / 32, fill=(7, 7, 7))

    assert torch.equal(got[0], down(down(images[0], 14), 14))
    assert torch.equal(got[1], down(down(images[1], -14), 14))
    assert torch.equal(got[2], down(images[2], 14))
    assert torch.equal(got[3], images[3])


def shares(plan) -> torch.Tensor:
    return torch.stack([torch.bincount(operation, minlength=NOTHING + 1) / len(operation) for operation, _ in plan])


def test_frequencies():
    n = 40_000
    policy = torch.zeros(2, NOTHING + 1)
    for pair in batch_policies.CIFAR_POLICY:
        for step, (operation, chance, _) in enumerate(pair):
            policy[step, OPERATIONS.index(operation)] += chance / 25
    policy[:, NOTHING] = 1 - policy.sum(1)
    torch.testing.assert_close(shares(batch_policies.auto_augment(numbers(n, 5))), policy, rtol=0, atol=0.011)

    rand = shares(batch_policies.rand_augment(numbers(n, 12)))
    assert rand.shape == (3, NOTHING + 1)
    torch.testing.assert_close(rand[:, NOTHING], torch.full((3,), 0.5), rtol=0, atol=0.012)
    visited = rand[:, :NOTHING][:, rand[0, :NOTHING] > 0]
    torch.testing.assert_close(visited, torch.full((3, 15), 1 / 30), rtol=0, atol=0.006)


def test_rand_augment_is_timms():
    """The same operations, and the same arguments for the same level; then the same distribution of levels."""
    name = {"TranslateX": "TranslateXRel", "TranslateY": "TranslateYRel", "Autocontrast": "AutoContrast"}
    u = torch.tensor([[0.0, 0.0, 0.5, 0.9]] * 15)
    u[:, 0] = (torch.arange(15) + 0.5) / 15
    for level in (0.0, 3.3, 8.7, 9.99, 10.0):
        ((operation, magnitude),) = batch_policies.rand_augment(u, level)
        for code, value in zip(operation.tolist(), magnitude.tolist(), strict=True):
            theirs = OPERATIONS[code].title().replace("_", "")
            theirs = name.get(theirs, theirs)
            assert theirs in timm_augment._RAND_TRANSFORMS
            to_argument = timm_augment.LEVEL_TO_ARG[theirs]
            if to_argument is not None:
                random.seed(1)  # its signs; ours is told to be positive
                assert abs(to_argument(level, {})[0]) == pytest.approx(value, abs=1e-5)
    u = numbers(20_000, 4)
    u[:, :2] = torch.tensor([3.5 / 15, 0.0])  # rotate, always
    ((_, degrees),) = batch_policies.rand_augment(u, 9.8, 0.5)
    rng = np.random.default_rng(0)
    want = np.clip(rng.normal(9.8, 0.5, 20_000), 0, 10) * 3
    quantiles = [0.05, 0.25, 0.5, 0.75]
    np.testing.assert_allclose(np.quantile(degrees.abs().numpy(), quantiles), np.quantile(want, quantiles), atol=0.05)
    assert (degrees < 0).float().mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("hue", [0.0, 0.1])
def test_colour_jitter_is_torchvisions(hue):
    """Given the same factors and the same order, the same image; orders and factors have the right distribution."""
    images, u = pictures(60), numbers(60, 9)
    got = run(images, batch_policies.colour_jitter(u, 0.4, 0.3, 0.2, hue, 0.8))
    for image, result, row in zip(images, got, u, strict=True):
        brightness, contrast, color, turn = (2 * row[5:] - 1).tolist()
        factor = {0: 1 + 0.4 * brightness, 1: 1 + 0.3 * contrast, 2: 1 + 0.2 * color, 3: hue * turn}
        for which in row[1:5].argsort().tolist() if row[0] < 0.8 else []:
            image = by_torchvision(("brightness", "contrast", "color", "hue")[which], image, factor[which])
        difference = (result.int() - image.int()).abs()
        assert difference.max() <= (4 if hue else 2)  # levels lost in one step may grow in the next
        assert difference.float().mean() < 0.1
    orders = numbers(24_000, 9)[:, 1:5].argsort(1)
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 1000).abs() < 160).all()


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (16, 24)])
def test_shift_flip_is_pad_crop_and_flip(size):
    images, u = pictures(40, *size), numbers(40, 3)
    got = shift_flip(images, u)
    pads = [side // 8 for side in size]
    for image, result, (down, right, flip) in zip(images, got, u.tolist(), strict=True):
        top, left = (int(v * (2 * pad + 1)) for v, pad in zip((down, right), pads, strict=True))
        want = tv.crop(tv.pad(image, [pads[1], pads[0]]), top, left, *size)
        assert torch.equal(result, tv.horizontal_flip(want) if flip < 0.5 else want)
    assert torch.equal(shift_flip(images, u[:, :2])[u[:, 2] >= 0.5], got[u[:, 2] >= 0.5])


def test_shifts_are_uniform():
    marks = torch.zeros(20_000, 3, 32, 32, dtype=torch.uint8)
    marks[:, :, 16, 16] = 255
    moved = VIEWS["shift"](marks, numbers(20_000, 2))[:, 0].flatten(1).argmax(1)
    table = torch.bincount(moved, minlength=1024).view(32, 32)[12:21, 12:21]
    assert table.sum() == 20_000
    assert ((table - 20_000 / 81).abs() < 5 * (20_000 / 81) ** 0.5).all()


def test_cutout_hole():
    white = torch.full((3, 3, 32, 32), 255, dtype=torch.uint8)
    holes = cutout(white, torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.999, 0.25]])) == 0
    assert holes.sum((1, 2, 3)).tolist() == [3 * 8 * 8, 3 * 16 * 16, 3 * 9 * 16]
    assert holes[1, :, 8:24, 8:24].all()
    assert holes[2, :, 23:, :16].all()


@pytest.mark.parametrize(("height", "width"), [(32, 32), (375, 500), (600, 90)])
def test_crop_boxes_have_torchvisions_distribution(height, width):
    n = 4000
    ours = crop_boxes(numbers(n, CROP_DRAWS), height, width, (0.08, 1.0)).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        image = torch.zeros(1, height, width)
        sample = transforms.RandomResizedCrop.get_params
        theirs = torch.tensor([sample(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(n)]).double()
    for boxes in (ours, theirs):
        top, left, h, w = boxes.unbind(1)
        assert ((top >= 0) & (left >= 0) & (h > 0) & (w > 0) & (top + h <= height) & (left + w <= width)).all()
    error = 5 * theirs.std(0) * (2 / n) ** 0.5 + 1e-9
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= error).all()
    assert ((ours.std(0) - theirs.std(0)).abs() <= error).all()


@pytest.mark.parametrize("size", [(32, 32), (11, 70)])
def test_resized_crop_is_torchvisions(size):
    images = pictures(40, 40, 32)
    boxes = crop_boxes(numbers(40, CROP_DRAWS), 40, 32, (0.08, 1.0))
    got = resized_crop(images, boxes, size)
    want = [
        tv.resized_crop(
            image.float(), top, left, h, w, list(size)
        )  # on bytes, torchvision rounds weights and half-way sums
        for image, (top, left, h, w) in zip(images, boxes.tolist(), strict=True)
    ]
    assert_close(got, torch.stack(want).round().to(torch.uint8), 0.001)


@pytest.mark.parametrize("name", sorted(VIEWS))
@pytest.mark.parametrize("size", [32, 224])
def test_image_does_not_depend_on_its_batch(name, size):
    view, n = VIEWS[name], 67 if size == 32 else 5
    images, u = pictures(n, size, size), numbers(n, view.draws)
    original = images.clone()
    together = view(images, u)
    assert torch.equal(images, original)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    assert torch.equal(view(images[order], u[order]), together[order])
    alone = torch.cat([view(images[i : i + 1], u[i : i + 1]) for i in range(n)])
    assert torch.equal(alone, together)
    assert view(images[:0], u[:0]).shape == (0, 3, size, size)


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_nothing_waits_for_a_device(name):
    """A tensor without values cannot be asked for one, so what runs on it never synchronises a device."""
    view = VIEWS[name]
    images = torch.empty(40, 3, 32, 32, dtype=torch.uint8, device="meta")
    augmented = normalise(view(images, numbers(40, view.draws)), (0.5,) * 3, (0.2,) * 3)
    assert (augmented.device.type, augmented.shape) == ("meta", images.shape)


def look(images: torch.Tensor) -> torch.Tensor:
    """[n, 12]: mean, deviation, horizontal and vertical edges of each channel."""
    x = images.float()
    edges = [x.diff(dim=dim).abs().mean((2, 3)) for dim in (3, 2)]
    return torch.cat([x.mean((2, 3)), x.std((2, 3)), *edges], 1)


@pytest.mark.parametrize(("name", "hue", "chance", "scale"), [("sim", 0.0, 1.0, 0.08), ("simclr", 0.1, 0.8, 0.2)])
def test_sim_has_torchvisions_distribution(name, hue, chance, scale):
    n = 1200
    images = pictures(30).repeat(n // 30, 1, 1, 1)
    pipeline = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, scale=(scale, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, hue)], p=chance),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([transforms.GaussianBlur(2 * BLUR_RADIUS + 1, (0.1, 2.0))], p=0.5),
            transforms.RandomHorizontalFlip(),
        ]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = look(torch.stack([pipeline(image) for image in images]))
    ours = look(VIEWS[name](images, numbers(n, VIEWS[name].draws)))
    error = 4.5 * theirs.std(0) * (2 / n) ** 0.5
    assert ((ours.mean(0) - theirs.mean(0)).abs() <= error).all()
    assert ((ours.std(0) / theirs.std(0) - 1).abs() < 0.15).all()


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
