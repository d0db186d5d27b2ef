"""What the command line asks for a segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longtail import recipe as recipes
from longtail.errors import LongtailError
from longtail.segmentation import metrics, sources, stages
from longtail.segmentation.recipes import derive
from longtail.segmentation.table import PixelTable

TASK = {"runner": stages, "columns": metrics.HEADLINE}


def recipe_of(config: Path | None, data: recipes.Data, **dials: Any) -> tuple[recipes.Recipe, PixelTable, list[str]]:
    """`longtail train --task segmentation`: the recipe, the data, and the reasons for what was not said."""
    if config is not None:
        recipe = recipes.load(config)
        stages.pixels_of(recipe)
        return recipe, sources.load(recipe.data.source, root=recipe.data.root), []
    if not data.source:
        raise LongtailError("say what to train on: camvid, ade20k, or a folder with images, masks and classes.csv")
    table = sources.load(data.source, root=data.root)
    recipe, why = derive(data, table, **dials)
    return recipe, table, why
