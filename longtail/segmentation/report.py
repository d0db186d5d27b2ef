"""A page about one segmentation or several: masks beside truth, IoU against frequency, the alpha sweep.

The figures are also written as PNG beside the page, and the sweep's numbers as JSON, for pages and pictures elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from longtail.engine.stages import Finished
from longtail.errors import LongtailError
from longtail.files import atomic, read_json, write_json
from longtail.measure import plots as common
from longtail.measure.metrics import Spread, spread
from longtail.measure.page import Figures, Page, Section, Table, render_page
from longtail.recipe import to_dict
from longtail.segmentation import metrics, plots
from longtail.segmentation.answers import Run, open_run, sweep, under
from longtail.segmentation.masks import VOID
from longtail.segmentation.predict import overlay, segment
from longtail.segmentation.stages import tested

ALPHAS = tuple(i / 10 for i in range(11))
SHOWN = 4  # test images

WHY = (
    "Moved at test, the features stay what they became at alpha 1 and only the answers change. Trained at a smaller "
    "alpha, rare classes also weigh less in every gradient, and the features change with it. The curves would be one "
    "if the network had learned the likelihoods exactly, for then its prior would not matter."
)


@dataclass(frozen=True)
class Group:
    """Runs of one recipe under several seeds."""

    name: str
    runs: tuple[Run, ...]

    @cached_property
    def finished(self) -> list[Finished]:
        return [Finished(**read_json(run.folder / "result.json")) for run in self.runs]

    def mean(self, name: str) -> float:
        return float(np.mean([finished.summary[name] for finished in self.finished]))  # type: ignore[arg-type]

    @cached_property
    def iou(self) -> np.ndarray:
        """[C], the mean over seeds."""
        return np.mean([metrics.read_csv(run.folder / "per_class.csv")["iou"] for run in self.runs], axis=0)


@dataclass(frozen=True)
class Sweep:
    """(alpha, mIoU, mAcc) of one method: trained at each, and one model moved at test."""

    trained: list[tuple[float, float, float]]
    moved: list[tuple[float, float, float]]

    def in_words(self) -> str:
        at = {round(alpha, 3): values for alpha, *values in self.moved}
        both = [(alpha, at[round(alpha, 3)], (miou, macc)) for alpha, miou, macc in self.trained if alpha in at]
        parts = (
            f"at alpha {alpha:g} mIoU {100 * (moved[0] - trained[0]):+.1f}, mAcc {100 * (moved[1] - trained[1]):+.1f}"
            for alpha, moved, trained in both
        )
        return f"Moved minus trained, in points: {'; '.join(parts)}. {WHY}"


def report(folders: Sequence[Path], out: Path | None = None, device: str = "auto") -> tuple[Path, str]:
    """Write the page; also returns its first table for the terminal."""
    groups = _grouped([open_run(folder, device=device) for folder in folders])
    first = groups[0].runs[0]
    out = out or folders[0] / "report.html"
    out.parent.mkdir(parents=True, exist_ok=True)
    headline = _headline(groups)
    shown = groups[: len(common.COLOURS)]

    figures = {
        "masks": _masks(shown[:3]),
        "iou": plots.iou_against_frequency(
            first.counts, {group.name: group.iou for group in shown}, first.model.classes
        ),
    }
    sections = [
        Section("Numbers", "Test images, last epoch, answered as trained, in per cent.", [headline]),
        Section("Masks", "White is void: not labelled and not judged.", [Figures([figures["masks"]])]),
        Section("IoU and frequency", "Every class by its share of the training pixels.", [Figures([figures["iou"]])]),
    ]
    sweeps = _sweeps(groups)
    if sweeps:
        plain = {
            group.name: (group.mean("miou"), group.mean("macc"))
            for group in groups
            if group.runs[0].method == "cross_entropy"
        }
        figures["alpha"] = plots.alpha_sweep({name: (s.trained, s.moved) for name, s in sweeps.items()}, plain)
        words = " ".join(f"{name}: {s.in_words()}" for name, s in sweeps.items())
        sections.append(Section("The strength of the prior", words, [Figures([figures["alpha"]])]))
        write_json(out.with_suffix(".json"), {name: s.__dict__ for name, s in sweeps.items()})
    for name, figure in figures.items():
        common.save(figure, out.with_name(f"{out.stem}-{name}.png"))
    page = Page(
        title=f"{first.recipe.data.source}: {', '.join(group.name for group in groups)}",
        lead=[*first.table.summary().splitlines(), str(first.groups)],
        sections=sections,
        classes=_class_table(groups),
    )
    with atomic(out) as file:
        file.write(render_page(page).encode())
    return out, headline.text()


def _headline(groups: Sequence[Group]) -> Table:
    def cell(value: Spread | None) -> str:
        if value is None:
            return "-"
        return f"{100 * value.mean:.1f}" + ("" if value.deviation is None else f" ± {100 * value.deviation:.1f}")

    rows = []
    for group in groups:
        summary = spread([finished.summary for finished in group.finished])
        rows.append([group.name, str(len(group.runs)), *(cell(summary[name]) for name in metrics.HEADLINE)])
    return Table(["", "seeds", *metrics.HEADLINE.values()], rows)


def _grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs that differ in the seed alone belong together; so do students of teachers of several seeds."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        if not (run.folder / "result.json").exists():
            raise LongtailError(f"{run.folder} holds no finished run (there is no result.json): let it finish first")
        if run.model.classes != runs[0].model.classes:
            raise LongtailError(f"{run.folder} has other classes than {runs[0].folder}: report them apart")
        stages = tuple(replace(stage, keys="") for stage in run.recipe.stages)
        recipe = to_dict(replace(run.recipe, seed=0, name="", stages=stages))
        members.setdefault(json.dumps(recipe, sort_keys=True), []).append(run)
    names = [_name(same[0]) for same in members.values()]
    return [
        Group(name if names.count(name) == 1 else f"{name} ({same[0].folder.name})", tuple(same))
        for name, same in zip(names, members.values(), strict=True)
    ]


def _name(run: Run) -> str:
    if run.method == "cross_entropy":
        return run.method
    aside = "" if run.alpha_gml == run.alpha else f", L_cls at {run.alpha:g}"
    return f"{run.method}, alpha {run.alpha_gml:g}{aside}"


def _sweeps(groups: Sequence[Group]) -> dict[str, Sweep]:
    """Of every method that was trained at alpha 1, which is the model that is moved."""
    sweeps = {}
    groups = [group for group in groups if group.runs[0].alpha_gml == group.runs[0].alpha]
    for group in groups:
        run = group.runs[0]
        if run.alpha == 1 and run.method not in sweeps:
            same = [other for other in groups if other.runs[0].method == run.method]
            trained = sorted((other.runs[0].alpha, other.mean("miou"), other.mean("macc")) for other in same)
            # Of every seed, as the trained ones are.
            passes = [[_miou_and_macc(matrix) for matrix in sweep(one, ALPHAS)] for one in group.runs]
            moved = [(alpha, *np.mean(seeds, axis=0).tolist()) for alpha, *seeds in zip(ALPHAS, *passes, strict=True)]
            sweeps[run.method] = Sweep(trained, moved)
    return sweeps


def _miou_and_macc(matrix: np.ndarray) -> tuple[float, float]:
    return float(np.nanmean(metrics.iou(matrix))), float(np.nanmean(metrics.accuracy(matrix)))


def _masks(groups: Sequence[Group]):
    """Test images in even steps through the split: image, truth, and what the first seed of each group answers."""
    first = groups[0].runs[0]
    rows = first.table.rows(tested(first.table))
    rows = rows[np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).round().astype(int)]
    palette = np.vstack([first.model.palette, np.full((256 - len(first.model.palette), 3), 255, np.uint8)])
    pictures = []
    for row in rows:
        image, truth = first.table.pair(int(row))
        answers = [segment(group.runs[0], under(group.runs[0], "as-trained"), image) for group in groups]
        judged = [palette[np.where(truth == VOID, VOID, answer)] for answer in answers]
        pictures.append([image, overlay(image, truth, first.model.palette), palette[truth], *judged])
    titles = ["image", "truth over it", "truth", *(group.name for group in groups)]
    return plots.masks_beside_truth(pictures, titles, first.model.classes, first.model.palette)


def _class_table(groups: Sequence[Group]) -> dict[str, list]:
    run = groups[0].runs[0]
    columns = ["class", "group", "train pixels", *(f"IoU {group.name}" for group in groups)]
    rows = []
    for c, name in enumerate(run.model.classes):
        values = [None if np.isnan(group.iou[c]) else round(100 * float(group.iou[c]), 1) for group in groups]
        rows.append([name, run.groups.name(c), int(run.counts[c]), *values])
    return {"columns": columns, "rows": rows}
