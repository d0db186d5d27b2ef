"""The table of recorded segmentations, for `generate.py`: a row an experiment, over its seeds."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from shown import over_seeds, table

ROWS = {
    "camvid-cross_entropy": "cross-entropy",
    "camvid-logit_adjusted": "logit-adjusted, alpha 1",
    "camvid-logit_adjusted-0.2": "logit-adjusted, alpha 0.2",
    "camvid-gml-0": "GML, alpha 0",
    "camvid-gml-0.2": "GML, alpha 0.2",
    "camvid-gml-0.2-cls-1": "GML, alpha 0.2, 1 in the classifier's loss",
    "camvid-gml-0.5": "GML, alpha 0.5",
    "camvid-gml-1": "GML, alpha 1",
}
COLUMNS = {
    "miou": "mIoU",
    "macc": "mAcc",
    "aacc": "aAcc",
    "miou_many": "many",
    "miou_medium": "medium",
    "miou_few": "few",
}
STATIC = Path(__file__).parent / "_static"  # where the command in results/queue_camvid.yaml puts its figures
FIGURES = {
    "camvid-alpha.png": "mIoU and mAcc over alpha: trained at each, and one model moved at test",
    "camvid-iou.png": "IoU of each class over its share of the training pixels",
    "camvid-masks.png": "Four test images, their true masks, and what three models paint",
}
CAPTION = (
    "CamVid's 233 test images at 240 x 180, in per cent; many, medium and few are the IoU of thirds of the classes. "
    "FCN of stride 8 over a ResNet-18 from scratch, {epochs} epochs each; GML's teacher is the logit-adjusted run of "
    "the same seed, whose time is not in its hours. Last epoch, answered as trained; ± is the sample standard "
    "deviation over seeds, an asterisk marks a single one. The runs are those of `results/queue_camvid.yaml`."
)


def camvid(results: Path, static: Path = STATIC) -> str:
    """The table of runs, and of `longtail report` what was drawn: its curves of alpha in numbers, and its figures."""
    return "\n\n".join([camvid_table(results), *alpha_tables(static), *figures(static)])


def camvid_table(results: Path) -> str:
    found = {name: _seeds(results, name) for name in ROWS}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        return "None of the runs in `results/queue_camvid.yaml` is recorded yet."
    head = ["", "seeds", *COLUMNS.values(), "hours"]
    rows = table(head, [[ROWS[name], *_row(runs)] for name, runs in found.items()])
    epochs = sorted({run["epochs"] for runs in found.values() for run in runs})
    return f"{rows}\n\n{CAPTION.format(epochs=' or '.join(map(str, epochs)))}"


def alpha_tables(static: Path) -> list[str]:
    """mIoU and mAcc of each method over alpha, trained there and moved there, and how far these are apart."""
    path = static / "camvid.json"
    sweeps = json.loads(path.read_text()) if path.exists() else {}
    return [_alpha_table(method, sweep) for method, sweep in sweeps.items() if len(sweep["trained"]) > 1]


def _alpha_table(method: str, sweep: dict[str, list[list[float]]]) -> str:
    trained, moved = ({round(alpha, 3): values for alpha, *values in sweep[way]} for way in ("trained", "moved"))
    rows = [
        [f"{alpha:g}", *(_per_cent(way.get(alpha), metric) for metric in (0, 1) for way in (trained, moved))]
        for alpha in sorted(trained | moved)
    ]
    head = ["alpha", "mIoU, trained there", "mIoU, moved there", "mAcc, trained there", "mAcc, moved there"]
    both = [alpha for alpha in trained if alpha in moved]
    apart = [max(100 * abs(moved[alpha][metric] - trained[alpha][metric]) for alpha in both) for metric in (0, 1)]
    return (
        f"`{method}` trained at alpha, and the model of alpha 1 moved there at test, means over seeds:\n\n"
        f"{table(head, rows)}\n\nThe curves are at most {apart[0]:.1f} points of mIoU and {apart[1]:.1f} of mAcc apart."
    )


def _per_cent(values: list[float] | None, metric: int) -> str:
    return "" if values is None else f"{100 * values[metric]:.1f}"


def figures(static: Path) -> list[str]:
    there = [name for name in FIGURES if (static / name).exists()]
    return [f"```{{image}} _static/{name}\n:alt: {FIGURES[name]}\n:class: wide\n```" for name in there]


def _seeds(results: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-s[0-9].json"))]


def _row(runs: list[dict[str, Any]]) -> list[str]:
    cells = [over_seeds([run["summary"][name] for run in runs]) for name in COLUMNS]
    return [str(len(runs)), *cells, f"{statistics.mean(run['hours'] for run in runs):.2g}"]
