"""What the command line asks for a segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longtail import recipe as recipes
from longtail.errors import LongtailError
from longtail.files import told_apart, write_json
from longtail.measure.metrics import render
from longtail.segmentation import metrics, sources, stages
from longtail.segmentation.recipes import derive
from longtail.segmentation.table import PixelTable

TASK = {"runner": stages, "columns": metrics.HEADLINE}


def table_of(recipe: recipes.Recipe) -> PixelTable:
    stages.pixels_of(recipe)
    return sources.load(recipe.data.source, root=recipe.data.root)


def recipe_of(data: recipes.Data, **dials: Any) -> tuple[recipes.Recipe, PixelTable, list[str]]:
    """`longtail train --task segmentation`: the recipe, the data, and the reasons for what was not said."""
    if not data.source:
        raise LongtailError("say what to train on: camvid, ade20k, or a folder with images, masks and classes.csv")
    table = sources.load(data.source, root=data.root)
    recipe, why = derive(data, table, **dials)
    return recipe, table, why


def evaluate(run: Path, data: str | None, split: str | None, prior: str | None, out: Path | None, device: str) -> str:
    """`longtail evaluate`: what to print; the matrix of pixels and a row a class are kept."""
    from longtail.segmentation import answers

    opened, prior = answers.open_run(run, data, device), prior or "as-trained"
    split = split or stages.tested(opened.table)
    matrix = answers.evaluate(opened, prior, split)
    summary = metrics.summarise(matrix, opened.groups)
    name = f"{split}-{Path(prior).stem}" + (f"-{opened.table.name}" if data else "")
    out = out or run / "eval" / told_apart(name, "" if prior in answers.WORDS else prior, data or "")
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "report.json", {"prior": prior, "split": split, "summary": summary, "confusion": matrix.tolist()})
    metrics.write_csv(out / "per_class.csv", matrix, opened.model.classes, opened.counts, opened.groups)
    return f"{render({f'prior {prior}': summary}, metrics.HEADLINE)}\n\nsaved {out}"


def predict(run: Path, images: Sequence[str], prior: str | None, out: Path | None, device: str) -> str:
    """`longtail predict`: a mask and an overlay of every image, as PNG."""
    from longtail.segmentation import answers
    from longtail.segmentation.predict import predict

    out = out or run / "masks"
    answered, failed = predict(answers.open_run(run, None, device), images, out, prior or "as-trained")
    if failed:
        raise LongtailError(f"{failed:,} of {answered + failed:,} images could not be read; the others are in {out}")
    return f"{answered:,} images: masks and overlays in {out}"


def report(runs: Sequence[Path], out: Path | None, device: str) -> str:
    from longtail.segmentation.report import report

    path, table = report(runs, out, device)
    return f"{table}\nin per cent\n\nsaved {path}   open it in a browser; it needs no network"


def export(run: Path, out: Path | None, format: str) -> str:
    from longtail.segmentation import answers
    from longtail.segmentation.export import export_onnx

    if format != "onnx":
        raise LongtailError(f"a segmentation is exported as onnx, not as {format!r}")
    path, difference = export_onnx(answers.open_run(run, device="cpu"), out)
    return f"parity on real images: scores at most {difference:.2g} apart\nsaved {path}"
