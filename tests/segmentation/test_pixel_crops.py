"""Crops move image and mask together, and depend on their own numbers alone."""

import numpy as np
import pytest
import torch
from scenes import COLOURS, HEIGHT, WIDTH, scene

from longtail.data.randomness import keys, uniforms
from longtail.segmentation.augment import _FLIP, DRAWS, Crops, Whole, distort_colours, scaled_size
from longtail.segmentation.masks import OUTSIDE, VOID


def numbers(position: int) -> np.ndarray:
    return uniforms(keys(0, 0, torch.tensor([position])), DRAWS)[0].numpy()


def flat_scene(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of exactly their class's colour, so that an image says what its mask should be."""
    _, mask = scene(seed)
    mask[mask == VOID] = 0
    return np.array(COLOURS, np.uint8)[mask], mask


@pytest.mark.parametrize("position", range(20))
def test_image_and_mask_stay_on_each_other(position):
    image, mask = Crops((40, 40), (0.5, 2.0), None).cut(*flat_scene(position), numbers(position))
    assert image.shape == (40, 40, 3)
    assert mask.shape == (40, 40)
    inside = mask != OUTSIDE
    assert (image[~inside] == 0).all()
    distance = ((image[:, :, None].astype(int) - np.array(COLOURS)) ** 2).sum(3).argmin(2)
    assert (distance == mask)[inside].mean() > 0.9  # but for pixels that are blended at an edge


def test_scale_one_and_the_whole_size_change_nothing():
    image, mask = scene(4)
    u = numbers(1)
    u[_FLIP] = 0.9
    cut = Crops((HEIGHT, WIDTH), (1.0, 1.0), None).cut(image, mask, u)
    assert np.array_equal(cut[0], image)
    assert np.array_equal(cut[1], mask)
    u[_FLIP] = 0.1
    flipped = Crops((HEIGHT, WIDTH), (1.0, 1.0), None).cut(image, mask, u)
    assert np.array_equal(flipped[0], image[:, ::-1])
    assert np.array_equal(flipped[1], mask[:, ::-1])


def test_small_images_are_filled_up_outside():
    _, mask = Crops((64, 96), (0.5, 0.5), None).cut(*flat_scene(0), numbers(0))
    assert (mask != OUTSIDE).sum() == (HEIGHT // 2) * (WIDTH // 2)
    assert (mask[: HEIGHT // 2, : WIDTH // 2] != OUTSIDE).all()


def test_crops_of_one_class_are_avoided():
    crops, lone = Crops((16, 16), (1.0, 1.0), None), 0
    for position in range(100):
        _, mask = crops.cut(*flat_scene(position % 10), numbers(position))
        counts = np.bincount(mask.ravel(), minlength=256)
        lone += counts.max() >= 0.75 * counts.sum()
    assert lone < 10  # a random crop of this size is of mostly one class in more than half of the cases


def test_scaled_sizes():
    assert scaled_size(180, 240, None, 0.5) == (90, 120)
    assert scaled_size(600, 800, 512) == (512, 683)
    assert scaled_size(600, 6000, 512) == (205, 2048)  # the long side at most four times the short one's target
    whole = Whole(24)
    assert whole.scale(np.zeros((HEIGHT, WIDTH, 3), np.uint8)).shape == (24, 32, 3)


def test_colours_stay_put_half_of_the_time_and_in_bounds():
    images = torch.randint(0, 256, (64, 3, 8, 8), dtype=torch.uint8)
    u = uniforms(keys(1, 0, torch.arange(64)), 9)
    changed = distort_colours(images, u)
    assert changed.dtype == torch.uint8
    off = u.clone()
    off[:, [0, 2, 5, 7]] = 0.9  # every draw that switches something on
    assert torch.equal(distort_colours(images, off), images)
    same = (changed == images).flatten(1).all(1)
    assert 0 < same.sum() < 16  # one in sixteen has nothing done to it
    brighter = off.clone()
    brighter[:, 0], brighter[:, 1] = 0.1, 1.0
    expected = (images.int() + 32).clamp(max=255)
    assert torch.equal(distort_colours(images, brighter).int(), expected)


def test_saturation_to_one_and_a_half_is_hsv():
    import colorsys

    pixel = torch.tensor([200, 150, 100], dtype=torch.uint8).view(1, 3, 1, 1)
    u = torch.full((1, 9), 0.9)
    u[:, 5], u[:, 6] = 0.1, 1.0
    h, s, v = colorsys.rgb_to_hsv(200 / 255, 150 / 255, 100 / 255)
    expected = [round(255 * c) for c in colorsys.hsv_to_rgb(h, 1.5 * s, v)]
    assert distort_colours(pixel, u).flatten().tolist() == expected


def test_colours_do_not_depend_on_the_batch():
    images = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8)
    u = uniforms(keys(1, 0, torch.arange(10)), 9)
    one_by_one = torch.cat([distort_colours(images[i : i + 1], u[i : i + 1]) for i in range(10)])
    assert torch.equal(distort_colours(images, u), one_by_one)
