"""Choosing among a recipe's stages: one of them alone, or a trained run in the place of its teacher."""

from __future__ import annotations

from dataclasses import replace

from longtail.errors import LongtailError
from longtail.recipe import Recipe, nearest

TEACHER = "teacher"


def with_teacher(recipe: Recipe, run: str) -> Recipe:
    """A run folder replaces the teacher's stage."""
    if not any(stage.name == TEACHER for stage in recipe.stages):
        raise LongtailError(f"{recipe.name} has no teacher: leave --teacher out")
    rest = [stage for stage in recipe.stages if stage.name != TEACHER]
    return replace(recipe, stages=tuple(replace(s, keys=run) if s.keys == TEACHER else s for s in rest))


def only(recipe: Recipe, name: str) -> Recipe:
    """One stage, which must not need an earlier one: a stage that fits in one sitting."""
    names = [stage.name for stage in recipe.stages]
    if name not in names:
        raise LongtailError(f"{recipe.name} has no stage {name!r}{nearest(name, names)}")
    stage = recipe.stages[names.index(name)]
    for needed in (stage.keys, stage.start_from):
        if needed in names:
            way = "give its run with --teacher" if needed == TEACHER else "run them together: leave --stage out"
            raise LongtailError(f"the stage {name} of {recipe.name} needs the stage {needed}: {way}")
    return replace(recipe, name=f"{recipe.name}-{name}", stages=(stage,))
