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
FIGURES = {
    "camvid-alpha.png": "mIoU and mAcc over alpha: trained at each, and one model moved at test",
    "camvid-masks.png": "Four test images, their true masks, and what three models paint",
}
CAPTION = (
    "CamVid's 233 test images at 240 x 180, in per cent; many, medium and few are the IoU of thirds of the classes. "
    "FCN of stride 8 over a ResNet-18 from scratch, {epochs} epochs each; GML's teacher is the logit-adjusted run of "
    "the same seed, whose time is not in its hours. Last epoch, answered as trained; ± is the sample standard "
    "deviation over seeds, an asterisk marks a single one. The runs are those of `results/queue_camvid.yaml`."
)


def camvid_table(results: Path) -> str:
    found = {name: _seeds(results, name) for name in ROWS}
    found = {name: runs for name, runs in found.items() if runs}
    if not found:
        return "None of the runs in `results/queue_camvid.yaml` is recorded yet."
    head = ["", "seeds", *COLUMNS.values(), "hours"]
    rows = table(head, [[ROWS[name], *_row(runs)] for name, runs in found.items()])
    epochs = sorted({run["epochs"] for runs in found.values() for run in runs})
    return f"{rows}\n\n{CAPTION.format(epochs=' or '.join(map(str, epochs)))}{''.join(map(_figure, FIGURES))}"


def _figure(name: str) -> str:
    """Of `longtail report`, where it was drawn."""
    there = (Path(__file__).parent / "_static" / name).exists()
    return f"\n\n```{{image}} _static/{name}\n:alt: {FIGURES[name]}\n:class: wide\n```" if there else ""


def _seeds(results: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob(f"{name}-s[0-9].json"))]


def _row(runs: list[dict[str, Any]]) -> list[str]:
    cells = [over_seeds([run["summary"][name] for run in runs]) for name in COLUMNS]
    return [str(len(runs)), *cells, f"{statistics.mean(run['hours'] for run in runs):.2g}"]
