"""A torchvision data set, or any object whose items are (PIL image, class index)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from torch.utils.data import ConcatDataset

from longtail.data.classes import index_labels
from longtail.data.columns import SPLIT_CODES
from longtail.data.decode import BadImage, to_rgb
from longtail.data.table import ImageTable
from longtail.errors import LongtailError

# Where torchvision's data sets keep their labels. One that has none of these is read item by item.
LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")


class DatasetStore:
    """Images that the data set itself fetches."""

    def __init__(self, dataset: Any, rows: np.ndarray, name: str):
        self.dataset, self.rows, self._name = dataset, rows, name

    def __len__(self) -> int:
        return len(self.rows)

    def decode(self, i: int) -> np.ndarray:
        try:
            image = self.dataset[int(self.rows[i])][0]
        except Exception as error:  # whatever it does to fetch an image
            raise BadImage(f"{self.name(i)} cannot be read ({error}).") from error
        if not isinstance(image, Image.Image):
            raise LongtailError(
                f"{self.name(i)} is a {type(image).__name__}, not a PIL image: make the data set without a transform."
            )
        return to_rgb(image, self.name(i))

    def content(self, i: int) -> bytes:
        image = self.decode(i)
        return repr(image.shape).encode() + image.tobytes()

    def name(self, i: int) -> str:
        return f"{self._name}[{self.rows[i]}]"

    def take(self, rows: np.ndarray) -> "DatasetStore":
        return DatasetStore(self.dataset, self.rows[rows], self._name)


def load(data: Any, name: str | None = None) -> ImageTable:
    """One data set, which is all training, or a mapping from train, val and test to data sets."""
    parts = data if isinstance(data, Mapping) else {"train": data}
    for split, part in parts.items():
        if split not in SPLIT_CODES:
            raise LongtailError(f'There is no split "{split}"; name the data sets by {", ".join(SPLIT_CODES)}.')
        if not hasattr(part, "__getitem__") or not hasattr(part, "__len__"):
            raise LongtailError(f"{type(part).__name__} has no length and items, so no table can be made of it.")
    datasets = list(parts.values())
    name = name or type(datasets[0]).__name__
    classes = getattr(datasets[0], "classes", None)
    labels = pa.chunked_array([pa.array(_labels(part, name)) for part in datasets])
    classes, codes = index_labels(labels, None if classes is None else tuple(map(str, classes)), name)
    split = np.repeat([SPLIT_CODES[split] for split in parts], [len(part) for part in datasets]).astype(np.uint8)
    return ImageTable(
        classes, codes, split, DatasetStore(ConcatDataset(datasets), np.arange(len(codes)), name), name=name
    )


def _labels(dataset: Any, name: str) -> np.ndarray:
    values = next((getattr(dataset, a) for a in LABEL_ATTRIBUTES if hasattr(dataset, a)), None)
    if values is None:
        values = [dataset[i][1] for i in range(len(dataset))]
    labels = np.asarray(values)
    if labels.ndim != 1:
        raise LongtailError(f"{name} has several labels an image, but each image must have exactly one class.")
    return labels
