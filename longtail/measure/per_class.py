"""What an evaluation knows about each class, as plain arrays and as `per_class.csv`.

Every number reported about a model is a function of these counts (see `metrics.py`), so anyone can recompute it from
the file; only the calibration bins and the confusions are not in it.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np

from longtail.errors import LongtailError
from longtail.measure.groups import Groups

COLUMNS = (
    "index",
    "name",
    "train_count",
    "group",
    "n",
    "correct",
    "correct5",
    "predicted",
    "accuracy",
    "mean_confidence",
)


@dataclass(frozen=True)
class PerClass:
    """Counts over one evaluation. "Confidence" is the probability of the answer, the largest of the image's C."""

    n: np.ndarray  # [C] int64, test images of the class
    correct: np.ndarray  # [C] int64, of those, answered with the class
    correct5: np.ndarray  # [C] int64, of those, with the class among the five likeliest
    predicted: np.ndarray  # [C] int64, images of any class answered with this one
    confidence: np.ndarray  # [C] float64, summed over the images of the class
    bins: np.ndarray | None = None  # [C, 15, 3] float64: images, correct, confidence, by class ANSWERED and confidence
    to_group: np.ndarray | None = None  # [C, 3] int64, images of the class by the group of the answer
    confusion: np.ndarray | None = None  # [C, C] int64, true class by answered class

    @property
    def accuracy(self) -> np.ndarray:
        """[C] float64, NaN where the class has no test image: not measured is not zero."""
        return np.divide(self.correct, self.n, out=np.full(len(self.n), np.nan), where=self.n > 0)


def write_csv(
    path: str | PathLike, table: PerClass, classes: Sequence[str], train_counts: np.ndarray, groups: Groups
) -> None:
    """One row a class; a cell that was not measured is empty."""
    assert len(classes) == len(train_counts) == len(table.n)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for c, name in enumerate(classes):
            n = int(table.n[c])
            counts = (n, int(table.correct[c]), int(table.correct5[c]), int(table.predicted[c]))
            means = (float(table.accuracy[c]), float(table.confidence[c] / n)) if n else ("", "")
            writer.writerow((c, name, int(train_counts[c]), groups.name(c), *counts, *means))


def read_csv(path: str | PathLike) -> tuple[PerClass, tuple[str, ...], np.ndarray]:
    """What `write_csv` wrote: counters (without calibration bins and confusion), class names, train counts."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise LongtailError(
                f"{path} has no column {', '.join(missing)}: it is not a per_class.csv of this package."
            )
        rows = list(reader)
    try:
        whole = {
            name: np.array([int(row[name]) for row in rows], dtype=np.int64)
            for name in ("index", "train_count", "n", "correct", "correct5", "predicted")
        }
        mean_confidence = np.array([float(row["mean_confidence"] or 0) for row in rows])
    except (TypeError, ValueError) as error:
        raise LongtailError(
            f"{path} holds a cell that is not a number ({error}): evaluate again to rewrite it."
        ) from None
    if not np.array_equal(whole["index"], np.arange(len(rows))):
        raise LongtailError(f"{path} does not list the classes 0 to {len(rows) - 1} in order: sort it by index.")
    counts = {name: whole[name] for name in ("n", "correct", "correct5", "predicted")}
    table = PerClass(**counts, confidence=mean_confidence * whole["n"])
    return table, tuple(row["name"] for row in rows), whole["train_count"]
