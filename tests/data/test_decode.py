import struct
import zlib

import numpy as np
import pytest
from pictures import encode, picture
from PIL import Image

from longtail.data.decode import MAX_PIXELS, BadImage, decode

GREY = np.arange(0, 240, 15, dtype=np.uint8).reshape(4, 4)


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.stack([grey] * 3, axis=-1)


@pytest.mark.parametrize(
    ("image", "file_format", "expected"),
    [
        (picture(0), "PNG", np.array(picture(0))),
        (picture(0), "BMP", np.array(picture(0))),
        (Image.fromarray(GREY), "PNG", rgb(GREY)),
        (Image.fromarray(GREY > 100), "PNG", rgb(255 * (GREY > 100).astype(np.uint8))),
        (Image.fromarray(GREY.astype(np.uint16) * 256 + 77), "PNG", rgb(GREY)),
        (Image.fromarray(GREY.astype(">u2") * 256 + 77), "TIFF", rgb(GREY)),
        (Image.fromarray(GREY.astype(np.int32) * 256), "TIFF", rgb(GREY)),
        (Image.fromarray(GREY).convert("P"), "PNG", rgb(GREY)),
        (Image.merge("LA", [Image.fromarray(GREY), Image.new("L", (4, 4), 0)]), "PNG", rgb(GREY * 0 + 255)),
        (Image.merge("LA", [Image.fromarray(GREY), Image.new("L", (4, 4), 255)]), "PNG", rgb(GREY)),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG", rgb(GREY * 0 + 255)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 255)), "TIFF", rgb(GREY * 0)),
        (Image.new("CMYK", (4, 4), (0, 0, 0, 0)), "JPEG", rgb(GREY * 0 + 255)),
        (picture(1, size=1), "PNG", np.array(picture(1, size=1))),
    ],
)
def test_every_mode_becomes_what_a_viewer_shows(image, file_format, expected):
    decoded = decode(encode(image, file_format), "x")
    assert decoded.dtype == np.uint8
    assert (decoded == expected).all()


def test_transparent_palette_lies_on_white():
    image = Image.new("P", (2, 2), 0)
    image.putpalette([9, 9, 9, 200, 0, 0])
    image.putpixel((1, 1), 1)
    decoded = decode(encode(image, "PNG", transparency=0), "x")
    assert decoded[0, 0].tolist() == [255, 255, 255]
    assert decoded[1, 1].tolist() == [200, 0, 0]


def test_exif_rotation_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise to view
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 5, 3), dtype=np.uint8))
    assert (decode(encode(image, "PNG", exif=exif), "x") == np.rot90(np.array(image), -1)).all()


def test_animation_gives_its_first_frame():
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "blue")]
    assert decode(encode(frames[0], "GIF", save_all=True, append_images=frames[1:]), "x")[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("encoded", "says"),
    [
        (b"", "a.jpg is empty"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "a.jpg cannot be decoded"),
        (b"<html>not found</html>", "a.jpg cannot be decoded"),
        (encode(picture(0, size=64), "JPEG")[:-900], "truncated"),
        (encode(picture(0, size=64), "PNG")[:-900], "a.jpg cannot be decoded"),
        (encode(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), "floating-point"),
        (encode(Image.fromarray(np.full((4, 4), 70_000, np.int32)), "TIFF"), "70000"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_with_its_name(encoded, says):
    with pytest.raises(BadImage, match=says) as refusal:
        decode(encoded, "a.jpg")
    assert "\n" not in str(refusal.value)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])  # over our limit, over Pillow's first, over its second
def test_an_image_bomb_is_refused_from_its_header(side, monkeypatch):
    assert side * side > MAX_PIXELS

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"0" * 99)), chunk(b"IEND", b"")]
    bomb = b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    with pytest.raises(BadImage, match="limit of 80,000,000"):
        decode(bomb, "bomb.png")
