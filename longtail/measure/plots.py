"""The figures of a report. Each function takes plain numbers by method name and returns a matplotlib Figure.

Colours are Okabe and Ito's, told apart by every kind of colour vision, and each method also has its own marker. What
was not measured (None, NaN) is left out of the drawing. No pyplot: nothing here needs a display or leaves a global.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from longtail.measure.groups import NAMES, Groups
from longtail.measure.metrics import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
_GREY, _DARK = "#CFCFCF", "#555555"
_PER_CENT = 100


def save(figure: Figure, path: str | PathLike) -> None:
    figure.savefig(path, dpi=144, facecolor="white")


def svg(figure: Figure) -> str:
    """The figure for a page: one <svg>, the same bytes for the same numbers, that takes the page's text colour.

    Black, grey and dark grey become `currentColor` and the page's --bars and --muted, so that dark mode is legible.
    """
    import matplotlib
    from matplotlib.text import Text

    for written in figure.findobj(Text):
        written.set_parse_math(False)  # type: ignore[attr-defined]  (a name may have dollars in it)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "longtail"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    for colour, variable in (("#000000", "currentColor"), (_GREY, "var(--bars)"), (_DARK, "var(--muted)")):
        text = re.sub(colour, variable, text, flags=re.IGNORECASE)
    # Text without a colour of its own is black to a browser, whatever the page says.
    return text.replace("<text ", '<text fill="currentColor" ').replace("<svg ", '<svg role="img" ', 1)


def counts_and_accuracy(
    train_counts: np.ndarray,
    accuracy: Mapping[str, np.ndarray],
    groups: Groups | None = None,
    log: bool = True,
    width: float = 7.2,
) -> Figure:
    """Sorted train counts as grey bars, each method's per-class accuracy as a line over them.

    `accuracy[name]` is [C], or [S, C] over seeds: then the line is the mean and the band the deviation. Above 30
    classes a line is the running mean over a fifteenth of the classes, because single classes hide the trend.
    """
    order = np.argsort(-train_counts, kind="stable")
    num_classes = len(order)
    neighbours = num_classes // 15 | 1 if num_classes > 30 else 1
    rank = np.arange(1, num_classes + 1)
    every = -(-num_classes // 600)  # of thousands of classes, as many points as can be told apart
    figure, (counts_axis,) = _figure(width, 0.56 * width)
    edges = np.arange(num_classes + 1)[::every]
    counts_axis.fill_between(
        edges + 0.5, np.append(train_counts[order], 0)[edges], step="post", color=_GREY, linewidth=0
    )
    counts_axis.set_xlim(0.5, num_classes + 0.5)
    counts_axis.set_ylim(0.7 if log else 0, None)
    if log:
        counts_axis.set_yscale("log")
        counts_axis.yaxis.set_major_formatter("{x:g}")
    smoothing = f"\n(lines: mean of {neighbours} neighbours)" if neighbours > 1 else ""
    counts_axis.set_xlabel("classes, from most to fewest training images" + smoothing)
    counts_axis.locator_params(axis="x", integer=True)  # a few classes have no half ones between them
    counts_axis.set_ylabel("training images (grey)", color=_DARK)
    counts_axis.tick_params(axis="y", colors=_DARK)

    axis = counts_axis.twinx()  # drawn above the bars; it takes the left side, the bars' scale the right
    axis.yaxis.tick_left()
    axis.yaxis.set_label_position("left")
    counts_axis.yaxis.tick_right()
    counts_axis.yaxis.set_label_position("right")
    axis.spines["top"].set_visible(False)
    for (name, values), colour, marker in _styled(accuracy):
        seeds = np.stack([_running_mean(row, neighbours) for row in np.atleast_2d(values)[:, order]]) * _PER_CENT
        seeds, x = seeds[:, ::every], rank[::every]
        mean = seeds.mean(0)
        axis.plot(x, mean, color=colour, lw=2, label=name, marker=marker if neighbours == 1 else None, ms=5)
        if len(seeds) > 1:
            deviation = seeds.std(0, ddof=1)
            axis.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
    axis.set_ylim(0, 100)
    axis.set_ylabel("accuracy of the class, %")
    if groups is not None:
        _mark_groups(axis, groups.codes[order])
    _legend_above(figure, axis)
    return figure


def group_bars(summaries: Mapping[str, Mapping[str, float | Spread | None]], figure_width: float = 7.2) -> Figure:
    """Balanced accuracy of all, many, medium and few, a bar a method, the deviation over seeds as a whisker."""
    columns = ("balanced_accuracy", *NAMES)
    figure, (axis,) = _figure(figure_width, 0.6 * figure_width)
    width = 0.8 / len(summaries)
    upright = figure_width * width > 1.5  # inches that a number needs
    for index, ((name, summary), colour, _) in enumerate(_styled(summaries)):
        spreads = [value if isinstance(value, Spread) else Spread(np.nan if value is None else value, None)
                   for value in (summary[column] for column in columns)]  # fmt: skip
        means = np.array([spread.mean for spread in spreads]) * _PER_CENT
        deviations = np.array([spread.deviation or 0.0 for spread in spreads]) * _PER_CENT
        x = np.arange(len(columns)) + (index - (len(summaries) - 1) / 2) * width
        whiskers = deviations if deviations.any() else None
        axis.bar(x, means, width * 0.92, yerr=whiskers, color=colour, label=name, capsize=3, ecolor="black")
        for left, mean, deviation in zip(x, means, deviations, strict=True):
            if np.isfinite(mean):
                place: dict = {"ha": "center", "va": "bottom", "fontsize": 8, "rotation": 0 if upright else 90}
                axis.text(left, mean + deviation + 1, f"{mean:.1f}", **place)
    axis.set_xticks(range(len(columns)), ("all", *NAMES))
    axis.set_ylim(0, 105)
    axis.set_yticks(range(0, 101, 20))
    axis.set_ylabel("accuracy, mean over classes, %")
    _legend_above(figure, axis)
    return figure


def reliability_diagram(bins: Mapping[str, Mapping[str, np.ndarray]], names: Sequence[str] = ()) -> Figure:
    """How often an answer given with some confidence is right; a panel for each group of answers.

    `bins[panel][method]` is what `metrics.reliability` returns. A point's area is its share of the answers. `names`,
    here and below, are all methods of a page, so that each has one colour in all its figures.
    """
    figure, axes = _figure(2.4 * len(bins), 3.0, panels=len(bins))
    for axis, (panel, methods) in zip(axes, bins.items(), strict=True):
        axis.plot([0, 100], [0, 100], color=_DARK, lw=1, ls=":")
        for (name, values), colour, marker in _styled(methods, names):
            images, correct, confidence = values[values[:, 0] > 0].T
            x, y = confidence / images * _PER_CENT, correct / images * _PER_CENT
            axis.plot(x, y, color=colour, lw=1.5, marker=marker, ms=3, label=name, clip_on=False)
            size = 8 + 150 * images / images.sum()
            axis.scatter(x, y, s=size, color=colour, marker=marker, alpha=0.8, linewidth=0, clip_on=False)
        axis.set_title(panel, fontsize=10)
        axis.set_xlim(0, 100)
        axis.set_ylim(0, 100)
        axis.set_aspect("equal")
        axis.set_xlabel("confidence, %")
    axes[0].set_ylabel("right answers, %")
    _legend_above(figure, axes[0])
    return figure


def curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    xlabel: str = "epoch",
    names: Sequence[str] = (),
) -> Figure:
    """Lines over training, a panel a quantity: `{"loss": {"gml": (epochs, values)}, "temperature": {...}}`."""
    drawn = dict.fromkeys(name for lines in panels.values() for name in lines)
    style = {name: (colour, marker) for (name, _), colour, marker in _styled(drawn, names)}
    figure, axes = _figure(3.2 * len(panels), 2.9, panels=len(panels))
    for axis, (quantity, lines) in zip(axes, panels.items(), strict=True):
        for name, (x, y) in lines.items():
            colour, marker = style[name]
            axis.plot(x, y, color=colour, lw=1.8, label=name, marker=marker, ms=4, markevery=max(len(x) // 8, 1))
        axis.set_title(quantity, fontsize=10)
        axis.set_xlabel(xlabel)
        axis.margins(x=0.02)
    first = {label: line for axis in axes for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(first.values(), first.keys(), loc="outside upper left", ncols=min(len(first), 4), frameon=False)
    return figure


def trade_off(
    sweeps: Mapping[str, Sequence[tuple[float, float, float]]],
    marked: float | Mapping[str, float] = 0.0,
    ends: tuple[str, str] = ("many", "few"),
    names: Sequence[str] = (),
    width: float = 5.2,
) -> Figure:
    """Head against tail as the prior's strength at test goes from 0 (uniform) to 1 (training set) and beyond.

    `sweeps[name]` holds (strength, accuracy on many, accuracy on few), or on other `ends`; the strength in use, one or
    one a method, is ringed. The sweep moves answers only: what a prior does to the features during training it cannot
    show.
    """
    figure, (axis,) = _figure(width, 0.85 * width)
    for (name, points), colour, marker in _styled(sweeps, names):
        strength, many, few = np.array(points).T
        in_use = marked[name] if isinstance(marked, Mapping) else marked
        axis.plot(many * _PER_CENT, few * _PER_CENT, color=colour, lw=1.8, marker=marker, ms=4, label=name)
        for s, x, y in zip(strength, many * _PER_CENT, few * _PER_CENT, strict=True):
            if s in (0.0, 1.0):
                axis.annotate(f"{s:g}", (x, y), (6, 5), textcoords="offset points", fontsize=8)
            if s == in_use:
                axis.plot(x, y, "o", ms=12, mfc="none", mec=colour, mew=1.8)
    axis.set_xlabel(f"accuracy on {ends[0]}, %")
    axis.set_ylabel(f"accuracy on {ends[1]}, %")
    axis.margins(0.08)
    axis.set_xlim(None, min(axis.get_xlim()[1], 102))
    axis.set_ylim(None, min(axis.get_ylim()[1], 102))
    note = "prior at test: 0 uniform, 1 training set; ring: in use"
    axis.text(0.02, 0.02, note, transform=axis.transAxes, fontsize=8, color=_DARK)
    _legend_above(figure, axis)
    return figure


def where_answers_go(shares: Mapping[str, np.ndarray], width: float = 7.2) -> Figure:
    """For each group's test images the share answered rightly and, of the wrong ones, with which group's classes.

    `shares[name]` is what `metrics.where_answers_go` returns, [3, 4].
    """
    figure, (axis,) = _figure(width, 1.2 + 0.32 * len(NAMES) * (len(shares) + 0.6))
    parts = ("right", *(f"wrong, called {name}" for name in NAMES))
    colours = (_GREY, "#0072B2", "#56B4E9", "#E69F00")
    ticks, labels = [], []
    for code, group in enumerate(NAMES):
        for index, (name, rows) in enumerate(shares.items()):
            y = code * (len(shares) + 0.6) + index
            ticks.append(y)
            labels.append(f"{group}: {name}" if len(shares) > 1 else group)
            ends = np.concatenate([[0], np.cumsum(rows[code])]) * _PER_CENT
            for part, colour, left, right in zip(parts, colours, ends[:-1], ends[1:], strict=True):
                first = part if not ticks[1:] else None
                axis.barh(y, right - left, 0.86, left=left, color=colour, label=first)
                if right - left >= 5:
                    ink = {"#0072B2": "white", _GREY: "black"}.get(colour, "#111111")
                    axis.text(
                        (left + right) / 2, y, f"{right - left:.0f}", ha="center", va="center", fontsize=8, color=ink
                    )
    axis.set_yticks(ticks, labels)
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("test images of the group, %")
    _legend_above(figure, axis)
    return figure


def bank_fill(slots: np.ndarray, filled: np.ndarray) -> Figure:
    """How many samples each class may have in the bank, and how many it has; classes as in training, most first."""
    figure, (axis,) = _figure(3.2, 2.9)
    every = -(-len(slots) // 600)
    edges = np.arange(len(slots) + 1)[::every]
    for values, colour, label in ((slots, _GREY, "slots"), (filled, COLOURS[0], "filled")):
        heights = np.append(values, 0)[edges]
        axis.fill_between(edges + 0.5, heights, step="post", color=colour, linewidth=0, label=label)
    axis.set_xlim(0.5, len(slots) + 0.5)
    axis.set_yscale("log")
    axis.set_ylim(0.7, None)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_title("samples in the bank", fontsize=10)
    axis.set_xlabel("classes, most frequent first")
    _legend_above(figure, axis)
    return figure


def _figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(1, panels, index + 1) for index in range(panels)]
    for axis in axes:
        axis.spines["top"].set_visible(False)
        axis.spines["right"].set_visible(False)
        axis.tick_params(labelsize=9)
    return figure, axes


def _styled(items: Mapping, names: Sequence[str] = ()):
    names = names or list(items)
    assert len(names) <= len(COLOURS), "more methods than colours: draw fewer at a time"
    return [((name, values), COLOURS[names.index(name)], MARKERS[names.index(name)]) for name, values in items.items()]


def _legend_above(figure: Figure, axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    fitting = int(figure.get_figwidth() * 11 / (max(map(len, labels)) + 6))  # some eleven letters to an inch
    columns = max(1, min(len(labels), 4, fitting))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)


def _mark_groups(axis: Axes, sorted_codes: np.ndarray) -> None:
    for code, name in enumerate(NAMES):
        members = np.flatnonzero(sorted_codes == code)
        if len(members):
            axis.text(members.mean() + 1, 101, name, ha="center", va="bottom", fontsize=9, color=_DARK)
            if members[-1] + 1 < len(sorted_codes):
                axis.axvline(members[-1] + 1.5, color=_DARK, lw=0.8, ls=":")


def _running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Centred mean over `width` (odd) places, fewer at the ends; NaN is skipped, not spread."""
    if width == 1:
        return values
    kernel = np.ones(width)
    measured = np.isfinite(values)
    total = np.convolve(np.where(measured, values, 0), kernel, "same")
    weight = np.convolve(measured, kernel, "same")
    return np.divide(total, weight, out=np.full(len(values), np.nan), where=weight > 0)
