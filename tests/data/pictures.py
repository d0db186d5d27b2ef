"""Small pictures for the tests of this folder."""

import io
from pathlib import Path

import numpy as np
from PIL import Image


def encode(image: Image.Image, file_format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def picture(seed: int, size: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def write(path: Path, seed: int) -> Path:
    """A PNG of random pixels, the same for the same seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(picture(seed), "PNG"))
    return path
