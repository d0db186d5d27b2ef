"""One image file's bytes -> uint8 [H, W, 3], whatever it was stored as.

What a person sees in a viewer is what the network gets: EXIF rotation is applied, transparency is laid over white,
16-bit grey keeps its high byte, CMYK and palettes become RGB, an animation gives its first frame. What cannot be shown
without guessing (floating point, 32-bit integers beyond 16 bits) and what cannot be read raises `BadImage` with the
file's name.
"""

import io
from functools import cache

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from longtail.errors import LongtailError, NotHere

MAX_PIXELS = 80_000_000  # 240 MB once decoded; refused from the header, before anything is decompressed


# Not all that Pillow can open: PostScript, for one, would be run by an interpreter.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "AVIF")


class BadImage(LongtailError):
    """One image cannot be used; the rest of the table can."""


class MissingImage(BadImage, NotHere):
    """There is no such file."""


def decode(encoded: bytes, name: str) -> np.ndarray:
    """`name` is what messages call the image."""
    try:
        with Image.open(io.BytesIO(encoded), formats=formats()) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise BadImage(f"{name} is {width} x {height} pixels, over the limit of {MAX_PIXELS:,}: scale it down.")
            return to_rgb(image, name)
    except BadImage:
        raise
    except Image.DecompressionBombError:
        raise BadImage(f"{name} is over the limit of {MAX_PIXELS:,} pixels: scale it down.") from None
    except Exception as error:  # Pillow's plug-ins raise OSError, ValueError, SyntaxError, struct.error, IndexError ...
        why = "no known image format" if isinstance(error, UnidentifiedImageError) else error
        what = "is empty" if not encoded else f"cannot be decoded ({why})"
        raise BadImage(f"{name} {what}: replace it or take it out of the table.") from error


@cache
def formats() -> list[str]:
    """Those that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def to_rgb(image: Image.Image, name: str) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BadImage(f"{name} has 32-bit values ({values.min()} to {values.max()}): save it with 8 or 16 bits.")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise BadImage(f"{name} has floating-point pixels, whose range is not known: save it with 8 or 16 bits.")
    elif image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.array(image.convert("RGB"))
