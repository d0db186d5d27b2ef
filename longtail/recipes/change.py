"""`--set key=value`: change one setting of a recipe by name. Unknown names are answered with the nearest known one."""

from __future__ import annotations

import json
from typing import Any

from longtail.errors import LongtailError
from longtail.methods import settings_of
from longtail.recipe import Recipe, from_dict, nearest, to_dict


def change(recipe: Recipe, assignments: list[str]) -> Recipe:
    """`k_m=8` sets the last stage's method, `teacher.epochs=30` or `optim.lr=0.05` a stage, `seed=1` the recipe."""
    values = to_dict(recipe)
    values["stages"] = [dict(stage) for stage in values["stages"]]
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise LongtailError(f"--set takes key=value, got {assignment!r}")
        _assign(values, key.strip().split("."), _value(text), assignment)
    return from_dict(values, "--set")


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
