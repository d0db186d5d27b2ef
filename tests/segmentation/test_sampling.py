"""Queries follow the class mix of the labelled pixels, keys are even over the classes, features are interpolated."""

import pytest
import torch

from longtail.segmentation.networks import resize
from longtail.segmentation.sampling import draw, evenly_by_class, features_at, labelled


def drawn_classes(labels, weights, n=200_000):
    torch.manual_seed(0)
    return labels.gather(1, draw(weights, n))


def test_queries_are_uniform_over_labelled_pixels():
    labels = torch.tensor([[0] * 70 + [1] * 29 + [2] + [-100] * 900])
    classes = drawn_classes(labels, labelled(labels))
    assert (classes >= 0).all()
    shares = torch.bincount(classes[0], minlength=3) / 200_000
    assert torch.allclose(shares, torch.tensor([0.70, 0.29, 0.01]), atol=4e-3)


def test_keys_are_even_over_the_classes_of_each_image():
    labels = torch.full((2, 100_000), -100)
    labels[0, :90_000], labels[0, 90_000:90_010], labels[0, 99_999] = 0, 1, 3
    labels[1, 5], labels[1, 50_000:] = 2, 1
    classes = drawn_classes(labels, evenly_by_class(labels, 4), 30_000)
    assert (classes >= 0).all()
    for row, expected in zip(classes, ([1 / 3, 1 / 3, 0, 1 / 3], [0, 1 / 2, 1 / 2, 0]), strict=True):
        assert torch.allclose(torch.bincount(row, minlength=4) / 30_000, torch.tensor(expected), atol=0.02)
    pixels = draw(evenly_by_class(labels, 4), 30_000)[0]
    of_class_1 = pixels[(pixels >= 90_000) & (pixels < 90_010)]
    assert len(of_class_1.unique()) == 10  # all of a class's pixels are drawn


def test_an_image_without_labels():
    labels = torch.full((1, 50), -100)
    assert (draw(labelled(labels), 7) == 0).all()
    assert (draw(evenly_by_class(labels, 4), 7) == 0).all()


def test_the_last_labelled_pixel_can_be_drawn_and_none_beyond():
    weights = torch.tensor([[0, 0, 1, 0, 0]])
    assert (draw(weights, 1000) == 2).all()


@pytest.mark.parametrize("size", [(7, 11), (32, 48), (29, 45)])
def test_features_are_those_of_bilinear_resizing(size):
    maps = torch.randn(3, 5, 4, 6, dtype=torch.float64, requires_grad=True)
    pixels = torch.arange(size[0] * size[1]).expand(3, -1)
    expected = resize(maps, size).flatten(2).transpose(1, 2)
    assert torch.allclose(features_at(maps, pixels, size), expected, atol=1e-12)


def test_places_are_exact_under_bfloat16():
    maps = torch.arange(64.0).expand(1, 1, 8, 64).bfloat16()
    pixels = torch.arange(512)[None] + 512 * 30
    expected = resize(maps.float(), (64, 512)).flatten(2).transpose(1, 2)[:, pixels[0]]
    assert torch.allclose(features_at(maps, pixels, (64, 512)), expected, atol=1e-4)
