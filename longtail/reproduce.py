"""`longtail reproduce NAME`: run a recipe of the paper, or one stage of it, and say whether the number came out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail import recipes
from longtail.data.benchmarks import data_root as data_root_of
from longtail.engine import device as devices
from longtail.engine import dist
from longtail.engine.session import train_run
from longtail.engine.stages import load_data
from longtail.errors import LongtailError
from longtail.recipe import Recipe, Stage
from longtail.recipes.parts import only, with_teacher
from longtail.recipes.stated import Stated, stated


def recipe_of(
    name: str,
    *,
    preset: str = "paper",
    stage: str | None = None,
    teacher: str | None = None,
    sentences: str | None = None,
    data_root: str | None = None,
    seed: int = 0,
    precision: str = "auto",
) -> Recipe:
    recipe = recipes.build(name, preset)
    if teacher is not None:
        recipe = with_teacher(recipe, teacher)
    if stage is not None:
        recipe = only(recipe, stage)
    data = replace(recipe.data, root=data_root or recipe.data.root)
    stages = tuple(_told(stage, name, sentences, data.root) for stage in recipe.stages)
    return replace(recipe, data=data, stages=stages, seed=seed, precision=precision)


def _told(stage: Stage, name: str, sentences: str | None, root: str | None) -> Stage:
    """Where a stage's sentences are: `{data}` in a recipe is the data root."""
    if "sentences" not in stage.settings:
        if sentences is not None:
            raise LongtailError(f"{name} reads no sentences: leave --sentences out")
        return stage
    where = sentences or str(stage.settings["sentences"]).replace("{data}", str(data_root_of(root)))
    return replace(stage, settings=stage.settings | {"sentences": where})


def reproduce(
    name: str, recipe: Recipe, out: Path, *, device: str = "auto", resume: bool = False, workers: int | None = None
) -> str:
    """Train what is not trained yet; the verdict, or nothing on the ranks that do not speak."""
    table: Any
    task: dict[str, Any] = {}
    if recipe.pixels is not None:
        from longtail.segmentation import command, sources

        table, task = sources.load(recipe.data.source, root=recipe.data.root), command.TASK
    else:
        table = load_data(recipe.data, print)
    place = devices.choose(recipe.precision, device)
    dist.start(place.torch)
    speaks = dist.is_main()
    statement = stated(recipes.find(name))
    why = [statement.title, f"expected: {statement.fields['Expected']}; time: {statement.fields['Time']}"]
    finished = train_run(recipe, table, out, place, resume=resume, why=why, workers=workers, **task)
    answers = recipes.build(name).stages[-1].name
    measured = {done.stage: dict(done.summary) for done in finished}
    if recipe.stages[-1].name in measured:
        measured[recipe.stages[-1].name] |= _last_epoch(out)
    return verdict(statement, measured, answers) if speaks else ""


def verdict(statement: Stated, measured: dict[str, dict[str, Any]], answers: str) -> str:
    """A line a number that the recipe states, of the stages that were run."""
    lines = []
    for stage, summary in measured.items():
        lines += [f"{stage}: {e.verdict(summary)}" for e in statement.of_stage(stage, stage == answers)]
    return "\n".join(lines) or "the paper states no number for this stage alone"


def _last_epoch(run: Path) -> dict[str, Any]:
    """What a log has beside the summary: a learned temperature."""
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {key: value for key, value in json.loads(lines[-1]).items() if key == "tau_g"} if lines else {}
