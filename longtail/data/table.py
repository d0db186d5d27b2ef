"""The one form all data takes: rows of (image reference, class, split, group) and an explicit class list.

Everything is a column: a table of a million rows costs its paths and some 13 bytes a row. Class order comes from the
class list, never from the labels that happen to be present: a class without images shifts nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from longtail.data.decode import BadImage, MissingImage, decode
from longtail.data.parallel import for_rows
from longtail.errors import LongtailError
from longtail.wording import number_of

SPLITS = ("train", "val", "test")


class ImageStore(Protocol):
    """Where the pixels are. Index i is the row of the table the store belongs to."""

    def __len__(self) -> int: ...

    def decode(self, i: int) -> np.ndarray:
        """uint8 [H, W, 3]; raises BadImage."""
        ...

    def content(self, i: int) -> bytes:
        """The bytes that make the image what it is, whatever its row or name: hashed to split and to find copies."""
        ...

    def name(self, i: int) -> str:
        """What messages call it."""
        ...

    def take(self, rows: np.ndarray) -> "ImageStore": ...


class PixelStore:
    """Decoded images of one size, in memory."""

    def __init__(self, pixels: np.ndarray, name: str):
        assert pixels.shape[3:] == (3,), pixels.shape
        assert pixels.dtype == np.uint8, pixels.dtype
        self.pixels = pixels  # [N, H, W, 3]
        self._name = name

    def __len__(self) -> int:
        return len(self.pixels)

    def decode(self, i: int) -> np.ndarray:
        return self.pixels[i]

    def content(self, i: int) -> bytes:
        return self.pixels[i].tobytes()

    def name(self, i: int) -> str:
        return f"{self._name} image {i}"

    def take(self, rows: np.ndarray) -> "PixelStore":
        return PixelStore(self.pixels[rows], self._name)


class FileStore:
    """Files under one root. Paths are relative to it, with forward slashes."""

    def __init__(self, root: Path, paths: pa.Array):
        self.root = Path(root)
        self.paths = paths  # one arrow array of strings: 4 bytes a row beyond the text

    def __len__(self) -> int:
        return len(self.paths)

    def decode(self, i: int) -> np.ndarray:
        return decode(self.content(i), self.name(i))

    def content(self, i: int) -> bytes:
        try:
            return (self.root / self.name(i)).read_bytes()
        except OSError as error:
            kind = MissingImage if isinstance(error, FileNotFoundError) else BadImage
            raise kind(f"{self.root / self.name(i)} cannot be read ({error.strerror}).") from error

    def name(self, i: int) -> str:
        return self.paths[i].as_py()

    def take(self, rows: np.ndarray) -> "FileStore":
        return FileStore(self.root, self.paths.take(pa.array(rows)))


class BytesStore:
    """Encoded images in arrow columns, in memory or memory-mapped. Taking rows moves no image."""

    def __init__(self, encoded: pa.ChunkedArray, names: pa.ChunkedArray, rows: np.ndarray | None = None):
        self.encoded, self.names = encoded, names
        self.rows = np.arange(len(encoded)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    def decode(self, i: int) -> np.ndarray:
        return decode(self.content(i), self.name(i))

    def content(self, i: int) -> bytes:
        encoded = self.encoded[int(self.rows[i])].as_py()
        if encoded is None:
            raise BadImage(f"{self.name(i)} has no image bytes.")
        return encoded

    def name(self, i: int) -> str:
        row = int(self.rows[i])
        return self.names[row].as_py() or f"row {row}"

    def take(self, rows: np.ndarray) -> "BytesStore":
        return BytesStore(self.encoded, self.names, self.rows[rows])


@dataclass(frozen=True, eq=False)
class ImageTable:
    """A row's number is its sample's id."""

    classes: tuple[str, ...]
    labels: np.ndarray  # int32 [N], index into classes
    split: np.ndarray  # uint8 [N], index into SPLITS
    images: ImageStore
    groups: np.ndarray | None = None  # int32 [N]: rows of one group belong on one side of a split
    name: str = "data"
    loaded: Mapping[str, Any] | None = None  # of a benchmark that is whole: what of `recipe.Data` loads it again

    def __post_init__(self):
        assert len(self.labels) == len(self.split) == len(self.images)
        assert (self.labels.dtype, self.split.dtype) == (np.int32, np.uint8)
        assert self.groups is None or (self.groups.dtype == np.int32 and len(self.groups) == len(self.labels))
        assert len(self.labels) == 0 or 0 <= self.labels.min() <= self.labels.max() < self.num_classes

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def counts(self, split: str = "train") -> np.ndarray:
        """Images a class, int64 [C]; 0 where a class has none."""
        return np.bincount(self.labels[self.rows(split)], minlength=self.num_classes)

    def take(self, rows: np.ndarray) -> "ImageTable":
        groups = None if self.groups is None else self.groups[rows]
        return replace(
            self,
            labels=self.labels[rows],
            split=self.split[rows],
            images=self.images.take(rows),
            groups=groups,
            loaded=None,
        )

    def summary(self) -> str:
        sizes = ", ".join(f"{len(self.rows(split)):,} {split}" for split in SPLITS if len(self.rows(split)))
        counts = self.counts()
        present = counts[counts > 0]
        lines = [f"{self.name}: {number_of(self.num_classes, 'class')}, {sizes or 'no images'}"]
        if len(present):
            lines.append(
                f"training images a class: largest {present.max():,}, smallest {present.min():,}, "
                f"imbalance {present.max() / present.min():.3g}x"
            )
        for split in ("train", "test"):
            missing = np.flatnonzero(self.counts(split) == 0)
            if len(missing) and len(self.rows(split)):
                some = ", ".join(self.classes[c] for c in missing[:5]) + (", ..." if len(missing) > 5 else "")
                number = f"{len(missing):,} classes: " if len(missing) > 1 else ""
                lines.append(f"no {split} image of {number}{some}")
        return "\n".join(lines)


def in_memory(table: ImageTable, bad: dict[int, str] | None = None) -> ImageTable:
    """Decode a table of equally large images once, into a PixelStore.

    An image that cannot be decoded is an error or, where `bad` is given, left out and put into it: row -> reason.
    """
    if isinstance(table.images, PixelStore):
        return table
    model = first_good(table)
    shape = model[1].shape
    pixels = np.empty((len(table), *shape), np.uint8)

    def decode(row: int) -> None:
        try:
            image = table.images.decode(row)
        except BadImage as error:
            if bad is None:
                raise
            bad[row] = str(error)
            return
        if image.shape != shape:
            raise LongtailError(
                f"{table.images.name(row)} is {image.shape[1]} x {image.shape[0]} but {table.images.name(model[0])} is "
                f"{shape[1]} x {shape[0]}: images kept in memory must be of one size."
            )
        pixels[row] = image

    for_rows(len(table), decode, "decoding every image")
    if bad:
        good = np.delete(np.arange(len(table)), sorted(bad))
        table, pixels = table.take(good), pixels[good]
    return replace(table, images=PixelStore(pixels, table.name))


def first_good(table: ImageTable) -> tuple[int, np.ndarray]:
    """The first row whose image can be decoded, and the image."""
    first = BadImage(f"{table.name} has no images.")
    for row in range(len(table)):
        try:
            return row, table.images.decode(row)
        except BadImage as error:
            first = error if row == 0 else first
    raise first
