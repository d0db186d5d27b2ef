"""Images and their masks as columns: what the image table is to classification."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from longtail.data.decode import BadImage
from longtail.data.table import SPLITS, ImageStore
from longtail.segmentation.masks import Masks
from longtail.wording import number_of


@dataclass(frozen=True, eq=False)
class PixelTable:
    """A row's number is its image's id, and the id of all its pixels."""

    images: ImageStore
    masks: Masks
    split: np.ndarray  # uint8 [N], index into SPLITS
    name: str = "data"
    counted: dict[str, np.ndarray] = field(default_factory=dict, repr=False)  # what `counts` has read

    def __post_init__(self):
        assert len(self.images) == len(self.masks) == len(self.split)

    def __len__(self) -> int:
        return len(self.split)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.masks.coding.classes

    @property
    def palette(self) -> np.ndarray:
        return self.masks.coding.palette

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def rows(self, split: str) -> np.ndarray:
        return np.flatnonzero(self.split == SPLITS.index(split))

    def pair(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """uint8 [H, W, 3] and uint8 [H, W]."""
        image, mask = self.images.decode(i), self.masks.decode(i)
        if image.shape[:2] != mask.shape:
            sizes = (image.shape[1], image.shape[0]), (mask.shape[1], mask.shape[0])
            raise BadImage(different_sizes(self.images.name(i), sizes[0], self.masks.name(i), sizes[1]))
        return image, mask

    def counts(self, split: str = "train") -> np.ndarray:
        """Labelled pixels a class, int64 [C]. Reads every mask of the split, once."""
        if split not in self.counted:

            def count(i: int) -> np.ndarray:
                return np.bincount(self.masks.decode(int(i)).ravel(), minlength=256)[: self.num_classes]

            with ThreadPoolExecutor() as pool:  # Pillow decodes without holding the interpreter's lock
                total = sum(pool.map(count, self.rows(split)), np.zeros(self.num_classes, np.int64))
            self.counted[split] = total
        return self.counted[split]

    def summary(self) -> str:
        sizes = ", ".join(f"{len(self.rows(split)):,} {split}" for split in SPLITS if len(self.rows(split)))
        counts = self.counts()
        lines = [f"{self.name}: {number_of(self.num_classes, 'class')}, {sizes or 'no images'}"]
        if counts.any():
            share = counts / counts.sum()
            most, least = int(share.argmax()), int(np.where(counts > 0, share, np.inf).argmin())
            lines.append(
                f"training pixels: {counts.sum():,}; {self.classes[most]} {100 * share[most]:.3g} %, "
                f"{self.classes[least]} {100 * share[least]:.3g} %, imbalance {share[most] / share[least]:.3g}x"
            )
            missing = [name for name, count in zip(self.classes, counts, strict=True) if count == 0]
            if missing:
                some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
                classes = number_of(len(missing), "class")
                lines.append(f"no training pixel of {classes}, which will never be answered: {some}")
        return "\n".join(lines)


def different_sizes(image: str, image_size: tuple[int, int], mask: str, mask_size: tuple[int, int]) -> str:
    """Sizes as width and height."""
    return (
        f"{image} has {image_size[0]} x {image_size[1]} pixels and its mask {mask} {mask_size[0]} x {mask_size[1]}: "
        "they must be of one size."
    )
