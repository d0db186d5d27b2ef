"""`--set key=value`: change one setting of a recipe by name. Unknown names are answered with the nearest known one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail.data.benchmarks import CUT
from longtail.errors import LongtailError
from longtail.methods import settings_of
from longtail.recipe import Data, Recipe, Stage, check_dials, from_dict, load, nearest, to_dict


def change(recipe: Recipe, assignments: list[str]) -> Recipe:
    """`k_m=8` sets the last stage's method, `teacher.epochs=30` or `optim.lr=0.05` a stage, `seed=1` the recipe."""
    values = to_dict(recipe)
    values["stages"] = [dict(stage) for stage in values["stages"]]
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise LongtailError(f"--set takes key=value, got {assignment!r}")
        _assign(values, key.strip().split("."), _value(text), assignment)
    return from_dict(values, "--set" if assignments else "the recipe")


def from_config(
    path: str | Path,
    assignments: list[str],
    *,
    seed: int | None = None,
    precision: str | None = None,
    root: str | None = None,
) -> Recipe:
    """A config with its changes, and with the three dials that repeat the same run elsewhere or once more."""
    check_dials(seed=seed)
    recipe = load(path)
    recipe = replace(
        recipe,
        data=replace(recipe.data, root=root or recipe.data.root),
        seed=recipe.seed if seed is None else seed,
        precision=precision or recipe.precision,
    )
    return change(recipe, assignments)


def data_of(data: Data, assignments: list[str]) -> Data:
    """The data under what `--set data.*` says of them, and a benchmark's usual imbalance where none is said.

    Before they are loaded: a run's config has to say what was trained on, or its test images are another's training.
    """
    check_dials(subset_seed=data.subset_seed)
    of_data = [text for text in assignments if text.partition("=")[0].strip().split(".")[0] == "data"]
    if of_data:
        data = change(Recipe(data, (Stage(),)), of_data).data
    return data if data.imbalance is not None else replace(data, imbalance=CUT.get(data.source))


def _assign(values: dict[str, Any], path: list[str], value: Any, assignment: str) -> None:
    stages = {stage["name"]: stage for stage in values["stages"]}
    target: dict[str, Any] = values["stages"][-1]
    if path[0] in stages and len(path) > 1:
        target, path = stages[path[0]], path[1:]
    elif path[0] in ("data", "pixels") or (len(path) == 1 and path[0] in values and path[0] != "stages"):
        target = values
    settings = settings_of(target["method"]) if "method" in target else {}
    if len(path) == 1 and path[0] in settings:
        target["settings"] = {**target["settings"], path[0]: value}
        return
    for part in path[:-1]:
        if not isinstance(target.get(part), dict):
            raise LongtailError(f"--set {assignment}: there is no {part!r}{nearest(part, [*target, *stages])}")
        target = target[part]
    if path[-1] not in target and path[:-1] != ["views"]:  # a view may have had no augmentation of its own
        raise LongtailError(
            f"--set {assignment}: there is no setting {path[-1]!r}{nearest(path[-1], [*target, *settings])}"
        )
    target[path[-1]] = value


def _value(text: str) -> Any:
    """JSON where it is JSON (numbers, true, null, lists), a plain string otherwise."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
