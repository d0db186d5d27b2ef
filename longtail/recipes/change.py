"""`--set key=value`: change one setting of a recipe by name. Unknown names are answered with the nearest known one."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
    root: str | Path | None = None,
) -> Recipe:
    """A config with its changes, and with the three dials that repeat the same run elsewhere or once more."""
    check_dials(seed=seed)
    recipe = load(path)
    recipe = replace(
        recipe,
        data=replace(recipe.data, root=recipe.data.root if root is None else str(root)),
        seed=recipe.seed if seed is None else seed,
        precision=precision or recipe.precision,
    )
    return change(recipe, assignments)


def data_of(
    source: str,
    assignments: Sequence[str] = (),
    *,
    data_root: str | Path | None = None,
    imbalance: float | None = None,
    tail: str = "exp",
    subset_seed: int = 0,
    label_column: str | None = None,
    group_column: str | None = None,
    hold_out: float = 0.0,
    on_bad_image: str = "stop",
) -> Data:
    """The data that the dials name, as `--set data.*` changes them; a benchmark's usual imbalance where none is said.

    Before they are loaded: a run's config has to say what was trained on, or its test images are another's training.
    """
    check_dials(subset_seed=subset_seed)
    data = Data(
        source,
        None if data_root is None else str(data_root),
        imbalance,
        tail,
        label_column=label_column,
        group_column=group_column,
        val_fraction=hold_out,
        on_bad_image=on_bad_image,
        subset_seed=subset_seed,
    )
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
