"""A folder of class folders, with or without train, val and test above them.

Everything below a class folder belongs to its class, however deep. An empty class folder is a class without images.
Hidden files are passed over; so are files that are no images, and how many is said.
"""

import os
import warnings
from collections import Counter
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from longtail.data.classes import plain, read_classes
from longtail.data.columns import SPLIT_CODES
from longtail.data.table import SPLITS, FileStore, ImageTable
from longtail.errors import LongtailError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
IMAGE_SUFFIXES += (".pbm", ".dib", ".jp2", ".avif")


def load(root: Path) -> ImageTable:
    files, empty = _walk(root)
    images = [file for file in files if PurePosixPath(file).suffix.lower() in IMAGE_SUFFIXES]
    depth = _split_depth(root, {file.split("/", 1)[0] for file in images if "/" in file})
    for image in images:
        if image.count("/") <= depth:
            raise LongtailError(f"{root} is not a folder of class folders: {image} is in none{_lists_in(files)}.")
    if not images:
        raise LongtailError(f"There is no image in {root}{_lists_in(files)}.")
    _say_what_was_passed_over(root, [file for file in files if file.count("/") > depth])

    # A class folder is a number as soon as it is met: names of a million files apart would fill a gigabyte.
    folders: dict[str, int] = {}
    of_folder = np.array([folders.setdefault("/".join(i.split("/", depth + 1)[:-1]), len(folders)) for i in images])
    parts = [folder.split("/") for folder in folders]
    names = [plain(part[depth]) for part in parts]
    childless = (folder.split("/") for folder in empty)
    classes = read_classes(root) or tuple(
        sorted({*names, *(plain(part[-1]) for part in childless if len(part) == depth + 1)})
    )
    index = {name: c for c, name in enumerate(classes)}
    for name, folder in zip(names, folders, strict=True):
        if name not in index:
            raise LongtailError(f'{root}: the class folder {folder} is not in classes.txt; add "{name}" to it.')
    splits = [SPLIT_CODES[part[0].lower()] if depth else SPLITS.index("train") for part in parts]
    return ImageTable(
        classes,
        np.array([index[name] for name in names], np.int32)[of_folder],
        np.array(splits, np.uint8)[of_folder],
        FileStore(root, pa.array(images)),
        name=root.name,
    )


def _walk(root: Path) -> tuple[list[str], list[str]]:
    """Files and empty folders below the root, relative to it, sorted; links are followed, each folder once."""
    files, empty, seen = [], [], set()
    for folder, folders, names in os.walk(root, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()  # a link back into the tree
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        names = [name for name in names if not name.startswith(".")]
        below = Path(folder).relative_to(root).as_posix()
        files += [name if below == "." else f"{below}/{name}" for name in names]
        if not folders and not names:
            empty.append(below)
    for file in (*files, *empty):
        if not file.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in file):
            raise LongtailError(f"{root}: the name {file!a} is not valid UTF-8; rename it.")
    return sorted(files), empty


def _split_depth(root: Path, tops: set[str]) -> int:
    """1 where the top folders are splits, 0 where they are classes.

    A class may be called "train" (CIFAR-100 has one), so split folders have nothing but their like beside them.
    """
    splits = {top for top in tops if top.lower() in SPLIT_CODES}
    if splits and splits == tops:
        return 1
    if len({SPLIT_CODES[split.lower()] for split in splits}) > 1:
        others = ", ".join(sorted(tops - splits)[:3])
        raise LongtailError(f"{root} has {', '.join(sorted(splits))} and beside them {others}: put those elsewhere.")
    return 0


def _lists_in(files: list[str]) -> str:
    lists = [file for file in files if "/" not in file and file.lower().endswith((".csv", ".tsv", ".txt", ".gz"))]
    return f"; there is {', '.join(lists[:3])}: name that file instead" if lists else ""


def _say_what_was_passed_over(root: Path, files: list[str]) -> None:
    suffixes = Counter(PurePosixPath(file).suffix.lower() or "without a suffix" for file in files)
    others = [f"{count:,} {suffix}" for suffix, count in suffixes.most_common() if suffix not in IMAGE_SUFFIXES]
    if others:
        warnings.warn(f"{root}: files that are no images were passed over ({', '.join(others[:5])}).", stacklevel=3)
