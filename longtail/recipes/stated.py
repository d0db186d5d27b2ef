"""What a recipe's docstring states: the command, its cost, and the number to expect with its band.

    Command: longtail reproduce cifar100-lt-100-200
    Data: CIFAR-100, ...
    Hardware: ...
    Time: ...
    Expected: 53.0 (52.0 to 54.5)
    Teacher: 57.9 (56.9 to 58.9)

`Expected` belongs to the stage that answers, another stage's number stands behind its name. A number without a name is
the accuracy; several are `miou 38.1 (37.1 to 39.1), macc 51.4 (49.9 to 52.9)`. All are in per cent but `tau_g`, a
temperature. A longer field goes on in indented lines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FIELDS = ("Command", "Data", "Hardware", "Time", "Expected")
PLAIN = ("tau_g",)  # everything else is in per cent
_NUMBER = re.compile(r"(?:([a-z_]+) )?([\d.]+) \(([\d.]+) to ([\d.]+)\)")


@dataclass(frozen=True)
class Expected:
    metric: str
    value: float  # the published one
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.metric} {self.value:g} ({self.low:g} to {self.high:g})"

    def verdict(self, measured: Mapping[str, Any]) -> str:
        """One line; `measured` is a summary, whose values are shares of one."""
        if (found := measured.get(self.metric)) is None:
            return f"{self.metric}: not measured; the paper has {self.value:g}"
        found, digits = (found, 3) if self.metric in PLAIN else (100 * found, 1)
        place = "inside" if self.low <= round(found, digits) <= self.high else "outside"
        return f"{self.metric} {found:.{digits}f}: {place} {self.low:g} to {self.high:g}; the paper has {self.value:g}"


@dataclass(frozen=True)
class Stated:
    title: str
    fields: dict[str, str]
    expected: dict[str, tuple[Expected, ...]]  # by stage; the answering one's under "Expected"

    def of_stage(self, stage: str, last: bool) -> tuple[Expected, ...]:
        return self.expected.get("Expected" if last else stage.capitalize(), ())


def stated(recipe: Callable[..., Any]) -> Stated:
    text = inspect.cleandoc(recipe.__doc__ or "")
    found = re.findall(r"^([A-Z][a-z]+): (.*(?:\n +\S.*)*)$", text, re.MULTILINE)
    fields = {name: " ".join(value.split()) for name, value in found}
    missing = [name for name in FIELDS if name not in fields]
    assert not missing, f"the docstring of {recipe.__name__} does not state {', '.join(missing)}"
    expected = {name: numbers(value) for name, value in fields.items() if name not in FIELDS[:-1]}
    return Stated(text.partition("\n")[0], fields, expected)


def numbers(text: str) -> tuple[Expected, ...]:
    return tuple(
        Expected(metric or "accuracy", float(value), float(low), float(high))
        for metric, value, low, high in _NUMBER.findall(text)
    )
