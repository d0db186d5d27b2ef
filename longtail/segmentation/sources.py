"""Where images and masks come from: CamVid, ADE20K, or any folder of pairs.

    CamVid    train val test with trainannot valannot testannot, grey masks of 11 classes and void
    ADE20K    images/{training,validation} with annotations/{training,validation}, objectInfo150.txt; 0 is void
    your own  images/ with masks/ and classes.csv; a mask has its image's path and name, with any suffix

Your own images may lie in images/train, images/val and images/test. Without such folders every fifth image, chosen by
its name, is test.
"""

import csv
import hashlib
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from longtail.data.benchmarks import data_root
from longtail.data.decode import BadImage, formats
from longtail.data.folders import IMAGE_SUFFIXES
from longtail.data.table import SPLITS, FileStore
from longtail.errors import LongtailError, NotHere
from longtail.segmentation.masks import Coding, Masks
from longtail.segmentation.table import PixelTable, different_sizes

CAMVID_CLASSES = (
    "Sky", "Building", "Pole", "Road", "Pavement", "Tree",
    "SignSymbol", "Fence", "Car", "Pedestrian", "Bicyclist", "Unlabelled",
)  # fmt: skip
CAMVID_COLOURS = [
    (128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222), (128, 128, 0),
    (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192), (0, 0, 0),
]  # fmt: skip
ADE20K_FOLDERS = {"training": "train", "validation": "test"}  # it is reported on its validation images

NAMED = {"camvid": "camvid", "ade20k": "ADEChallengeData2016"}  # folders in the data root


def load(source: str | Path, *, root: str | Path | None = None) -> PixelTable:
    """`source` is camvid or ade20k, looked for in `root`, or the path of a folder."""
    named = NAMED.get(str(source))
    folder = data_root(root) / named if named else Path(source).expanduser()
    if not folder.is_dir():
        hint = "name the folder it is in with --data-root or LONGTAIL_DATA" if named else "give a folder of pairs"
        hint += ", or fetch it with `longtail data prepare ade20k`" if source == "ade20k" else ""
        raise NotHere(f"{folder.absolute()} is no folder: {hint}.")
    if (folder / "trainannot").is_dir():
        return camvid(folder)
    if (folder / "annotations" / "training").is_dir():
        return ade20k(folder)
    return pairs(folder)


def camvid(folder: Path) -> PixelTable:
    coding = Coding.of_lines(CAMVID_CLASSES, CAMVID_COLOURS, "Unlabelled", "CamVid")
    # Its masks hold values, whatever palette they may carry.
    coding = Coding(coding.classes, coding.palette, coding.by_value)
    parts = [(split, split, f"{split}annot") for split in SPLITS if (folder / split).is_dir()]
    return _table(folder, parts, coding, "CamVid")


def ade20k(folder: Path) -> PixelTable:
    names = ["other", *_ade20k_names(folder / "objectInfo150.txt")]
    coding = Coding.of_lines(names, None, "other", "ADE20K")
    parts = [(split, f"images/{name}", f"annotations/{name}") for name, split in ADE20K_FOLDERS.items()]
    return _table(folder, parts, coding, "ADE20K")


def pairs(folder: Path) -> PixelTable:
    for name in ("images", "masks"):
        if not (folder / name).is_dir():
            raise LongtailError(
                f"{folder} has no folder {name}: put the pictures in images, their masks under the same names in "
                "masks, and the class names in classes.csv."
            )
    if not (folder / "classes.csv").is_file():
        raise LongtailError(f"{folder} has no classes.csv: write one class name a line, in the order of their values.")
    coding = Coding.read(folder / "classes.csv")
    splits = [split for split in SPLITS if (folder / "images" / split).is_dir()]
    if splits:
        return _table(folder, [(s, f"images/{s}", f"masks/{s}") for s in splits], coding, folder.name)
    table = _table(folder, [("train", "images", "masks")], coding, folder.name)
    test = [_hash(table.images.name(i)) % 5 == 0 for i in range(len(table))]
    table.split[np.array(test, bool)] = SPLITS.index("test")
    return table


def _table(folder: Path, parts: Iterable[tuple[str, str, str]], coding: Coding, name: str) -> PixelTable:
    """`parts`: split, folder of images, folder of masks."""
    images, masks, split = [], [], []
    for part, image_folder, mask_folder in parts:
        of_stem = {path.with_suffix(""): path for path in _files(folder / mask_folder)}
        for path in _files(folder / image_folder):
            if path.with_suffix("") not in of_stem:
                raise LongtailError(
                    f"{folder / image_folder / path} has no mask: {folder / mask_folder / path.with_suffix('.png')} "
                    "was looked for; add it or take the image away."
                )
            images.append(f"{image_folder}/{path.as_posix()}")
            masks.append(f"{mask_folder}/{of_stem[path.with_suffix('')].as_posix()}")
            split.append(SPLITS.index(part))
    if SPLITS.index("train") not in split:
        raise LongtailError(f"{folder} has no training images.")
    with ThreadPoolExecutor() as pool:  # a pair that does not fit is found now, not hours into the training
        list(pool.map(lambda image, mask: _same_size(folder / image, folder / mask), images, masks))
    files = [FileStore(folder, pa.array(paths)) for paths in (images, masks)]
    return PixelTable(files[0], Masks(files[1], coding), np.array(split, np.uint8), name)


def _same_size(image: Path, mask: Path) -> None:
    """From their headers; either may lie on its side, as a camera's note says."""
    sizes = []
    for path in (image, mask):
        try:
            with Image.open(path, formats=formats()) as picture:
                sizes.append(picture.size)
        except Exception as error:  # Pillow's plug-ins raise what they like
            raise BadImage(f"{path} cannot be opened ({error}): replace it or take the pair away.") from error
    if sorted(sizes[0]) != sorted(sizes[1]):
        raise BadImage(different_sizes(str(image), sizes[0], str(mask), sizes[1]))


def _files(folder: Path) -> list[Path]:
    """Images below a folder, relative to it, sorted."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    return sorted(path for path in found if not path.name.startswith("."))


def _ade20k_names(path: Path) -> list[str]:
    if not path.is_file():
        raise LongtailError(f"{path} is missing: it names ADE20K's classes and comes in ADEChallengeData2016.zip.")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    if len(rows) != 150 or "Name" not in rows[0]:
        raise LongtailError(f"{path} names {len(rows)} classes, not 150: take the file of ADEChallengeData2016.zip.")
    names = [row["Name"].strip() for row in rows]
    short = [re.split("[,;]", name)[0] for name in names]
    return [long if short.count(first) > 1 else first for long, first in zip(names, short, strict=True)]


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
