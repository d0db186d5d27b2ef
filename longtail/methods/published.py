"""A row of the method table: what a published method chooses, and how it is built and staged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import nn

from longtail.recipe import Stage

Objective = TypeVar("Objective", bound=Callable[..., nn.Module])


def single_stage(base: Stage) -> tuple[Stage, ...]:
    return (base,)


@dataclass(frozen=True)
class Published(Generic[Objective]):
    """`objective(counts, dim, **settings)` is the loss with its head; the columns are for people and for the docs."""

    name: str
    objective: Objective
    paper: str
    likelihood: str
    samples: str
    prior: str
    numerator: str
    weight: str
    stages: Callable[[Stage], tuple[Stage, ...]] = single_stage
