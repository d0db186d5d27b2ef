"""A page about one segmentation or several: masks beside truth, IoU against frequency, the alpha sweep.

It is one HTML file without anything from elsewhere; the numbers behind its figures are beside it in `report.json`.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from longtail.errors import LongtailError
from longtail.evaluate.metrics import Summary, render
from longtail.files import atomic, write_json
from longtail.segmentation import metrics, plots
from longtail.segmentation.answers import Run, open_run, sweep, under
from longtail.segmentation.masks import VOID
from longtail.segmentation.predict import overlay, segment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHAS = tuple(i / 10 for i in range(11))
SHOWN = 4  # test images

WHY = (
    "Moved at test, the features stay what they became at alpha 1 and only the answers change. Trained at a smaller "
    "alpha, rare classes also weigh less in every gradient, and the features change with it. The curves would be one "
    "if the network had learned the likelihoods exactly, for then its prior would not matter."
)


def report(folders: Sequence[Path], out: Path, device: str = "auto") -> dict[str, Any]:
    """Write out/report.html, its figures as PNG, and report.json."""
    runs = [open_run(folder, device=device) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        if run.model.classes != first.model.classes or run.recipe.data != first.recipe.data:
            raise LongtailError(f"{run.folder} was trained on other data than {first.folder}: report them apart")
    out.mkdir(parents=True, exist_ok=True)
    names = dict(zip(_names(runs), runs, strict=True))
    summaries = {name: _result(run) for name, run in names.items()}
    columns = {name: metrics.read_csv(run.folder / "per_class.csv") for name, run in names.items()}
    shown = dict(list(names.items())[: len(plots.COLOURS)])

    moved_from = next((run for run in reversed(runs) if run.alpha == 1), None)
    curves = _curves(names, summaries, moved_from)
    figures = {
        "masks": _masks(dict(list(shown.items())[:3])),
        "iou": plots.iou_against_frequency(
            first.table.counts(), {name: columns[name]["iou"] for name in shown}, first.model.classes
        ),
    }
    if moved_from is not None:
        figures["alpha"] = plots.alpha_sweep(curves["retrained"], curves["moved"], curves["others"])
    differences = _differences(curves)

    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=144, facecolor="white")
    found = {"summaries": summaries, "alpha": curves, "moved_minus_trained": differences}
    write_json(out / "report.json", json.loads(json.dumps(found)))
    table = render(summaries, metrics.HEADLINE)
    with atomic(out / "report.html") as file:
        file.write(_page(first, table, figures, _in_words(differences)).encode())
    return found


def _result(run: Run) -> Summary:
    path = run.folder / "result.json"
    if not path.exists():
        raise LongtailError(
            f"{run.folder} holds no finished run (there is no result.json): let it finish, or --resume it"
        )
    return json.loads(path.read_text())["summary"]


def _names(runs: Sequence[Run]) -> list[str]:
    names = [run.method if run.method == "cross_entropy" else f"{run.method}, alpha {run.alpha:g}" for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({run.folder.name})" for name, run in zip(names, runs, strict=True)
    ]


def _curves(
    names: dict[str, Run], summaries: dict[str, Summary], moved_from: Run | None
) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
    """By method: (alpha, mIoU, mAcc). Several runs at one alpha are averaged."""
    points: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for name, run in names.items():
        summary = summaries[name]
        assert summary["miou"] is not None and summary["macc"] is not None
        points.setdefault(run.method, {}).setdefault(run.alpha, []).append((summary["miou"], summary["macc"]))
    means = {
        method: [(alpha, *np.mean(seeds, axis=0).tolist()) for alpha, seeds in sorted(by_alpha.items())]
        for method, by_alpha in points.items()
    }
    moved = {}
    if moved_from is not None:
        matrices = sweep(moved_from, ALPHAS)
        summarised = [metrics.summarise(matrix, moved_from.groups) for matrix in matrices]
        moved[moved_from.method] = [
            (alpha, summary["miou"], summary["macc"]) for alpha, summary in zip(ALPHAS, summarised, strict=True)
        ]
    retrained = {method: curve for method, curve in means.items() if method != "cross_entropy"}
    others = {method: curve for method, curve in means.items() if method == "cross_entropy"}
    return {"retrained": retrained, "moved": moved, "others": others}  # type: ignore[return-value]


def _differences(curves: dict[str, Any]) -> list[dict[str, float]]:
    """Moved minus trained, at every alpha that was both."""
    differences = []
    for method, moved in curves["moved"].items():
        at = {round(alpha, 3): values for alpha, *values in moved}
        for alpha, miou, macc in curves["retrained"].get(method, []):
            if round(alpha, 3) in at:
                moved_miou, moved_macc = at[round(alpha, 3)]
                differences.append({"alpha": alpha, "miou": moved_miou - miou, "macc": moved_macc - macc})
    return differences


def _in_words(differences: list[dict[str, float]]) -> str:
    if not differences:
        return ""
    parts = "; ".join(
        f"at alpha {d['alpha']:g} mIoU {100 * d['miou']:+.1f}, mAcc {100 * d['macc']:+.1f}" for d in differences
    )
    return f"Moved minus trained, in points: {parts}. {WHY}"


def _masks(runs: dict[str, Run]) -> Figure:
    """Test images in even steps through the split: image, truth, and what each run answers."""
    first = next(iter(runs.values()))
    rows = first.table.rows("test") if len(first.table.rows("test")) else first.table.rows("val")
    rows = rows[np.linspace(0, len(rows) - 1, min(SHOWN, len(rows))).round().astype(int)]
    palette = np.vstack([first.model.palette, np.full((256 - len(first.model.palette), 3), 255, np.uint8)])
    pictures = []
    for row in rows:
        image, truth = first.table.pair(int(row))
        answers = [segment(run, under(run, "as-trained"), image) for run in runs.values()]
        shown = [palette[np.where(truth == VOID, VOID, answer)] for answer in answers]  # void is not judged
        pictures.append([image, overlay(image, truth, first.model.palette), palette[truth], *shown])
    return plots.masks_beside_truth(
        pictures, ["image", "truth over it", "truth", *runs], first.model.classes, first.model.palette
    )


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
img { max-width: 100%; height: auto; background: white; }
pre { overflow-x: auto; font-size: 13px; }
@media (prefers-color-scheme: dark) { body { background: #181a1b; color: #ddd; } }
"""


def _page(run: Run, table: str, figures: dict[str, Figure], sweep_in_words: str) -> str:
    captions = {
        "masks": "Test images, their masks, and the answers as trained. White is void and not judged.",
        "iou": "IoU of every class against its share of the training pixels.",
        "alpha": f"The strength alpha of the log prior. {sweep_in_words}",
    }
    parts = [
        f"<h1>{html.escape(run.recipe.name)}</h1>",
        f"<pre>{html.escape(run.table.summary())}\n{html.escape(str(run.groups))}</pre>",
        f"<pre>{html.escape(table)}</pre><p>Test images, last epoch, answered as trained, in per cent.</p>",
    ]
    for name, figure in figures.items():
        file = io.BytesIO()
        figure.savefig(file, dpi=110, facecolor="white")
        data = base64.b64encode(file.getvalue()).decode()
        parts.append(f'<figure><img alt="{name}" src="data:image/png;base64,{data}">')
        parts.append(f"<figcaption>{html.escape(captions[name])}</figcaption></figure>")
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>{html.escape(run.recipe.name)}</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"
