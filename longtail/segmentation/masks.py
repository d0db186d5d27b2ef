"""A mask file -> uint8 [H, W] of class indices, whatever it was painted with.

A class list names the classes, one a line of `classes.csv`, in the order of their values in the masks:

    name,red,green,blue
    road,128,64,128
    void,0,0,0

Colours are needed for masks that are colour pictures; others may leave them out. A line named `void` is no class: its
pixels are ignored, as the value 255 always is. In grey masks a pixel's value is its line, the first being 0; a palette
picture is read by its colours where the list has colours, by its values otherwise.
"""

import colorsys
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from longtail.data.decode import MAX_PIXELS, BadImage, formats
from longtail.data.table import FileStore
from longtail.errors import LongtailError

VOID = 255  # not labelled: in no loss and in no metric
OUTSIDE = 254  # where a crop reaches beyond its image: void, and zero in the image
MAX_CLASSES = 254


@dataclass(frozen=True, eq=False)
class Coding:
    """What the pixels of a mask mean."""

    classes: tuple[str, ...]
    palette: np.ndarray  # uint8 [C, 3], to paint answers with
    by_value: np.ndarray  # int16 [256]: class, VOID, or -1
    by_colour: dict[int, int] | None = None  # 0xRRGGBB -> class or VOID; None where the list has no colours

    @staticmethod
    def of_lines(names: Sequence[str], colours: Sequence[Sequence[int]] | None, void: str, where: str) -> "Coding":
        """`names` in the order of their values; the one called `void` is no class."""
        classes = tuple(name for name in names if name != void)
        if len(set(classes)) < len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise LongtailError(f'{where} lists the class "{twice}" twice: leave one.')
        if not 2 <= len(classes) <= MAX_CLASSES:
            raise LongtailError(f"{where} lists {len(classes)} classes: segmentation takes 2 to {MAX_CLASSES}.")
        codes = [VOID if name == void else classes.index(name) for name in names]
        by_value = np.full(256, -1, np.int16)
        by_value[: len(codes)] = codes
        by_value[VOID] = VOID
        if colours is None:
            return Coding(classes, default_palette(len(classes)), by_value)
        packed = [red << 16 | green << 8 | blue for red, green, blue in colours]
        if len(set(packed)) < len(packed):
            twice = next(i for i, colour in enumerate(packed) if packed.index(colour) < i)
            raise LongtailError(f'{where} gives "{names[twice]}" the colour of another class: colours must differ.')
        painted = [colour for name, colour in zip(names, colours, strict=True) if name != void]
        return Coding(classes, np.array(painted, np.uint8), by_value, dict(zip(packed, codes, strict=True)))

    @staticmethod
    def read(path: Path) -> "Coding":
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise LongtailError(f"the class list {path} cannot be read ({error}).") from None
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if any(map(str.strip, row))]
        if rows and rows[0][0].lower() == "name":
            rows = rows[1:]
        for row in rows:
            if len(row) not in (1, 4) or len(row) != len(rows[0]):
                raise LongtailError(f"{path}: every line is a name, or every line is name,red,green,blue; found {row}.")
            if len(row) == 4 and not all(cell.isdecimal() and int(cell) <= 255 for cell in row[1:]):
                raise LongtailError(f"{path}: a colour is three numbers from 0 to 255, found {','.join(row)}.")
        colours = [[int(cell) for cell in row[1:]] for row in rows] if rows and len(rows[0]) == 4 else None
        return Coding.of_lines([row[0] for row in rows], colours, "void", str(path))


def default_palette(num_classes: int) -> np.ndarray:
    """Colours that differ, for classes that came without: uint8 [C, 3]."""
    turn = 0.618034  # the golden ratio: neighbouring classes are far apart on the colour wheel
    hues = ((i * turn) % 1 for i in range(num_classes))
    colours = [colorsys.hsv_to_rgb(hue, 0.45 + 0.4 * (i % 3) / 2, 0.95 - 0.2 * (i % 2)) for i, hue in enumerate(hues)]
    return (np.array(colours) * 255).astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Masks:
    """Mask files, a row each, and what their pixels mean."""

    files: FileStore
    coding: Coding

    def __len__(self) -> int:
        return len(self.files)

    def name(self, i: int) -> str:
        return self.files.name(i)

    def decode(self, i: int) -> np.ndarray:
        """uint8 [H, W]: a class or VOID."""
        encoded, name = self.files.content(i), self.name(i)
        try:
            with Image.open(io.BytesIO(encoded), formats=formats()) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    raise BadImage(f"{name} is over the limit of {MAX_PIXELS:,} pixels: scale it down.")
                in_colour = picture.mode not in ("1", "L", "P") and not picture.mode.startswith("I")
                if in_colour or (picture.mode == "P" and self.coding.by_colour is not None):
                    return self._of_colours(np.asarray(picture.convert("RGB")), name)
                return self._of_values(np.asarray(picture), name)
        except LongtailError:
            raise
        except Exception as error:  # Pillow's plug-ins raise what they like
            raise BadImage(f"the mask {name} cannot be decoded ({error}): replace it.") from error

    def _of_values(self, values: np.ndarray, name: str) -> np.ndarray:
        found = np.unique(values)
        unknown = [int(v) for v in found if not 0 <= v <= 255 or self.coding.by_value[int(v)] < 0]
        if unknown:
            pixels = int((values == unknown[0]).sum())
            raise BadImage(
                f"the mask {name} has the value {unknown[0]} in {pixels:,} pixels, which is none of the "
                f"{len(self.coding.classes)} classes: add it to the class list, or paint them 255 (void)."
            )
        return self.coding.by_value.astype(np.uint8)[values.astype(np.uint8)]

    def _of_colours(self, rgb: np.ndarray, name: str) -> np.ndarray:
        if self.coding.by_colour is None:
            raise BadImage(f"the mask {name} is a colour picture, but the class list gives no colours: add them.")
        packed = rgb.astype(np.int32) @ (1 << 16, 1 << 8, 1)
        found, place, pixels = np.unique(packed, return_inverse=True, return_counts=True)
        unknown = [i for i, colour in enumerate(found.tolist()) if colour not in self.coding.by_colour]
        if unknown:
            colour = int(found[unknown[0]])
            raise BadImage(
                f"the mask {name} has the colour {colour >> 16}, {colour >> 8 & 255}, {colour & 255} in "
                f"{pixels[unknown[0]]:,} pixels, which no class has (and {len(unknown) - 1} more such colours): "
                "add it to the class list, or paint them in the colour of a line named void."
            )
        codes = np.array([self.coding.by_colour[colour] for colour in found.tolist()], np.uint8)
        return codes[place].reshape(packed.shape)
