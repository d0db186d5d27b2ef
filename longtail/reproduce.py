"""`longtail reproduce NAME`: run a recipe of the paper, or one stage of it, and say whether the number came out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longtail import recipes
from longtail.data.benchmarks import data_root as data_root_of
from longtail.data.generated import generated
from longtail.engine import device as devices
from longtail.engine import dist
from longtail.engine.rehearsal import rehearse
from longtail.engine.runfolder import describe_environment
from longtail.engine.session import train_run
from longtail.engine.stages import load_data
from longtail.errors import LongtailError, NotHere
from longtail.files import write_json
from longtail.recipe import Recipe, Stage
from longtail.recipes.parts import only, with_teacher
from longtail.recipes.stated import Stated, stated
from longtail.wording import number_of


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
    name: str,
    recipe: Recipe,
    out: Path,
    *,
    device: str = "auto",
    resume: bool = False,
    workers: int | None = None,
    changed: Sequence[str] = (),
) -> str:
    """Train what is not trained yet; the verdict, or nothing on the ranks that do not speak.

    `changed` are settings that are not the recipe's own any more, as they were given.
    """
    table, task = _table(recipe), {}
    if recipe.pixels is not None:
        from longtail.segmentation import command

        task = command.TASK
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
    said = verdict(statement, measured, answers)
    if changed:
        said += f"\nwith other settings than the paper's ({', '.join(changed)}): the band is no test of this run"
    return said if speaks else ""


def dry_run(
    name: str, recipe: Recipe, *, device: str = "auto", workers: int | None = None, out: Path | None = None
) -> str:
    """Two steps of every stage, on generated images where the recipe's own are not here; `out` keeps what they cost."""
    place, note = devices.choose(recipe.precision, device), ""
    try:
        table = _table(recipe)
    except NotHere as error:
        table = _generated(recipe)
        note = f"{str(error).partition(':')[0]}: the images are generated, all else is real\n"
        recipe = replace(recipe, stages=tuple(map(_without_what_is_fetched, recipe.stages)))
    print(note, end="", flush=True)
    if recipe.pixels is None:
        costs = rehearse(recipe, table, place, workers=workers, say=_say, reads=not note)
    else:
        from longtail.segmentation.rehearsal import rehearse as rehearse_pixels

        costs = rehearse_pixels(recipe, table, place, workers=workers, say=_say)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        facts = {"recipe": name, "images": "generated" if note else "real", "classes": table.num_classes}
        facts |= {"training_images": len(table.rows("train")), "environment": describe_environment()}
        write_json(out, facts | {"precision": str(place), "stages": [asdict(cost) for cost in costs]})
    kept = "" if out is None else f"; what they cost is in {out}"
    return f"{number_of(len(costs), 'stage')} went through two steps{kept}"


def _say(line: str) -> None:
    print(line, flush=True)


def _table(recipe: Recipe) -> Any:
    """Of images, or of images and masks."""
    if recipe.pixels is None:
        return load_data(recipe.data, print)
    from longtail.segmentation import command

    return command.table_of(recipe)


def _generated(recipe: Recipe) -> Any:
    data = recipe.data
    if recipe.pixels is None:
        return generated(data.source, data.imbalance, data.subset_seed)
    from longtail.segmentation import rehearsal

    return rehearsal.generated(data.source)


def _without_what_is_fetched(stage: Stage) -> Stage:
    """Weights cost the same whatever they are, and a bank of sentences is filled with noise."""
    text = {"sentences": "", "templates": ["{}"]} if "sentences" in stage.settings else {}
    return replace(stage, pretrained=False, settings=stage.settings | text)


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
