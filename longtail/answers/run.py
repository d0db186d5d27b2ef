"""A trained run opened to be asked: its model, the images it is asked about, and the prior it answers under."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longtail.data import benchmarks
from longtail.data.augment import ImageFormat
from longtail.data.loader import Loader
from longtail.data.table import SPLITS, ImageTable, PixelStore, in_memory
from longtail.engine import stages, trained
from longtail.engine.device import Device, choose
from longtail.engine.inputs import Inputs
from longtail.engine.runfolder import FORMAT
from longtail.errors import LongtailError
from longtail.files import read_json
from longtail.measure.groups import Groups, by_terciles, by_threshold
from longtail.prior import from_file, log_prior, uniform
from longtail.recipe import Data, Recipe, Stage, from_dict, nearest

PriorLike = (
    str | Path | Mapping[str, float] | np.ndarray
)  # a word, a file, probabilities by class name or in class order


SUFFIX = ".safetensors"  # of a model in one file


@dataclass(frozen=True)
class Run:
    folder: Path
    recipe: Recipe
    model: trained.Model
    device: Device
    table: ImageTable | None = None  # its data, where they were given as a table and not by name

    @property
    def beside(self) -> Path:
        """The folder for what is made of it; of an exported model its own."""
        return self.folder if self.folder.is_dir() else self.folder.parent

    @property
    def format(self) -> ImageFormat:
        """How the model takes images, as its card says."""
        card = self.model.card
        return ImageFormat(
            card["image_size"][0], tuple(card["mean"]), tuple(card["std"]), card["interpolation"], card["crop_pct"]
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return self.model.classes

    @property
    def counts(self) -> np.ndarray:
        """[C] int64 training images."""
        return np.array(self.model.card["counts"], dtype=np.int64)

    @property
    def groups(self) -> Groups:
        return (by_threshold if self.recipe.groups == "threshold" else by_terciles)(self.counts)

    def check_head(self, head: str, prior: object = None) -> None:
        if head != "cosine" and isinstance(prior, str) and prior == "as-trained":
            raise LongtailError(f"as-trained are the classifier's own scores: give --head {head} another --prior")
        if head in self.model.heads:
            return
        if head in ("kernel", "both"):
            raise LongtailError(
                f"{self.folder} has no bank of samples, so --head {head} cannot answer: the method gml has one"
            )
        raise LongtailError(f"there is no head {head!r}{nearest(head, ('cosine', 'kernel', 'both'))}")


RunLike = Run | trained.Model | str | Path


def open_run(run: RunLike, device: str = "auto") -> Run:
    """A run's folder, a safetensors file that `longtail export` wrote, or what `longtail.load` made of one."""
    if isinstance(run, Run):
        return run
    if isinstance(run, trained.Model):
        recipe = _recipe_of(run)
        return Run(run.path, recipe, run, choose(recipe.precision, str(next(run.parameters()).device)))
    path = Path(run)
    if not path.is_dir() and path.suffix != SUFFIX:
        raise LongtailError(f"{path} is not the folder of a run: give the one that `longtail train` printed")
    model = trained.load(path)
    recipe = _recipe_of(model)
    place = choose(recipe.precision, device)
    model.to(place.torch, memory_format=place.memory_format)  # type: ignore[call-overload]
    return Run(path, recipe, model, place)


def _recipe_of(model: trained.Model) -> Recipe:
    if model.path.is_file():  # exported: it says how to answer, not how it was trained
        stage = Stage(method=model.card["method"], settings=model.card["settings"], model=model.card["model"])
        return Recipe(Data(""), (stage,), groups=model.card.get("groups", "terciles"))
    # A teacher's folder lies in its student's, which has the description of both.
    about = model.path if (model.path / "config.json").exists() else model.path.parent
    described = read_json(about / "config.json")
    if described.get("format") != FORMAT:
        raise LongtailError(
            f"{about}/config.json was written by another longtail (format {described.get('format')}): use that one"
        )
    return from_dict(described.get("recipe", {}), str(about / "config.json"))


# ---- what it is asked about -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Questions:
    """The images of a split, under the model's class list."""

    table: ImageTable
    split: str
    loader: Loader

    @property
    def labels(self) -> np.ndarray:
        return self.table.labels[self.table.rows(self.split)].astype(np.int64)

    def counts(self, split: str | None = None) -> np.ndarray:
        return self.table.counts(split or self.split)


def questions(run: Run, data: str | Path | ImageTable | None = None, split: str | None = None) -> Questions:
    """The run's own data, or others whose classes have the same names; their test split, else val, else all of them."""
    if split is not None and split not in SPLITS:
        raise LongtailError(f"--split is one of {', '.join(SPLITS)}, not {split!r}")
    if data is None and not run.recipe.data.source:
        raise LongtailError(f"{run.folder} is an exported model, which knows no data: name some with --data")
    if data is None:
        table = run.table or stages.load_data(run.recipe.data)
        if table.classes != run.classes:
            raise LongtailError(
                f"{run.recipe.data.source} has changed since {run.folder} was trained (its classes differ): "
                "name the data with --data"
            )
    else:
        table = data if isinstance(data, ImageTable) else benchmarks.load(data, root=run.recipe.data.root)
        table = _as_trained_on(run, table)
    if split is None:
        split = next((name for name in ("test", "val") if len(table.rows(name))), "test")
        if not len(table.rows(split)):  # a folder of test images without a split: all of it
            table = replace(table, split=np.full(len(table), SPLITS.index(split), np.uint8))
    if not len(table.rows(split)):
        raise LongtailError(f"{table.name} has no {split} images: name another --split or --data")
    inputs = Inputs.of(run.recipe, table, run.device, format=run.format)
    return Questions(table, split, inputs.plain(split))


def _as_trained_on(run: Run, table: ImageTable) -> ImageTable:
    """Others' images under the run's class list and in the form it was trained on."""
    index = {name: c for c, name in enumerate(run.classes)}
    present = np.unique(table.labels)
    for c in present:
        if table.classes[c] not in index:
            raise LongtailError(
                f"{table.name} has a class {table.classes[c]!r} that {run.folder} does not know"
                f"{did_you_mean(table.classes[c], run.classes)}"
            )
    renumbered = np.array([index.get(name, -1) for name in table.classes], dtype=np.int32)
    table = replace(table, classes=run.classes, labels=renumbered[table.labels])
    if run.model.card["resize"]:
        if isinstance(table.images, PixelStore):
            raise LongtailError(f"{table.name} is held in memory at one size; {run.folder} reads photographs from disk")
        return table
    table, size = in_memory(table), run.model.card["image_size"]
    assert isinstance(table.images, PixelStore)
    height, width = table.images.pixels.shape[1:3]
    if [height, width] != size:
        raise LongtailError(
            f"the images of {table.name} are {width} x {height}, but {run.folder} was trained on images of "
            f"{size[1]} x {size[0]} as they are: bring them to that size first"
        )
    return table


@torch.no_grad()
def answered(
    run: Run, loader: Loader, log_prior_c: Tensor | None, head: str = "cosine"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of (log-likelihood + log prior [B, C] in float32, labels); without a prior the scores as trained."""
    run.check_head(head)
    added = None if log_prior_c is None else log_prior_c.to(run.device.torch)
    for batch in loader.epoch(0):
        with run.device.autocast():
            scores_bc = run.model.scores(batch.views[0]) if added is None else run.model(batch.views[0], head)
        yield scores_bc.float() if added is None else scores_bc.float() + added, batch.labels


def collected(
    run: Run, loader: Loader, log_prior_c: Tensor | None, head: str = "cosine"
) -> tuple[np.ndarray, np.ndarray]:
    """All of them: [N, C] float32 and labels [N]."""
    pairs = [(scores.cpu(), labels.cpu()) for scores, labels in answered(run, loader, log_prior_c, head)]
    scores, labels = (torch.cat(column).numpy() for column in zip(*pairs, strict=True))
    return scores, labels


# ---- the prior ------------------------------------------------------------------------------------------------------


def read_prior(
    prior: PriorLike, classes: Sequence[str], counts: Mapping[str, np.ndarray], more: Sequence[str] = ()
) -> Tensor:
    """[C] log probabilities; `counts` are the class counts that a word may name: train, val, test.

    `more` are the words of the verb that are no such prior, as estimate is: whoever mistypes one reads them all.
    """
    if isinstance(prior, np.ndarray):
        if prior.shape != (len(classes),) or abs(prior.sum() - 1) > 1e-3:
            raise LongtailError(
                f"a prior must be {len(classes)} probabilities that sum to 1, "
                f"these are {prior.size} with sum {prior.sum():g}"
            )
        return log_prior(torch.from_numpy(prior))
    if isinstance(prior, Mapping):
        for name in prior:
            if name not in classes:
                raise LongtailError(f"the prior names an unknown class {name!r}{did_you_mean(name, classes)}")
        return read_prior(np.array([prior.get(name, 0.0) for name in classes]), classes, counts)
    if prior == "uniform":
        return uniform(len(classes))
    if str(prior) in counts:
        if not counts[str(prior)].any():
            raise LongtailError(f"there are no {prior} images to take the class mix from")
        return log_prior(torch.from_numpy(counts[str(prior)]))
    if not Path(prior).exists():
        words = ", ".join(("uniform", *counts, *more))
        raise LongtailError(f"--prior takes {words} or a file here, and there is no file {str(prior)!r}")
    return from_file(prior, classes)


def did_you_mean(name: str, classes: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, classes, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def ruled_out(classes: Sequence[str], absent: Sequence[str]) -> Tensor:
    """[C] zeros, -inf for classes that cannot occur: added to any prior."""
    mask_c = torch.zeros(len(classes))
    for name in absent:
        if name not in classes:
            raise LongtailError(f"--absent {name!r}: the model knows no such class{did_you_mean(name, classes)}")
        mask_c[classes.index(name)] = -torch.inf
    if mask_c.isinf().all():
        raise LongtailError("--absent rules every class out: leave at least one")
    return mask_c
