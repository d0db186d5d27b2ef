"""The benchmarks that are lists of files: ImageNet-LT, Places-LT and iNaturalist 2018.

Their images lie in a folder of the data root, as the lists name them; the lists lie beside them or in `lists`, gzipped
or not.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from longtail.data import lists
from longtail.data.table import SPLITS, ImageTable
from longtail.errors import NotHere


@dataclass(frozen=True)
class Listed:
    folder: str  # under the data root
    stem: str  # of the lists: <stem>_train.txt
    classes: int
    images: dict[str, int]  # of each split
    largest: int
    smallest: int


LISTED = {
    "imagenet-lt": Listed(
        "imagenet-lt", "ImageNet_LT", 1000, {"train": 115_846, "val": 20_000, "test": 50_000}, largest=1280, smallest=5
    ),
    "places-lt": Listed(
        "places-lt", "Places_LT", 365, {"train": 62_500, "val": 7_300, "test": 36_500}, largest=4980, smallest=5
    ),
    "inat18": Listed("inat18", "iNaturalist18", 8142, {"train": 437_513, "val": 24_426}, largest=1000, smallest=2),
}


def find_lists(name: str, root: Path) -> dict[str, Path]:
    """The lists that are there, by split."""
    benchmark = LISTED[name]
    found = {}
    for split in benchmark.images:
        names = (f"{benchmark.stem}_{split}.txt{gz}" for gz in ("", ".gz"))
        files = (root / folder / name for name in names for folder in (benchmark.folder, "lists"))
        if (file := next((file for file in files if file.exists()), None)) is not None:
            found[split] = file
    return found


def load(name: str, root: Path) -> ImageTable:
    found = find_lists(name, root)
    missing = [f"{LISTED[name].stem}_{split}.txt" for split in LISTED[name].images if split not in found]
    if missing:
        folder = root.absolute() / LISTED[name].folder
        raise NotHere(f"{name} lacks {', '.join(missing)} in {folder}: longtail data prepare {name} says more.")
    return replace(lists.load_files(list(found.values()), root=root / LISTED[name].folder), name=name)


def differences(name: str, table: ImageTable) -> list[str]:
    """What about the lists is not as published."""
    expected, counts = LISTED[name], table.counts()
    facts = [
        *((f"{split} images", len(table.rows(split)), expected.images.get(split, 0)) for split in SPLITS),
        ("classes", table.num_classes, expected.classes),
        ("images in the largest class", int(counts.max()), expected.largest),
        ("images in the smallest class", int(counts.min()), expected.smallest),
    ]
    return [f"{what}: {found:,}, not {published:,}" for what, found, published in facts if found != published]
