"""Scores in a file, anybody's: what they are of, and which prior they carry.

An `.npz` of these arrays (none pickled):

    scores   [N, C] floats, before the softmax
    labels   [N] integers, the true class; -1 where it is not known
    classes  [C] names
    counts   [C] training images of each class
    prior    "train" if the training mix is still in the scores (plain cross-entropy), "uniform" if not (balanced
             softmax, logit adjustment, class-balanced sampling, or corrected since), or [C] probabilities
    adjusted what was done to the scores since, as text; only in files written by `adjust`

The statement of the prior is required: scores do not show whether a correction was already made, and one that is made
twice (or never) costs more than most methods gain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from typing import NoReturn

import numpy as np
import torch

from longtail.errors import LongtailError
from longtail.prior import log_prior, prior_free, uniform

_REQUIRED = ("scores", "labels", "classes", "counts")


@dataclass(frozen=True)
class Logits:
    scores: np.ndarray  # [N, C]
    labels: np.ndarray  # [N] int64, -1 unknown
    classes: tuple[str, ...]
    counts: np.ndarray  # [C] int64
    prior: str | np.ndarray  # "train", "uniform" or [C] probabilities
    adjusted: str = ""

    def carried(self) -> torch.Tensor:
        """[C] log prior that is in the scores."""
        if isinstance(self.prior, str):
            return log_prior(torch.from_numpy(self.counts)) if self.prior == "train" else uniform(len(self.classes))
        return log_prior(torch.from_numpy(self.prior))

    def loglik(self) -> np.ndarray:
        """[N, C] the scores without it."""
        return prior_free(torch.from_numpy(self.scores), self.carried(), uniform(len(self.classes))).numpy()


def adjust(logits: Logits, prior: np.ndarray, temperature: float = 1.0) -> Logits:
    """Take the carried prior out, divide by the temperature, add `prior` [C]: loglik / T + log prior. Only once."""
    if logits.adjusted:
        raise LongtailError(
            f"these scores were already adjusted ({logits.adjusted}): adjust the original scores instead."
        )
    scores = logits.loglik() / temperature + log_prior(torch.from_numpy(prior)).numpy()
    before = logits.prior if isinstance(logits.prior, str) else "given"
    done = f"prior {before} replaced, temperature {temperature:.4g}"
    return replace(logits, scores=scores, prior=prior / prior.sum(), adjusted=done)


def save(path: str | PathLike, logits: Logits) -> None:
    arrays = {name: np.asarray(getattr(logits, name)) for name in (*_REQUIRED, "prior", "adjusted")}
    with open(path, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load(path: str | PathLike) -> Logits:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zip, zlib and NumPy have exceptions of their own for every kind of damage
        raise LongtailError(f"cannot read {path} as an .npz of arrays ({error}): write it with numpy.savez.") from None
    if missing := [name for name in _REQUIRED if name not in arrays]:
        raise LongtailError(f"{path} has no {' and no '.join(missing)}: it needs {', '.join(_REQUIRED)} and prior.")
    if "prior" not in arrays:
        raise LongtailError(
            f"{path} does not say which prior its scores carry: add prior='train' (plain cross-entropy), 'uniform' "
            "(balanced softmax, logit adjustment, balanced sampling) or C probabilities, as in "
            f"numpy.savez('{path}', **numpy.load('{path}'), prior='train')."
        )
    return _checked(path, **{name: arrays[name] for name in arrays if name in (*_REQUIRED, "prior", "adjusted")})


def _checked(path, scores, labels, classes, counts, prior, adjusted="") -> Logits:
    def refuse(found: str) -> NoReturn:
        raise LongtailError(f"{path}: {found}.")

    if scores.ndim != 2 or not np.issubdtype(scores.dtype, np.floating):
        refuse(f"scores must be a table of floats [images, classes], found {scores.dtype} {scores.shape}")
    images, num_classes = scores.shape
    if labels.shape != (images,) or not np.issubdtype(labels.dtype, np.integer):
        refuse(f"labels must be {images} integers, one for each row of scores, found {labels.dtype} {labels.shape}")
    if images and (labels.min() < -1 or labels.max() >= num_classes):
        refuse(f"labels must lie between -1 (unknown) and {num_classes - 1}, found {labels.min()} to {labels.max()}")
    if classes.shape != (num_classes,) or counts.shape != (num_classes,):
        refuse(f"classes and counts must have {num_classes} entries, found {classes.shape} and {counts.shape}")
    if not np.issubdtype(counts.dtype, np.number) or (counts < 0).any() or counts.sum() <= 0:
        refuse("counts must be the number of training images of each class, not negative and not all zero")
    if prior.ndim == 0:
        stated = str(prior)
        if stated not in ("train", "uniform"):
            refuse(f"prior is {stated!r}: it must be 'train', 'uniform' or {num_classes} probabilities")
    elif prior.shape != (num_classes,) or not np.issubdtype(prior.dtype, np.number):
        refuse(f"prior must be {num_classes} probabilities, found {prior.dtype} {prior.shape}")
    elif (prior < 0).any() or abs(prior.sum() - 1) > 1e-3:
        refuse(f"prior must be {num_classes} probabilities that sum to 1, found {prior.shape} with sum {prior.sum():g}")
    else:
        stated = prior
    names = tuple(str(name) for name in classes)
    return Logits(scores, labels.astype(np.int64), names, counts.astype(np.int64), stated, str(adjusted))
