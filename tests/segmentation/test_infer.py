"""Whole images and windows."""

import pytest
import torch
from torch import nn

from longtail.recipe import Pixels
from longtail.segmentation.infer import places, score_pixels, sliding


def pointwise(images):
    """Scores that depend on their own pixel alone: where windows lie cannot matter."""
    return torch.stack([images[:, 0], images[:, 1] * 2, -images[:, 2]], 1)


@pytest.mark.parametrize("size", [(40, 60), (16, 20), (10, 100), (17, 21)])
def test_windows_of_a_pointwise_network_are_the_whole(size):
    images = torch.randn(2, 3, *size)
    assert torch.allclose(sliding(pointwise, images, (16, 20)), pointwise(images), atol=1e-6)


@pytest.mark.parametrize(("side", "window"), [(100, 16), (16, 16), (10, 16), (17, 16), (33, 16)])
def test_windows_cover_a_side(side, window):
    starts = places(side, window)
    covered = {x for start in starts for x in range(start, min(start + window, side))}
    assert covered == set(range(side))
    assert starts == sorted(set(starts))
    assert all(start + window <= max(side, window) for start in starts)


def test_a_window_is_scored_as_an_image_of_its_own():
    conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
    images, pixels = torch.randn(1, 3, 32, 48), Pixels(crop=(32, 48), inference="slide")
    whole = score_pixels(conv, images, (32, 48), Pixels())
    assert torch.allclose(score_pixels(conv, images, (32, 48), pixels), whole)  # one window
    smaller = score_pixels(conv, images, (32, 48), Pixels(crop=(16, 16), inference="slide"))
    assert smaller.shape == whole.shape
    assert not torch.allclose(smaller, whole)


def test_answers_have_the_size_that_was_asked():
    scores = score_pixels(lambda x: pointwise(x)[:, :, ::8, ::8], torch.randn(1, 3, 40, 56), (90, 120), Pixels())
    assert scores.shape == (1, 3, 90, 120)
    assert scores.dtype == torch.float32
