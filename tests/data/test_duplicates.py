import numpy as np
from PIL import Image, ImageEnhance

from longtail.data.duplicates import digest, near_copies, perceptual_hash
from longtail.data.table import PixelStore


def photograph(seed: int, size: int = 64) -> Image.Image:
    """Random blobs, with the smooth large parts that photographs have."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)


def changed(image: Image.Image) -> Image.Image:
    """Scaled down and up, brighter, and with a border cut off: what happens to pictures on the web."""
    small = image.resize((40, 40), Image.Resampling.BILINEAR).resize(image.size)
    return ImageEnhance.Brightness(small).enhance(1.15).crop((1, 1, 63, 63)).resize(image.size)


def test_near_copies_are_found_and_others_are_not():
    pictures = [np.array(photograph(seed)) for seed in range(300)]
    pictures += [np.array(changed(photograph(seed))) for seed in range(0, 20)]
    pictures += [np.array(photograph(seed)) for seed in range(300, 320)] + [np.full((64, 64, 3), 7, np.uint8)]
    store = PixelStore(np.stack(pictures), "x")
    hashes = np.stack([perceptual_hash(picture) for picture in pictures])
    train, test = np.arange(300), np.arange(300, 341)
    found = {row: other for row, other, _ in near_copies(store, hashes, test, train)}
    assert found == {300 + i: i for i in range(20)}
    assert not list(near_copies(store, hashes, test, train[:0]))
    flat = np.array([340])
    assert not list(near_copies(store, hashes, flat, flat)), "flat images resemble nothing"


def test_digest_is_of_pixels_and_size():
    picture = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    assert digest(picture) == digest(picture.copy())
    assert digest(picture) != digest(picture.reshape(2, 8, 3))
    assert digest(picture) != digest(picture[::-1])
