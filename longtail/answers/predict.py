"""`longtail predict`: classes of images, one line each as they come, under the prior of wherever they were taken.

An image that cannot be answered is a line with its error, and the stream goes on.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from longtail.answers.run import PriorLike, Run, read_prior, ruled_out
from longtail.data.augment import ImageFormat, centred
from longtail.data.batch_augment import normalise
from longtail.data.columns import USUAL
from longtail.data.decode import BadImage, decode
from longtail.data.folders import IMAGE_SUFFIXES
from longtail.errors import LongtailError
from longtail.files import make_folder
from longtail.measure.priors import estimate_prior
from longtail.prior import log_prior

LOW_SUPPORT = 20  # training images: a class with fewer is flagged, as the benchmarks' few-shot classes are

ImageLike = str | Path | np.ndarray  # a file, or uint8 [H, W, 3] RGB


@dataclass(frozen=True)
class Prediction:
    image: str
    top: tuple[tuple[str, float], ...] = ()  # (class, probability), likeliest first
    group: str = ""  # of the class answered: many, medium or few
    low_support: bool = False  # it had fewer than 20 training images
    error: str = ""  # why there is no answer

    @property
    def answer(self) -> str:
        return self.top[0][0] if self.top else ""

    @property
    def probability(self) -> float | None:
        return self.top[0][1] if self.top else None


def predict(
    run: Run,
    images: Iterable[ImageLike],
    *,
    prior: PriorLike = "uniform",
    head: str = "cosine",
    absent: Sequence[str] = (),
    top: int = 1,
    resize: bool = False,
    batch_size: int = 64,
) -> Iterator[Prediction]:
    """Answers in the order of the images, a batch at a time.

    With prior="estimate" the class mix is learned from these images first, so that nothing comes before all are read.
    `resize` lets a model that was trained on small images as they are answer about images of another size.
    """
    run.check_head(head, prior)
    if not 1 <= top <= len(run.classes):
        raise LongtailError(f"--top must lie between 1 and the number of classes, {len(run.classes)}, not {top}")
    if batch_size < 1:
        raise LongtailError(f"--batch-size is 1 or more, not {batch_size}")
    mask_c = ruled_out(run.classes, absent)
    word = prior if isinstance(prior, str) else ""
    batches: Iterable[tuple[list[Outcome], Tensor]] = _scored(
        run, images, head, as_trained=word == "as-trained", resize=resize, batch_size=batch_size
    )
    if word == "estimate":
        batches = list(batches)
        answered = [loglik_bc for _, loglik_bc in batches if len(loglik_bc)]
        if not answered:
            raise LongtailError("there are no images to estimate the class mix from: give at least one readable image")
        estimate = estimate_prior(torch.cat(answered).numpy(), mask_c.isfinite().numpy(), replicates=0)
        added_c = log_prior(torch.from_numpy(estimate.prior))
    elif word == "as-trained":
        added_c = mask_c
    else:
        added_c = read_prior(prior, run.classes, {"train": run.counts}, ("estimate", "as-trained")) + mask_c
    groups, counts = run.groups, run.counts
    for outcomes, loglik_bc in batches:
        probabilities, classes = (loglik_bc + added_c).softmax(1).topk(top)
        answers = zip(probabilities.tolist(), classes.tolist(), strict=True)
        for name, error in outcomes:
            if error:
                yield Prediction(name, error=error)
                continue
            best, indices = next(answers)
            named = tuple((run.classes[c], p) for c, p in zip(indices, best, strict=True))
            first = indices[0]
            yield Prediction(name, named, groups.name(first), bool(counts[first] < LOW_SUPPORT))


Outcome = tuple[str, str]  # image, error


@torch.no_grad()
def _scored(
    run: Run, images: Iterable[ImageLike], head: str, *, as_trained: bool, resize: bool, batch_size: int
) -> Iterator[tuple[list[Outcome], Tensor]]:
    """Batches of outcomes, and scores [good ones, C] on the CPU. The next batch is decoded while one is scored."""
    prepare = Preparation(run.model.card, resize)
    numbered = enumerate(images)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:

        def submit() -> list[Future[tuple[str, Tensor | None, str]]]:
            return [pool.submit(prepare, i, image) for i, image in islice(numbered, batch_size)]

        coming = submit()
        while coming:
            batch, coming = [future.result() for future in coming], submit()
            good = [pixels for _, pixels, _ in batch if pixels is not None]
            scores = torch.empty(0, len(run.classes))
            if good:
                x = normalised(run, torch.stack(good))
                with run.device.autocast():
                    scores = (run.model.scores(x) if as_trained else run.model(x, head)).float().cpu()
            yield [(name, error) for name, _, error in batch], scores


def normalised(run: Run, pixels: Tensor) -> Tensor:
    """uint8 [B, 3, H, W] as the model takes them, on its device."""
    card, device = run.model.card, run.device
    return normalise(pixels.to(device.torch), card["mean"], card["std"], torch.float32, device.channels_last)


class Preparation:
    """An image -> uint8 [3, size, size] as the model was evaluated, or the sentence why not."""

    def __init__(self, card: dict, resize: bool) -> None:
        self.size = tuple(card["image_size"])
        self.as_they_are = not card["resize"] and not resize
        self.format = ImageFormat(self.size[0], interpolation=card["interpolation"], crop_pct=card["crop_pct"])

    def __call__(self, number: int, image: ImageLike) -> tuple[str, Tensor | None, str]:
        name = f"image {number}" if isinstance(image, np.ndarray) else str(image)
        try:
            return name, self.pixels(image, name), ""
        except LongtailError as error:
            return name, None, str(error)

    def pixels(self, image: ImageLike, name: str) -> Tensor:
        if isinstance(image, np.ndarray):
            if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
                raise BadImage(f"{name} must be uint8 [H, W, 3], found {image.dtype} {list(image.shape)}.")
            array = image
        else:
            try:
                array = decode(Path(image).read_bytes(), name)
            except OSError as error:
                raise BadImage(f"{name} cannot be read ({error.strerror}).") from error
        if not self.as_they_are:
            return centred(array, self.format)
        if array.shape[:2] != self.size:
            raise BadImage(
                f"{name} is {array.shape[1]} x {array.shape[0]}, but the model was trained on images of "
                f"{self.size[1]} x {self.size[0]} as they are: bring it to that size, or say --resize."
            )
        return torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)


# ---- which images ---------------------------------------------------------------------------------------------------


def find_images(given: Sequence[str | Path]) -> Iterator[str]:
    """Paths of images: files, what is in folders, what lists name, or the lines of the standard input for `-`."""
    for source in given:
        if str(source) == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        elif (path := Path(source)).is_dir():
            yield from _in_folder(path)
        elif path.suffix.lower() in (".csv", ".tsv", ".txt"):
            yield from _in_list(path)
        else:
            yield str(path)


def _in_folder(folder: Path) -> Iterator[str]:
    files = (Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names)
    images = sorted(str(file) for file in files if file.suffix.lower() in IMAGE_SUFFIXES and file.name[0] != ".")
    if not images:
        raise LongtailError(f"there is no image in the folder {folder}")
    yield from images


def _in_list(path: Path) -> Iterator[str]:
    """The column of images, by one of its usual names, else the first. Relative to the list's folder.

    A TXT list may have a label after each path, as the benchmarks' lists do.
    """
    label = re.compile(r"\s+\d+$" if path.suffix.lower() == ".txt" else r"(?!)")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
            first = next(rows, None)
            if first is None:
                raise LongtailError(f"{path} lists no image")
            lower = [cell.strip().lower() for cell in first]
            column = next((lower.index(name) for name in USUAL["image"] if name in lower), None)
            if column is None:
                yield str(path.parent / label.sub("", first[0]))
            for row in rows:
                if row:
                    yield str(path.parent / label.sub("", row[column or 0]))
    except (OSError, UnicodeDecodeError, csv.Error, IndexError) as error:
        raise LongtailError(f"{path} cannot be read as a list of images ({error})") from None


# ---- lines out ------------------------------------------------------------------------------------------------------


def write(predictions: Iterable[Prediction], out: Path | None, kind: str, top: int) -> tuple[int, list[Prediction]]:
    """CSV or JSON lines to a file or the standard output; how many, and those without an answer.

    A file carries the name `<out>.partial` until its last line is written.
    """
    total, failed = 0, []
    with _opened(out) as file:
        table = csv.writer(file, lineterminator="\n")
        if kind == "csv":
            more = [f"{name}_{k}" for k in range(2, top + 1) for name in ("class", "probability")]
            table.writerow(["image", "class", "probability", "group", "low_support", *more, "error"])
        for prediction in predictions:
            total += 1
            if prediction.error:
                failed.append(prediction)
            if kind == "csv":
                table.writerow(_row(prediction, top))
            else:
                file.write(json.dumps(_object(prediction), ensure_ascii=False) + "\n")
            file.flush()
    return total, failed


def _row(p: Prediction, top: int) -> list[str]:
    cells = [cell for name, probability in p.top for cell in (name, f"{probability:.6f}")] or [""] * (2 * top)
    about = [p.group, str(p.low_support).lower()] if p.top else ["", ""]
    return [p.image, *cells[:2], *about, *cells[2:], p.error]


def _object(p: Prediction) -> dict:
    if p.error:
        return {"image": p.image, "error": p.error}
    about = {"image": p.image, "class": p.answer, "probability": p.probability, "group": p.group}
    top = [{"class": name, "probability": probability} for name, probability in p.top]
    return about | {"low_support": p.low_support} | ({"top": top} if len(top) > 1 else {})


def _opened(out: Path | None) -> AbstractContextManager[TextIO]:
    return nullcontext(sys.stdout) if out is None else _partial(out)


@contextmanager
def _partial(out: Path) -> Iterator[TextIO]:
    make_folder(out.parent)
    partial = out.with_name(out.name + ".partial")
    try:
        with open(partial, "w", newline="", encoding="utf-8") as file:
            yield file
        os.replace(partial, out)
    except OSError as error:
        raise LongtailError(f"cannot write {out} ({error.strerror}): choose another --out") from error
