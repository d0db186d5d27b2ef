"""Recipes by name: every experiment is a function whose docstring says how it is run and what comes out.

`RECIPES` is the only registry: a new one is a function and a line here. `longtail list recipes` shows them,
`longtail reproduce NAME` runs one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace

from longtail.errors import LongtailError
from longtail.recipe import Recipe, nearest
from longtail.recipes import ade20k as _ade20k
from longtail.recipes import cifar10_lt as _cifar10_lt
from longtail.recipes import cifar100_lt as _cifar100_lt
from longtail.recipes import distillation as _distillation
from longtail.recipes import imagenet_lt as _imagenet_lt
from longtail.recipes import inat18 as _inat18
from longtail.recipes import text_centres as _text_centres

PRESETS = ("paper", "authors")

RECIPES: dict[str, Callable[..., Recipe]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        _imagenet_lt.imagenet_lt_90,
        _imagenet_lt.imagenet_lt_400,
        _inat18.inat18_100,
        _inat18.inat18_400,
        _cifar100_lt.cifar100_lt_100_200,
        _cifar100_lt.cifar100_lt_50_200,
        _cifar100_lt.cifar100_lt_10_200,
        _cifar100_lt.cifar100_lt_100_400,
        _cifar100_lt.cifar100_lt_50_400,
        _cifar100_lt.cifar100_lt_10_400,
        _text_centres.imagenet_lt_clip_rn50,
        _text_centres.imagenet_lt_clip_vitb,
        _text_centres.inat18_clip_vitb_384,
        _imagenet_lt.imagenet_lt_logit_adjusted,
        _imagenet_lt.imagenet_lt_bcl,
        _imagenet_lt.imagenet_lt_bcl_teacher,
        _imagenet_lt.imagenet_lt_momentum,
        _imagenet_lt.imagenet_lt_from_resnet34,
        _imagenet_lt.imagenet_lt_from_resnet50,
        _imagenet_lt.imagenet_lt_from_resnext50,
        _imagenet_lt.imagenet_lt_learned_tau,
        *_cifar10_lt.RECIPES,
        *_distillation.RECIPES,
        _ade20k.ade20k,
        _ade20k.ade20k_alpha_1,
        _ade20k.ade20k_cross_entropy,
    )
}


def find(name: str) -> Callable[..., Recipe]:
    name = name.replace("_", "-")
    if name not in RECIPES:
        raise LongtailError(f"there is no recipe {name!r}{nearest(name, RECIPES)}")
    return RECIPES[name]


def build(name: str, preset: str = "paper") -> Recipe:
    """As the paper has it, or as the authors' script does where there is one."""
    function = find(name)
    if preset not in PRESETS:
        raise LongtailError(f"--preset is paper or authors, not {preset!r}")
    presets = {"preset": preset} if "preset" in inspect.signature(function).parameters else {}
    if preset != "paper" and not presets:
        raise LongtailError(f"the authors published no script for {name}: leave --preset out")
    return replace(function(**presets), name=function.__name__.replace("_", "-"))
