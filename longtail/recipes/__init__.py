"""Recipes by name: every experiment is a function whose docstring says how it is run and what comes out.

`RECIPES` is the only registry: a new one is a function and a line here. `longtail list recipes` shows them,
`longtail reproduce NAME` runs one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from longtail.errors import LongtailError
from longtail.recipe import Recipe, nearest
from longtail.recipes import cifar100_lt as _cifar100_lt

PRESETS = ("paper", "authors")

RECIPES: dict[str, Callable[..., Recipe]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        _cifar100_lt.cifar100_lt_100_200,
        _cifar100_lt.cifar100_lt_50_200,
        _cifar100_lt.cifar100_lt_10_200,
        _cifar100_lt.cifar100_lt_100_400,
        _cifar100_lt.cifar100_lt_50_400,
        _cifar100_lt.cifar100_lt_10_400,
    )
}


def find(name: str) -> Callable[..., Recipe]:
    if name not in RECIPES:
        raise LongtailError(f"there is no recipe {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name]


def build(name: str, preset: str = "paper") -> Recipe:
    """As the paper has it, or as the authors' script does where there is one."""
    function = find(name)
    if preset not in PRESETS:
        raise LongtailError(f"--preset is paper or authors, not {preset!r}")
    if "preset" in inspect.signature(function).parameters:
        return function(preset=preset)
    if preset != "paper":
        raise LongtailError(f"the authors published no script for {name}: leave --preset out")
    return function()
