"""What is reported about a segmentation, from one matrix of pixel counts.

    IoU_c = TP / (TP + FN + FP)      Acc_c = TP / (TP + FN)                                (the paper's definitions)

mIoU and mAcc are means over the classes that occur in the test masks; one that does not is in no mean, even where it
was answered (which counts against the classes it was painted over). aAcc is the share of pixels that are right. Many,
medium and few are thirds of the classes by their training pixels.
"""

import csv
from collections.abc import Sequence
from os import PathLike

import numpy as np
import torch
from torch import Tensor

from longtail.errors import LongtailError
from longtail.measure.groups import NAMES, Groups
from longtail.measure.metrics import Summary

HEADLINE = {
    "miou": "mIoU",
    "macc": "mAcc",
    "aacc": "aAcc",
    **{f"miou_{name}": f"IoU {name}" for name in NAMES},
    **{f"macc_{name}": f"Acc {name}" for name in NAMES},
}
COLUMNS = ("index", "name", "train_pixels", "group", "pixels", "correct", "answered", "iou", "accuracy")


class Confusion:
    """Pixels by true class and answer, [C, C]: the only state. Merging passes or ranks is an addition of `state`."""

    def __init__(self, num_classes: int, device: torch.device | str = "cpu") -> None:
        self.num_classes = num_classes
        self.state = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)

    def update(self, answers: Tensor, labels: Tensor) -> None:
        """Both of any one shape; where a label is negative nothing is counted."""
        known = labels >= 0
        pairs = labels[known] * self.num_classes + answers[known]
        self.state += torch.bincount(pairs, minlength=self.num_classes**2).view_as(self.state)

    def matrix(self) -> np.ndarray:
        return self.state.cpu().numpy()


def accuracy(matrix: np.ndarray) -> np.ndarray:
    """[C], NaN where a class was not measured."""
    return _share(np.diag(matrix), matrix.sum(1), matrix)


def iou(matrix: np.ndarray) -> np.ndarray:
    """[C], NaN where a class was not measured."""
    return _share(np.diag(matrix), matrix.sum(1) + matrix.sum(0) - np.diag(matrix), matrix)


def _share(part: np.ndarray, whole: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.full(len(part), np.nan), where=matrix.sum(1) > 0)


def summarise(matrix: np.ndarray, groups: Groups) -> Summary:
    if not matrix.any():
        raise LongtailError("no test pixel has a label: look at the masks of the test split.")
    ious, accuracies = iou(matrix), accuracy(matrix)
    by_group = {
        f"{name}_{group}": _mean(values[groups.codes == code])
        for name, values in (("miou", ious), ("macc", accuracies))
        for code, group in enumerate(NAMES)
    }
    return {
        "miou": _mean(ious),
        "macc": _mean(accuracies),
        "aacc": float(np.diag(matrix).sum() / matrix.sum()),
        **by_group,
        "worst_iou": float(np.nanmin(ious)),
        "pixels": float(matrix.sum()),
        "classes_measured": float(np.isfinite(ious).sum()),
    }


def _mean(values: np.ndarray) -> float | None:
    measured = values[np.isfinite(values)]
    return float(measured.mean()) if len(measured) else None


def write_csv(
    path: str | PathLike, matrix: np.ndarray, classes: Sequence[str], train_counts: np.ndarray, groups: Groups
) -> None:
    """One row a class; a cell that was not measured is empty."""
    ious, accuracies = iou(matrix), accuracy(matrix)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for c, name in enumerate(classes):
            counts = int(matrix[c].sum()), int(matrix[c, c]), int(matrix[:, c].sum())
            measured = (float(ious[c]), float(accuracies[c])) if counts[0] else ("", "")
            writer.writerow((c, name, int(train_counts[c]), groups.name(c), *counts, *measured))


def read_csv(path: str | PathLike) -> dict[str, np.ndarray]:
    """The columns of such a file by name; NaN where a cell is empty."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise LongtailError(f"{path} is not the per_class.csv of a segmentation.")
    text = ("name", "group")
    return {
        name: np.array([row[name] if name in text else float(row[name] or "nan") for row in rows]) for name in COLUMNS
    }
