"""The figures of a segmentation's report, from plain numbers; colours and helpers are those of `measure/plots.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from longtail.measure.plots import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float, float]]  # alpha, mIoU, mAcc


def masks_beside_truth(
    rows: Sequence[Sequence[np.ndarray]], titles: Sequence[str], classes: Sequence[str], palette: np.ndarray
) -> Figure:
    """A row of pictures uint8 [H, W, 3] for every image, under the titles; the classes' colours below."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    height, width = rows[0][0].shape[:2]
    legend_rows = -(-len(classes) // 6) if len(classes) <= 36 else 0
    cell = 9.0 / len(titles)
    figure = Figure(figsize=(9.0, cell * height / width * len(rows) + 0.3 + 0.25 * legend_rows), layout="constrained")
    axes = figure.subplots(len(rows), len(titles), squeeze=False)
    for i, pictures in enumerate(rows):
        for j, picture in enumerate(pictures):
            axes[i, j].imshow(picture, interpolation="nearest", aspect="auto")
            axes[i, j].set_xticks([])
            axes[i, j].set_yticks([])
            if i == 0:
                axes[i, j].set_title(textwrap.fill(titles[j], 20), fontsize=9)
    if legend_rows:
        patches = [Patch(color=palette[c] / 255, label=name) for c, name in enumerate(classes)]
        figure.legend(handles=patches, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def iou_against_frequency(counts: np.ndarray, iou: Mapping[str, np.ndarray], classes: Sequence[str]) -> Figure:
    """A point a class and run: its share of the training pixels, and its IoU. Lines join a run's classes."""
    from matplotlib.figure import Figure

    order = np.argsort(counts)
    order = order[counts[order] > 0]
    share = 100 * counts[order] / counts.sum()
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axis = figure.add_subplot()
    for (name, values), colour, marker in zip(iou.items(), COLOURS, MARKERS, strict=False):
        axis.plot(share, 100 * values[order], color=colour, marker=marker, ms=5, lw=1.2, alpha=0.9, label=name)
    if len(classes) <= 30:
        top = np.nanmax(np.stack([100 * values[order] for values in iou.values()]), axis=0)
        for x, y, c in zip(share.tolist(), top.tolist(), order.tolist(), strict=True):
            if np.isfinite(y):
                axis.annotate(str(classes[c]), (x, y), (0, 6), textcoords="offset points", fontsize=7, ha="center")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_ylim(0, 105)
    axis.set_xlabel("share of the training pixels, %")
    axis.set_ylabel("IoU of the class, %")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return figure


def alpha_sweep(sweeps: Mapping[str, tuple[Curve, Curve]], plain: Mapping[str, tuple[float, float]]) -> Figure:
    """mIoU and mAcc over alpha. A sweep is the points trained at each alpha, and the line of one model moved at test.

    `plain` (cross-entropy, say) are mIoU and mAcc of runs that have no alpha, drawn as level lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    style = dict(zip((*sweeps, *plain), zip(COLOURS, MARKERS, strict=True), strict=False))
    for column, quantity in ((1, "mIoU"), (2, "mAcc")):
        axis = figure.add_subplot(1, 2, column)
        for name, (trained, moved) in sweeps.items():
            colour, marker = style[name]
            (alpha, *values), (moved_alpha, *moved_values) = zip(*trained, strict=True), zip(*moved, strict=True)
            y = 100 * np.array(values[column - 1])
            axis.plot(alpha, y, color=colour, marker=marker, lw=1, ms=6, label=f"{name}, trained at alpha")
            y = 100 * np.array(moved_values[column - 1])
            axis.plot(moved_alpha, y, color=colour, lw=1.6, ls="--", label=f"{name}, moved at test")
        for name, level in plain.items():
            axis.axhline(100 * level[column - 1], color=style[name][0], lw=1, ls=":", label=name)
        axis.set_xlabel("alpha")
        axis.set_ylabel(f"{quantity}, %")
        axis.margins(y=0.12)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return figure
