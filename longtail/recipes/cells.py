"""Recipes that fill a table: one function a cell, whose docstring is written from what the cells do not share."""

from __future__ import annotations

from collections.abc import Callable

from longtail.recipe import Recipe

GPU = 20e12  # multiply-accumulates a second that are reached at 40 TFLOP/s
CORE = 120e9  # the same of one core in bfloat16, measured with the CIFAR networks


def cell(
    name: str, title: str, build: Callable[[], Recipe], *, data: str, hardware: str, time: str, expected: float
) -> Callable[[], Recipe]:
    """Its band is a point to either side, as everywhere."""

    def recipe() -> Recipe:
        return build()

    recipe.__name__ = name.replace("-", "_")
    recipe.__doc__ = f"""{title}

    Command: longtail reproduce {name}
    Data: {data}
    Hardware: {hardware}
    Time: not measured; by arithmetic {time}
    Expected: {expected} ({expected - 1:.1f} to {expected + 1:.1f})
    """
    return recipe


def on_a_gpu(macs: float) -> str:
    return f"{_hours(macs / GPU)} of a GPU at 40 TFLOP/s"


def on_a_core(macs: float) -> str:
    return f"{_hours(macs / CORE)} of one core"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f} hours" if hours >= 1.5 else f"{60 * hours:.0f} minutes"
