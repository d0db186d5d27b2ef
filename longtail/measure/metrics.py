"""What is reported about a model: pure functions of per-class counts.

r_c = correct_c / n_c is the accuracy of class c, over the classes with at least one test image ("measured"). Whatever
cannot be computed from the test data is None, never 0, and prints as a dash. Accuracies are in [0, 1].

These agree with scikit-learn and torchmetrics wherever the definitions do. Where they do not: torchmetrics' macro
averages and scikit-learn's macro F1 run over every class that occurs among the labels *or the answers*, so a class
without test images that is answered once counts as a zero; here a class without test images is in no mean.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from longtail.measure.groups import NAMES, Groups, by_threshold
from longtail.measure.per_class import PerClass

Summary = dict[str, float | None]


def summarise(
    table: PerClass, train_counts: np.ndarray, group: Callable[[np.ndarray], Groups] = by_threshold
) -> Summary:
    """All of this file, by name. `group` is `by_threshold` for benchmarks, `by_terciles` for one's own data."""
    groups = group(train_counts)
    summary: Summary = {
        "accuracy": accuracy(table),
        "balanced_accuracy": balanced_accuracy(table),
        **{name: balanced_accuracy(table, groups.codes == code) for code, name in enumerate(NAMES)},
        "worst_class": worst_class(table),
        "worst_decile": worst_decile(table),
        "harmonic_mean": harmonic_mean(table),
        "geometric_mean": geometric_mean(table),
        "macro_f1": macro_f1(table),
        "top5": top5(table),
        "ece": expected_calibration_error(table),
        **{f"ece_{name}": expected_calibration_error(table, groups.codes == code) for code, name in enumerate(NAMES)},
        "images": float(table.n.sum()),
        "classes_measured": float((table.n > 0).sum()),
    }
    return summary


def _measured(table: PerClass, members: np.ndarray | None = None) -> np.ndarray:
    """r_c of the measured classes among `members` (a [C] mask; all, if None)."""
    keep = table.n > 0 if members is None else (table.n > 0) & members
    return table.accuracy[keep]


def accuracy(table: PerClass) -> float | None:
    """sum_c correct_c / sum_c n_c: on the class mix the test data happen to have."""
    return float(table.correct.sum() / table.n.sum()) if table.n.any() else None


def balanced_accuracy(table: PerClass, members: np.ndarray | None = None) -> float | None:
    """mean_c r_c: every class counts the same however many test images it has. Many, medium, few: this by group."""
    r = _measured(table, members)
    return float(r.mean()) if len(r) else None


def expected_accuracy(table: PerClass, prior: np.ndarray) -> float | None:
    """sum_c prior_c r_c: the accuracy of these same answers where the classes have the mix `prior`.

    None where the mix has a class that was not measured. Answering *for* that mix (adding its log prior to the
    log-likelihoods) is another set of answers, and better there.
    """
    prior = np.asarray(prior, dtype=np.float64)
    if np.any(prior[table.n == 0] > 0):
        return None
    return float(np.nansum(prior * table.accuracy) / prior.sum())


def worst_class(table: PerClass) -> float | None:
    """min_c r_c."""
    r = _measured(table)
    return float(r.min()) if len(r) else None


def worst_decile(table: PerClass) -> float | None:
    """Mean of the lowest tenth (rounded up) of the r_c."""
    r = np.sort(_measured(table))
    return float(r[: -(-len(r) // 10)].mean()) if len(r) else None


def harmonic_mean(table: PerClass) -> float | None:
    """1 / mean_c (1 / r_c); 0 as soon as one class is never recognised."""
    r = _measured(table)
    if not len(r):
        return None
    return float(1 / np.mean(1 / r)) if r.all() else 0.0


def geometric_mean(table: PerClass) -> float | None:
    """exp mean_c log r_c; 0 as soon as one class is never recognised."""
    r = _measured(table)
    if not len(r):
        return None
    return float(np.exp(np.log(r).mean())) if r.all() else 0.0


def macro_f1(table: PerClass) -> float | None:
    """mean_c 2 correct_c / (n_c + predicted_c). Precision, and so F1, depends on the class mix of the test data."""
    keep = table.n > 0
    f1 = 2 * table.correct[keep] / (table.n + table.predicted)[keep]
    return float(f1.mean()) if len(f1) else None


def top5(table: PerClass) -> float | None:
    """sum_c correct5_c / sum_c n_c; not measured where five classes are all there are."""
    return float(table.correct5.sum() / table.n.sum()) if table.n.any() and len(table.n) > 5 else None


def reliability(table: PerClass, members: np.ndarray | None = None) -> np.ndarray | None:
    """[bins, 3] images, correct answers, summed confidence, by confidence, of the *answers* in `members`.

    By answer, not by true class: "when it says a rare class with 80 %, is it right 80 % of the time?" A perfectly
    calibrated model has no error in any group of answers, but has one in groups of true classes, because the confidence
    does not know the true class.
    """
    if table.bins is None:
        return None
    return (table.bins if members is None else table.bins[members]).sum(0)


def expected_calibration_error(table: PerClass, members: np.ndarray | None = None) -> float | None:
    """sum_b |correct_b - confidence_b| / sum_b images_b over 15 equal bins of confidence; of answers in `members`."""
    bins = reliability(table, members)
    if bins is None or not bins[:, 0].any():
        return None
    images, correct, confidence = bins.T
    return float(np.abs(correct - confidence).sum() / images.sum())


def where_answers_go(table: PerClass, groups: Groups) -> np.ndarray | None:
    """[3, 4] for each group, the share of its test images answered rightly, then wrongly with a class of each group.

    A row is NaN where the group has no test image. Needs counters that were told the same groups.
    """
    if table.to_group is None:
        return None
    shares = np.full((len(NAMES), 1 + len(NAMES)), np.nan)
    for code in range(len(NAMES)):
        members = groups.codes == code
        if images := table.n[members].sum():
            correct = table.correct[members].sum()
            answers = table.to_group[members].sum(0)
            answers[code] -= correct
            shares[code] = [correct / images, *(answers / images)]
    return shares


@dataclass(frozen=True)
class Spread:
    """A number over seeds: mean and sample standard deviation (None for a single seed)."""

    mean: float
    deviation: float | None


def spread(summaries: Sequence[Summary]) -> dict[str, Spread | None]:
    """Mean and deviation over seeds, name by name. A number missing from one seed is missing."""
    result: dict[str, Spread | None] = {}
    for name in summaries[0]:
        values = [value for summary in summaries if (value := summary[name]) is not None]
        complete = len(values) == len(summaries)
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        result[name] = Spread(float(np.mean(values)), deviation) if complete else None
    return result


HEADLINE = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced",
    "many": "many",
    "medium": "medium",
    "few": "few",
    "worst_decile": "worst-10%",
    "ece": "ECE",
}
REST = {
    "top5": "top-5",
    "macro_f1": "macro F1",
    "worst_class": "worst",
    "harmonic_mean": "harmonic",
    "geometric_mean": "geometric",
    "ece_many": "ECE many",
    "ece_medium": "ECE medium",
    "ece_few": "ECE few",
}


def render(rows: Mapping[str, Mapping[str, float | Spread | str | None]], columns: Mapping[str, str] = HEADLINE) -> str:
    """An aligned table of per cents for the terminal, one row a run: `{"gml (last)": summary, ...}`.

    >>> print(render({"plain": {"accuracy": 0.456, "few": None}}, {"accuracy": "accuracy", "few": "few"}))
           accuracy  few
    plain      45.6    -
    """
    cells = [["", *columns.values()]]
    cells += [[name, *(_cell(row.get(column)) for column in columns)] for name, row in rows.items()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in cells
    ]
    if any("*" in cell for row in cells[1:] for cell in row[1:]):
        lines.append("* one seed")
    return "\n".join(lines)


def _cell(value: float | Spread | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, Spread):
        deviation = "*" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
        return f"{100 * value.mean:.1f}{deviation}"
    return f"{100 * value:.1f}"
