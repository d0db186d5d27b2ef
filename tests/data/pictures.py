"""Small pictures for the tests of this folder."""

import io

from PIL import Image


def encode(image: Image.Image, file_format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()
