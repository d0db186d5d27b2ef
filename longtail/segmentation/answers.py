"""A trained segmentation, asked again: under another prior, or under a whole range of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from longtail.engine import trained
from longtail.engine.device import Device, choose
from longtail.errors import LongtailError
from longtail.files import read_json
from longtail.measure.groups import Groups, by_terciles
from longtail.prior import from_file, log_prior, uniform
from longtail.recipe import Recipe, from_dict
from longtail.segmentation import model as models
from longtail.segmentation import sources, stages
from longtail.segmentation.metrics import Confusion
from longtail.segmentation.model import PixelModel
from longtail.segmentation.table import PixelTable

WORDS = ("as-trained", "uniform", "train", "val", "test")  # of --prior


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder opened, and the data it is asked about, which painting one's own images does not need."""

    folder: Path
    recipe: Recipe
    model: PixelModel
    device: Device
    data: str

    @cached_property
    def table(self) -> PixelTable:
        table = sources.load(self.data, root=self.recipe.data.root)
        trained.same_classes(table.classes, self.model.classes, self.folder)
        table.counted["train"] = self.counts  # other data keep the training's counts
        return table

    @property
    def counts(self) -> np.ndarray:
        """[C] int64 training pixels."""
        return np.array(self.model.card["counts"], np.int64)

    @property
    def groups(self) -> Groups:
        return by_terciles(self.counts)

    @property
    def alpha(self) -> float:
        """What multiplied log p in the loss of the classifier that answers; 0 for plain cross-entropy."""
        settings = self.model.card["settings"]
        return float(settings.get("alpha_cls", settings.get("tau", 0.0 if self.method == "cross_entropy" else 1.0)))

    @property
    def alpha_gml(self) -> float:
        """The same in L_GML, where there is one; alpha for all others."""
        return float(self.model.card["settings"].get("alpha", self.alpha))

    @property
    def method(self) -> str:
        return self.model.card["method"]


def open_run(folder: Path, data: str | None = None, device: str = "auto") -> Run:
    model = models.load(folder)
    about = folder if (folder / "config.json").exists() else folder.parent  # a teacher lies in its student's folder
    recipe = from_dict(read_json(about / "config.json")["recipe"], str(about / "config.json"))
    place = choose(recipe.precision, device)
    model.to(place.torch, memory_format=place.memory_format)  # type: ignore[call-overload]
    return Run(folder, recipe, model, place, data or recipe.data.source)


def read_prior(prior: str, run: Run) -> torch.Tensor | None:
    """`--prior` in words: as-trained (None), uniform, the pixels of a split, or a file."""
    if prior == "as-trained":
        return None
    if prior == "uniform":
        return uniform(len(run.model.classes))
    if prior in ("train", "val", "test"):
        return log_prior(torch.from_numpy(run.counts if prior == "train" else run.table.counts(prior)))
    if not Path(prior).exists():
        raise LongtailError(f"--prior takes {', '.join(WORDS)} or a file, and there is no {prior!r}")
    return from_file(prior, run.model.classes)


def under(run: Run, prior: str) -> stages.Answer:
    """What answers with the run's model under a prior."""
    added = read_prior(prior, run)
    if added is None:
        return run.model.scores
    added = added.to(run.device.torch)[:, None, None]
    return lambda images, size: run.model(images, size) + added


def evaluate(run: Run, prior: str = "as-trained", split: str | None = None) -> np.ndarray:
    """The confusion matrix of the images of a split, [C, C]; the one that is tested on, if not said."""
    loader = stages.whole_images(stages.pixels_of(run.recipe), run.table, run.device, split=split)
    return stages.count(under(run, prior), loader, len(run.model.classes), run.device)


@torch.no_grad()
def sweep(run: Run, alphas: Sequence[float]) -> list[np.ndarray]:
    """The confusion matrices of one model answering as if trained at each alpha: loglik + (1 - alpha) log p.

    Only answers move; what a prior does to the features in training this cannot show.
    """
    log_p = log_prior(torch.from_numpy(run.counts))
    shifts = [(1 - alpha) * log_p.nan_to_num(neginf=0)[:, None, None].to(run.device.torch) for alpha in alphas]
    counted = [Confusion(len(run.model.classes), run.device.torch) for _ in alphas]
    for batch in stages.whole_images(stages.pixels_of(run.recipe), run.table, run.device).epoch(0):
        with run.device.autocast():
            loglik = run.model(batch.views[0], (batch.labels.shape[1], batch.labels.shape[2]))
        for confusion, shift in zip(counted, shifts, strict=True):
            confusion.update((loglik + shift).argmax(1), batch.labels)
    return [confusion.matrix() for confusion in counted]
