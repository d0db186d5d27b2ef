"""Published methods, one file each. `METHODS` is the only registry: a new method is a file and a line here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.methods import balanced_softmax as _balanced_softmax
from longtail.methods import cross_entropy as _cross_entropy
from longtail.methods import gml as _gml
from longtail.methods import gml_text as _gml_text
from longtail.methods import lift as _lift
from longtail.methods import logit_adjusted as _logit_adjusted
from longtail.methods import vl_ltr as _vl_ltr
from longtail.methods import zero_shot as _zero_shot
from longtail.methods.published import Published
from longtail.recipe import nearest

METHODS: dict[str, Published] = {
    row.name: row
    for row in (
        _cross_entropy.METHOD,
        _balanced_softmax.METHOD,
        _logit_adjusted.METHOD,
        _gml.METHOD,
        _zero_shot.METHOD,
        _lift.METHOD,
        _vl_ltr.CONTRAST,
        _vl_ltr.METHOD,
        _gml_text.METHOD,
    )
}

GIVEN = ("key_dim", "model")  # what an objective may ask of its stage: the width of its keys, its backbone's name

cross_entropy = _cross_entropy.cross_entropy
balanced_softmax = _balanced_softmax.balanced_softmax
logit_adjusted = _logit_adjusted.logit_adjusted
gml = _gml.GML
gml_text = _gml_text.TextGML


def find(name: str) -> Published:
    if name not in METHODS:
        raise LongtailError(f"there is no method {name!r}{nearest(name, METHODS)}")
    return METHODS[name]


def settings_of(name: str) -> dict[str, Any]:
    """The settings a method's objective takes, with their defaults."""
    parameters = inspect.signature(find(name).objective).parameters
    return {key: p.default for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY and key not in GIVEN}


def build_objective(
    name: str,
    counts: Sequence[int] | Tensor,
    dim: int,
    settings: dict[str, Any],
    key_dim: int | None = None,
    model: str = "",
) -> nn.Module:
    known = settings_of(name)
    for key in settings:
        if key not in known:
            raise LongtailError(f"the method {name!r} has no setting {key!r}{nearest(key, known)}")
    taken = inspect.signature(find(name).objective).parameters
    given = {key: value for key, value in zip(GIVEN, (key_dim, model), strict=True) if key in taken}
    return find(name).objective(counts, dim, **settings, **given)
