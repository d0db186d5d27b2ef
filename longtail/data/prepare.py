"""Getting a benchmark into the data root: what may be fetched is fetched, what may not is asked for, all is verified.

`prepare` may be run any number of times; it carries on from what is there.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from longtail.data import listed, lists, tails
from longtail.data.benchmarks import CIFAR_FOLDERS, cifar, data_root
from longtail.data.fetch import Archive, fetch, unpack
from longtail.data.table import SPLITS, FileStore
from longtail.errors import LongtailError
from longtail.files import atomic, read_json

_INAT = "https://ml-inat-competition-datasets.s3.amazonaws.com/2018"
_PLACES = "http://data.csail.mit.edu/places/places365"
_OLTR = "the Google Drive folder linked from github.com/zhmiao/OpenLongTailRecognition-OLTR"

# What may be fetched; the checksums are the publishers' own.
ARCHIVES = {
    "cifar10-lt": (
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            "170 MB",
            "cifar-10-batches-py",
        ),
    ),
    "cifar100-lt": (
        Archive(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            "169 MB",
            "cifar-100-python",
        ),
    ),
    "imagenet-lt": (),
    "inat18": (
        Archive(f"{_INAT}/train2018.json.tar.gz", "md5:bfa29d89d629cbf04d826a720c0a68b0", "26 MB", "train2018.json"),
        Archive(f"{_INAT}/val2018.json.tar.gz", "md5:f2ed8bfe3e9901cdefceb4e53cd3775d", "2 MB", "val2018.json"),
        Archive(f"{_INAT}/train_val2018.tar.gz", "md5:b1c6952ce38f31868cc50ea72d066cc3", "120 GB", "train_val2018"),
    ),
    "places-lt": (
        Archive(
            f"{_PLACES}/train_256_places365standard.tar", "md5:53ca1c756c3d1e7809517cc47c5561c5", "24 GB", "data_256"
        ),
        Archive(f"{_PLACES}/val_256.tar", "md5:e27b17d8d44f4af9a78502beb927f808", "500 MB", "val_256"),
    ),
    "ade20k": (
        Archive(
            "http://data.csail.mit.edu/places/ADEchallenge/ADEChallengeData2016.zip",
            "sha1:219e1696abb36c8ba3a3afe7fb2f4b4606a897c7",
            "1 GB",
            "ADEChallengeData2016",
        ),
    ),
}

# What has to be put there by hand: folder or list, and where it is to be had.
BY_HAND = {
    "imagenet-lt": {
        "train": "the training images of ILSVRC 2012, a folder for each class (image-net.org, after registration)",
        "val": "its validation images, each in its class's folder, which ImageNet_LT_test.txt names",
        "ImageNet_LT_train.txt": _OLTR,
        "ImageNet_LT_val.txt": _OLTR,
        "ImageNet_LT_test.txt": _OLTR,
    },
    "places-lt": {f"Places_LT_{split}.txt": _OLTR for split in SPLITS},
}

TERMS = {
    "inat18": "The images are for non-commercial research and education; each photographer keeps the rights.",
    "places-lt": "The images are for non-commercial research and education; Places365's authors do not own the rights.",
    "ade20k": "The images are for non-commercial research and education.",
}

# SHA-256 of the kept rows, class after class, as little-endian int64, by imbalance.
PUBLISHED_SUBSETS = {
    10: {
        100: "4bf45bff8878d2786e47dccd702f96ff33b2b11d8c7da3b5015f10937290f866",
        50: "d7edcfaf02772bee1e2310a33be8b6c46232f043641158348b9de3ec731e26ac",
        10: "a17d69f192b1cf6df09676b6c424e2ad5e7d7863ccc4b9ba70ef128885973218",
    },
    100: {
        100: "e0d58a4d2700c46062da852554e5d185bbee74d3c612b052ea2a839bdadf939e",
        50: "561fa940cc7d3551d441643e310c7e439bf84f86b7863a3f7364963522d2984a",
        10: "b4fbf1bf0a7f33381467493f50b953ce21b03a2b6d45b0d5e8da5d95d9ffd736",
    },
}

SHOWN = 10  # missing files
MISSING = "missing.txt"  # in the benchmark's folder: all of them

ADE20K = {"training": 20_210, "validation": 2_000}


@dataclass(frozen=True)
class Prepared:
    name: str
    folder: Path
    lines: tuple[str, ...]  # what was done and found to be right
    wanting: tuple[str, ...]  # what is not yet right, and what to do
    missing: tuple[str, ...] = ()  # every file that a list names and that is not there

    @property
    def exit_code(self) -> int:
        return int(bool(self.wanting))

    def render(self) -> str:
        lines = [f"{self.name} in {self.folder}", *self.lines, *(f"WANTING  {what}" for what in self.wanting)]
        lines += [f"  {file}" for file in self.missing[:SHOWN]]
        if len(self.missing) > SHOWN:
            where = f"; {self.folder / MISSING} names all" if (self.folder / MISSING).exists() else ""
            lines.append(f"  ... and {len(self.missing) - SHOWN:,} more{where}")
        return "\n".join([*lines, "not ready" if self.wanting else "ready"])


def prepare(
    name: str,
    root: str | Path | None = None,
    *,
    download: bool = True,
    progress: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Prepared:
    """Fetch what may be fetched and verify what is there; without `download` only verify. `say` hears of each download
    before it begins."""
    if name not in ARCHIVES:
        raise LongtailError(f"There is no benchmark {name!r} to prepare; there are {', '.join(ARCHIVES)}.")
    base = data_root(root).absolute()
    if name.startswith("cifar"):
        return _prepare_cifar(name, base, download, progress, say)
    folder = base if name == "ade20k" else base / listed.LISTED[name].folder
    lines, wanting = _get(name, folder, download, progress, say)
    if name == "ade20k":
        return _verify_ade20k(folder, lines, wanting)
    if name == "inat18":
        _write_inat_lists(folder)
    return _verify_listed(name, base, lines, wanting)


def missing_files(root: Path, paths: Sequence[str]) -> list[str]:
    """The paths with no file below the root. Each folder is listed once, which is quick on a network disk too."""

    @cache
    def content(folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(root / folder))
        except OSError:
            return frozenset()

    split = (path.rpartition("/") for path in paths)
    return [f"{folder}/{name}" if folder else name for folder, _, name in split if name not in content(folder)]


def _get(
    name: str, folder: Path, download: bool, progress: bool, say: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """Fetch and unpack the archives that are not there. What was done, and what is still wanting."""
    lines, wanting = [], []
    for archive in ARCHIVES[name]:
        if (folder / archive.gives).exists():
            continue
        if not download:
            wanting.append(f"{archive.gives}: unpack {archive.url} ({archive.size}) in {folder}")
            continue
        say(f"fetching {archive.url} ({archive.size}) to {folder}. {TERMS.get(name, '')}".rstrip())
        try:
            unpack(fetch(archive, folder, progress), folder)
            lines.append(f"fetched {archive.gives} ({archive.size}, {archive.checksum.split(':')[0]} as published)")
        except LongtailError as error:  # the rest is looked at all the same
            wanting.append(f"{error} Or put {archive.name} in {folder} yourself, and run this again.")
    return lines, wanting


def _prepare_cifar(name: str, root: Path, download: bool, progress: bool, say: Callable[[str], None]) -> Prepared:
    num_classes = 10 if name == "cifar10-lt" else 100
    try:
        table, lines = cifar(num_classes, root), []
    except LongtailError as absent:
        if not download:
            return Prepared(name, root, (), (str(absent),))
        lines, wanting = _get(name, root, download, progress, say)
        if wanting:
            return Prepared(name, root, tuple(lines), tuple(wanting))
        table = cifar(num_classes, root)
    labels = table.labels[table.rows("train")]
    lines.append("50,000 training and 10,000 test images")
    wanting = []
    for imbalance, published in PUBLISHED_SUBSETS[num_classes].items():
        kept = tails.subset(labels, tails.exponential(50_000 // num_classes, num_classes, imbalance))
        if sha256(kept.astype("<i8").tobytes()).hexdigest() == published:
            lines.append(f"imbalance {imbalance}: {len(kept):,} images, the published subset")
        else:
            wanting.append(
                f"imbalance {imbalance}: not the published subset, since the images are in another order; "
                f"put {CIFAR_FOLDERS[num_classes][0]} there, the original"
            )
    return Prepared(name, root, tuple(lines), tuple(wanting))


def _verify_listed(name: str, root: Path, lines: list[str], wanting: list[str]) -> Prepared:
    benchmark, found = listed.LISTED[name], listed.find_lists(name, root)
    folder = root / benchmark.folder
    for item, source in BY_HAND.get(name, {}).items():
        split = item.removeprefix(f"{benchmark.stem}_").removesuffix(".txt")
        there = split in found if item.endswith(".txt") else (folder / item).is_dir()
        if not there:
            wanting.append(f"put {item} in {folder}: {source}")
    if not found:
        return Prepared(name, folder, tuple(lines), tuple(wanting))

    table = lists.load_files(list(found.values()), root=folder)
    assert isinstance(table.images, FileStore)
    if len(found) == len(benchmark.images):
        unlike = listed.differences(name, table)
        wanting += [f"the lists are not the published ones: {what}" for what in unlike]
        if not unlike:
            lines.append(f"lists as published: {len(table):,} images of {table.num_classes:,} classes")
    paths = table.images.paths.to_pylist()
    return _with_missing(name, folder, paths, lines, wanting)


def _verify_ade20k(root: Path, lines: list[str], wanting: list[str]) -> Prepared:
    folder = root / "ADEChallengeData2016"
    kinds = (("images", "jpg"), ("annotations", "png"))
    short = {"training": "train", "validation": "val"}
    paths = [
        f"{kind}/{split}/ADE_{short[split]}_{i:08d}.{suffix}"
        for kind, suffix in kinds
        for split, n in ADE20K.items()
        for i in range(1, n + 1)
    ]
    if not folder.exists():
        return Prepared("ade20k", folder, tuple(lines), tuple(wanting))
    return _with_missing("ade20k", folder, paths, lines, wanting)


def _with_missing(name: str, folder: Path, paths: list[str], lines: list[str], wanting: list[str]) -> Prepared:
    missing = missing_files(folder, paths)
    with contextlib.suppress(OSError):  # data that somebody else keeps, and that cannot be written to
        (folder / MISSING).unlink(missing_ok=True)
        if len(missing) > SHOWN:
            (folder / MISSING).write_text("".join(f"{file}\n" for file in missing), encoding="utf-8")
    if missing:
        where = Counter("/".join(path.split("/")[:-1][:2]) for path in missing).most_common(3)
        places = ", ".join(f"{n:,} in {place}" for place, n in where)
        wanting = [*wanting, f"{len(missing):,} of {len(paths):,} files are missing, most of them {places}"]
    else:
        lines = [*lines, f"all {len(paths):,} files are there"]
    return Prepared(name, folder, tuple(lines), tuple(wanting), tuple(missing))


def _write_inat_lists(folder: Path) -> None:
    """iNaturalist comes with annotations in JSON; its lists say the same, a line an image."""
    for split in listed.LISTED["inat18"].images:
        annotations, path = folder / f"{split}2018.json", folder / f"iNaturalist18_{split}.txt"
        if path.exists() or not annotations.exists():
            continue
        content = read_json(annotations)
        files = {image["id"]: image["file_name"] for image in content["images"]}
        with atomic(path) as file:
            for row in content["annotations"]:
                file.write(f"{files[row['image_id']]} {row['category_id']}\n".encode())
