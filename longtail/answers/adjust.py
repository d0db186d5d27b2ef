"""`longtail adjust`: better answers without training, by another prior, a temperature, or a tau-normalised head.

A run's scores say what was added to them in training, a file of scores has to say it, and what was adjusted says so
itself: nothing is corrected twice.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longtail.answers.run import PriorLike, Run, collected, questions, read_prior
from longtail.data.table import ImageTable
from longtail.engine import checkpoint
from longtail.engine.trained import Model
from longtail.errors import LongtailError
from longtail.files import make_folder
from longtail.likelihood.linear import Linear
from longtail.measure import logits
from longtail.measure.calibrate import choose_tau, fit_temperature
from longtail.measure.counters import Counters
from longtail.measure.groups import Groups, by_terciles
from longtail.measure.metrics import HEADLINE, Summary, render, summarise
from longtail.measure.priors import estimate_prior
from longtail.prior import log_prior, uniform

WEIGHT, BIAS = "objective.likelihood.linear.weight", "objective.likelihood.linear.bias"
_BESIDE = ("config.json", "classes.csv", "backbone.safetensors", "bank.safetensors")


@dataclass(frozen=True)
class Adjusted:
    """What was done, what it does to the numbers, and the result."""

    what: str
    measured: str  # on which images, in words
    rows: Mapping[str, Summary]  # before and after
    notes: tuple[str, ...]
    groups: Groups
    result: Model | logits.Logits
    source: Path

    def __str__(self) -> str:
        return "\n".join(
            [
                *self.notes,
                str(self.groups),
                "",
                render(self.rows, HEADLINE),
                f"{self.measured}; per cent",
            ]
        )

    def save(self, out: Path | None = None) -> Path:
        """A run folder beside the original, or an .npz beside the file."""
        if isinstance(self.result, logits.Logits):
            out = out or self.source.with_suffix(".adjusted.npz")
            logits.save(out, self.result)
            return out
        out = out or self.source / "adjusted"
        make_folder(out)
        for name in _BESIDE:
            if (self.source / name).exists():
                shutil.copy(self.source / name, out / name)
        tensors, _ = checkpoint.load_model(self.source)
        state = self.result.method.state_dict()
        checkpoint.save_model(out, {name: state[name] for name in tensors}, self.result.card)
        return out


def adjust_run(
    run: Run,
    data: str | Path | ImageTable | None = None,
    *,
    prior: PriorLike = "uniform",
    temperature: float | str | None = None,
    tau: float | str | None = None,
) -> Adjusted:
    """`temperature` is a number, "fit" (on val), or None: fitted where there is val. `tau`: a number or "fit"."""
    if run.model.adjusted:
        raise LongtailError(
            f"{run.folder} was already adjusted ({run.model.adjusted['what']}): adjust the original run instead"
        )
    if not run.folder.is_dir():
        raise LongtailError(f"{run.folder} is an exported model: adjust the run it came from, and export that")
    asked = questions(run, data)
    val = questions(run, data, "val") if len(asked.table.rows("val")) else None
    as_trained, labels = collected(run, asked.loader, None)
    rows = {"as trained": _summary(as_trained, labels, run.counts, run.groups)}
    measured = f"{asked.table.name} {asked.split}, {len(labels):,} images"
    if tau is not None:
        return _tau_normalised(run, val, tau, as_trained, labels, rows, measured)

    loglik, _ = collected(run, asked.loader, uniform(len(run.classes)))
    counts = {"train": run.counts} | {name: asked.table.counts(name) for name in ("val", "test")}
    val_pair = None if val is None else collected(run, val.loader, uniform(len(run.classes)))
    t, notes = _temperature(temperature, val_pair, "train with --hold-out 0.05")
    word, log_prior_c = _prior(prior, run.classes, counts, loglik / t)
    rows[f"prior {word}"] = _summary(loglik + log_prior_c.numpy(), labels, run.counts, run.groups)
    if t != 1:
        rows[f"prior {word}, temperature {t:.3g}"] = _summary(
            loglik / t + log_prior_c.numpy(), labels, run.counts, run.groups
        )
    what = f"prior {word}, temperature {t:.4g}"
    change = {"what": what, "temperature": t, "log_prior": log_prior_c.tolist()}
    return Adjusted(what, measured, rows, notes, run.groups, _changed(run.model, change), run.folder)


def adjust_scores(
    path: Path,
    *,
    val: Path | None = None,
    prior: PriorLike = "uniform",
    temperature: float | str | None = None,
    tau: float | str | None = None,
) -> Adjusted:
    """The same for a file of anybody's scores; the temperature is fitted on another such file."""
    if tau is not None:
        raise LongtailError(
            "tau-normalisation needs the head's weights, which a file of scores does not have: give a run"
        )
    given = logits.load(path)
    known = given.labels >= 0
    counts = {"train": given.counts, "test": np.bincount(given.labels[known], minlength=len(given.classes))}
    val_pair = None
    if val is not None:
        fitted_on = logits.load(val)
        labelled = fitted_on.labels >= 0
        if fitted_on.classes != given.classes:
            raise LongtailError(f"{val} has other classes than {path}: give scores of the same model")
        val_pair = fitted_on.loglik()[labelled], fitted_on.labels[labelled]
    t, notes = _temperature(temperature, val_pair, "give the scores of val images with --val")
    word, log_prior_c = _prior(prior, given.classes, counts, given.loglik() / t)
    after = logits.adjust(given, log_prior_c.double().softmax(0).numpy(), t)  # refuses what was adjusted before
    groups = by_terciles(given.counts)
    stated = given.prior if isinstance(given.prior, str) else "given"
    rows: dict[str, Summary] = {}
    if known.any():
        for name, scores in {
            f"as they came (prior {stated})": given.scores,
            f"prior {word}, temperature {t:.3g}": after.scores,
        }.items():
            rows[name] = _summary(scores[known], given.labels[known], given.counts, groups)
    else:
        notes += ("no image has a label, so nothing can be measured",)
    return Adjusted(after.adjusted, f"{path}, {known.sum():,} labelled images", rows, notes, groups, after, path)


def _tau_normalised(run: Run, val, tau: float | str, scores: np.ndarray, labels, rows: dict, measured: str) -> Adjusted:
    head: Any = run.model.method.objective.likelihood
    if not isinstance(head, Linear):
        raise LongtailError(
            f"tau-normalisation is for linear heads, and {run.folder} has a {type(head).__name__.lower()} one, "
            "whose class vectors have one length already"
        )
    state = run.model.method.state_dict()
    weight, bias = state[WEIGHT].cpu(), state[BIAS].cpu()
    notes: tuple[str, ...] = ()
    if tau == "fit":
        if val is None:
            raise LongtailError("tau is chosen on val, and there is none: train with --hold-out 0.05, or give a number")
        chosen, tried = choose_tau(*collected(run, val.loader, None), weight.numpy(), bias.numpy())
        notes = (f"tau {chosen:g}: balanced accuracy {100 * tried.max():.1f} % on val",)
    else:
        chosen = number(tau, "--tau")
    scaled = weight / weight.norm(dim=1, keepdim=True) ** chosen
    after = (scores - bias.numpy()) / weight.norm(dim=1).numpy() ** chosen
    rows[f"tau {chosen:g}"] = _summary(after, labels, run.counts, run.groups)
    what = f"tau {chosen:g}"
    model = _changed(run.model, {"what": what, "tau": chosen})
    model.method.load_state_dict({**state, WEIGHT: scaled, BIAS: torch.zeros_like(bias)})
    return Adjusted(what, measured, rows, notes, run.groups, model, run.folder)


def _changed(model: Model, adjusted: dict[str, Any]) -> Model:
    changed = Model(copy.deepcopy(model.method), model.card | {"adjusted": adjusted}, model.path)
    return changed.eval().requires_grad_(False)


def _temperature(
    asked: float | str | None, val: tuple[np.ndarray, np.ndarray] | None, remedy: str
) -> tuple[float, tuple[str, ...]]:
    """The temperature and a line about it."""
    if asked not in (None, "fit"):
        t = number(asked, "--temperature")
        if t <= 0:
            raise LongtailError(f"a temperature is over 0, not {t:g}")
        return t, ()
    if val is None:
        if asked == "fit":
            raise LongtailError(f"the temperature is fitted on val, and there is none: {remedy}")
        return 1.0, (f"temperature 1: it is fitted on val, and there is none ({remedy})",)
    t = fit_temperature(*val)
    return t, (f"temperature {t:.4g}: fitted on {len(val[1]):,} val images",)


def _prior(prior: PriorLike, classes, counts, loglik: np.ndarray) -> tuple[str, torch.Tensor]:
    if isinstance(prior, str) and prior == "estimate":
        return "estimated", log_prior(torch.from_numpy(estimate_prior(loglik, replicates=0).prior))
    return str(prior) if isinstance(prior, str | Path) else "given", read_prior(prior, classes, counts, ("estimate",))


def number(text: float | str | None, flag: str) -> float:
    try:
        return float(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise LongtailError(f"{flag} takes a number or `fit`, not {text!r}") from None


def _summary(scores: np.ndarray, labels: np.ndarray, counts: np.ndarray, groups: Groups) -> Summary:
    counters = Counters(len(counts))
    for start in range(0, len(labels), 1024):
        part = slice(start, start + 1024)
        counters.update(torch.from_numpy(np.asarray(scores[part], np.float32)), torch.from_numpy(labels[part]))
    return summarise(counters.per_class(), counts, lambda counts: groups)
