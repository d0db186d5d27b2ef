"""`longtail compare`: methods on the same data, under the same budget and several seeds, in one table and one figure.

Every cell, a method under a seed, is a `longtail train` in a process of its own, worked off by the queue: what is done
is skipped, what was cut off is carried on, and what fails is named and takes nothing with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longtail.data.benchmarks import is_benchmark
from longtail.engine import queue, stages
from longtail.engine.queue import Job, Outcome
from longtail.errors import LongtailError
from longtail.files import make_folder, read_json, write_json
from longtail.measure import plots
from longtail.measure.groups import Groups, by_terciles, by_threshold
from longtail.measure.metrics import HEADLINE, Spread, render, spread
from longtail.measure.per_class import read_csv
from longtail.methods import find
from longtail.recipe import Data, nearest
from longtail.recipes.change import data_of
from longtail.recipes.derive import derive

BUDGETS = ("total", "stage")
# Options of `longtail train` that methods can share. Not a teacher or a first stage, which few have.
OF_DATA = ("imbalance", "tail", "subset_seed", "data_root", "label_column", "group_column", "hold_out", "on_bad_image")
OF_STAGES = ("model", "batch_size", "lr", "augment", "sentences", "weights")
DIALS = (*OF_DATA, *OF_STAGES, "from_scratch", "precision", "device", "workers")
COST = {"epochs": "epochs", "hours": "hours", "seeds": "seeds"}


@dataclass(frozen=True)
class Row:
    """A method over its finished seeds."""

    method: str
    seeds: tuple[int, ...]
    summary: dict[str, Spread | None]
    epochs: tuple[int, ...]  # of each stage, a teacher's first
    hours: float  # of one seed, all stages

    def cells(self, of: int) -> dict[str, float | Spread | str | None]:
        each = " + ".join(str(epochs) for epochs in self.epochs if epochs)
        total = f"{sum(self.epochs)} ({each})" if "+" in each else each or "0"
        seeds = f"{len(self.seeds)}" + (f" of {of}" if len(self.seeds) < of else "")
        return {**self.summary, "epochs": total, "hours": f"{self.hours:.3g}", "seeds": seeds}


@dataclass(frozen=True)
class Comparison:
    """What a comparison has found so far; printed, it is the table."""

    data: str
    budget: str
    seeds: int
    rows: tuple[Row, ...]
    failed: tuple[tuple[str, str], ...]  # cell, why
    left: tuple[str, ...]  # cells that were not reached or not finished
    folder: Path
    figure: Path | None

    def __str__(self) -> str:
        rule = "all stages together" if self.budget == "total" else "each stage"
        lines = [render({row.method: row.cells(self.seeds) for row in self.rows}, HEADLINE | COST)] if self.rows else []
        lines += [
            f"{self.data}, mean ± deviation over seeds, the last epoch of each answered as trained, in per cent;",
            f"equal epochs in {rule}; hours are of one seed, a teacher's included",
            *(f"failed: {cell}: {why}" for cell, why in self.failed),
            *([f"not finished: {', '.join(self.left)}; the same command carries on"] if self.left else []),
        ]
        return "\n".join(lines)


def compare(
    data: str,
    methods: Sequence[str],
    *,
    seeds: int = 3,
    epochs: int | None = None,
    budget: str = "total",
    out: Path | None = None,
    dials: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> Comparison:
    """Work off what has no result yet, and write comparison.json, comparison.txt and comparison.png.

    `budget="total"` gives every method the epochs that the longest takes in all its stages, `"stage"` gives every stage
    the same. `dials` are those of `longtail train` in DIALS; what is None is derived.
    """
    methods = list(dict.fromkeys(methods))
    if not methods or seeds < 1:
        raise LongtailError("a comparison takes a method and a seed at least: --methods gml,logit_adjusted --seeds 3")
    for method in methods:
        find(method)
    if budget not in BUDGETS:
        raise LongtailError(f"--budget is one of {', '.join(BUDGETS)}, not {budget!r}")
    for name in dials or {}:
        if name not in DIALS:
            raise LongtailError(f"a comparison has no dial {name!r}{nearest(name, DIALS)}")
    dials = {name: value for name, value in (dials or {}).items() if value is not None}
    out = out or Path("runs/compare") / Path(data).name
    table = stages.load_data(_data(data, dials))
    lengths = _lengths(data, table, methods, epochs, budget, dials)
    jobs = [
        Job(f"{method}-s{seed}", _arguments(data, method, lengths[method], seed, dials), weights=False)
        for seed in range(seeds)  # a seed of every method before the next, so that an unfinished table is a fair one
        for method in methods
    ]
    _claim(out, jobs)
    outcomes = queue.work(jobs, out / "runs", out / "results", say)
    groups = (by_threshold if is_benchmark(data) else by_terciles)(table.counts())
    return _written(out, data, budget, seeds, methods, jobs, outcomes, groups)


# ---- equal budgets --------------------------------------------------------------------------------------------------


def _data(source: str, dials: Mapping[str, Any]) -> Data:
    return data_of(source, **{name: dials[name] for name in OF_DATA if name in dials})


def _lengths(
    source: str, table: Any, methods: Sequence[str], epochs: int | None, budget: str, dials: Mapping[str, Any]
) -> dict[str, int]:
    """What each method's --epochs has to be."""
    size = getattr(table.images, "pixels", None)
    stated: dict[str, Any] = {name: dials[name] for name in OF_STAGES if name in dials}
    base, total = {}, {}
    for method in methods:
        recipe, _ = derive(
            _data(source, dials),
            table.counts(),
            None if size is None else size.shape[1],
            method=method,
            epochs=epochs,
            pretrained=not dials.get("from_scratch", False) and "weights" not in dials,
            **stated,
        )
        base[method] = max(stage.epochs for stage in recipe.stages)
        total[method] = sum(stage.epochs for stage in recipe.stages)
    if budget == "stage" or not any(total.values()):
        return base
    longest = max(total.values())
    return {m: max(1, base[m] * longest // total[m]) if total[m] else base[m] for m in methods}


# ---- cells ----------------------------------------------------------------------------------------------------------


def _arguments(source: str, method: str, epochs: int, seed: int, dials: Mapping[str, Any]) -> tuple[str, ...]:
    words = ["train", source, "--method", method, "--epochs", str(epochs), "--seed", str(seed)]
    for name, value in dials.items():
        flag = f"--{name.replace('_', '-')}"
        words += ([flag] if value else []) if isinstance(value, bool) else [flag, str(value)]
    return tuple(words)


def _claim(out: Path, jobs: Sequence[Job]) -> None:
    """A cell that is there already has to be the one that is asked for."""
    path = out / "cells.json"
    before = read_json(path) if path.exists() else {}
    for job in jobs:
        was, is_now = before.get(job.name), list(job.arguments)
        if was is not None and was != is_now:
            raise LongtailError(
                f"{out} holds another comparison ({job.name} was `{' '.join(was)}`, and is `{' '.join(is_now)}`): "
                "choose another --out"
            )
    make_folder(out)
    write_json(path, before | {job.name: list(job.arguments) for job in jobs})


# ---- the table and the figure ---------------------------------------------------------------------------------------


def _written(
    out: Path,
    data: str,
    budget: str,
    seeds: int,
    methods: Sequence[str],
    jobs: Sequence[Job],
    outcomes: Sequence[Outcome],
    groups: Groups,
) -> Comparison:
    finished = [outcome.job.name for outcome in outcomes if outcome.how in ("done", "skipped")]
    failed = tuple((outcome.job.name, outcome.why) for outcome in outcomes if outcome.how == "failed")
    left = tuple(job.name for job in jobs if job.name not in (*finished, *(cell for cell, _ in failed)))
    rows = [row for method in methods if (row := _row(method, out / "results", finished)) is not None]
    figure = _figure(out, rows, groups)
    done = Comparison(data, budget, seeds, tuple(rows), failed, left, out, figure)
    found = {name: getattr(done, name) for name in ("data", "budget", "seeds", "failed", "left")}
    write_json(out / "comparison.json", found | {"rows": [asdict(row) for row in rows]})
    (out / "comparison.txt").write_text(f"{done}\n", encoding="utf-8")
    return done


def _row(method: str, results: Path, finished: Sequence[str]) -> Row | None:
    cells = [name for name in finished if re.fullmatch(rf"{re.escape(method)}-s\d+", name)]
    if not cells:
        return None
    entries = [read_json(results / f"{name}.json") for name in cells]
    return Row(
        method,
        tuple(int(name.rpartition("-s")[2]) for name in cells),
        spread([entry["summary"] for entry in entries]),
        tuple(stage["epochs"] for stage in entries[0]["stages"]),
        float(np.mean([sum(stage["hours"] for stage in entry["stages"]) for entry in entries])),
    )


def _figure(out: Path, rows: Sequence[Row], groups: Groups) -> Path | None:
    """Per-class accuracy over the counts; where there are more methods than colours, the best of them."""
    if not rows:
        return None

    def balanced(row: Row) -> float:
        value = row.summary["balanced_accuracy"]
        return -1.0 if value is None else value.mean

    best = sorted(rows, key=balanced, reverse=True)[: len(plots.COLOURS)]
    accuracy, counts = {}, None
    for row in rows:
        if row in best:
            read = [read_csv(out / "results/runs" / f"{row.method}-s{seed}/per_class.csv") for seed in row.seeds]
            accuracy[row.method] = np.stack([per_class.accuracy for per_class, _, _ in read])
            counts = read[0][2]
    assert counts is not None
    plots.save(plots.counts_and_accuracy(counts, accuracy, groups), out / "comparison.png")
    return out / "comparison.png"
