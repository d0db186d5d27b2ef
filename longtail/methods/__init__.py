"""Published methods, one file each. `METHODS` is the only registry: a new method is a file and a line here."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from longtail.errors import LongtailError
from longtail.methods import balanced_softmax as _balanced_softmax
from longtail.methods import bcl as _bcl
from longtail.methods import class_balanced as _class_balanced
from longtail.methods import class_balanced_focal as _class_balanced_focal
from longtail.methods import cosine_cross_entropy as _cosine_cross_entropy
from longtail.methods import crd as _crd
from longtail.methods import cross_entropy as _cross_entropy
from longtail.methods import crt as _crt
from longtail.methods import focal as _focal
from longtail.methods import gml as _gml
from longtail.methods import gml_text as _gml_text
from longtail.methods import gpaco as _gpaco
from longtail.methods import kd as _kd
from longtail.methods import ldam_drw as _ldam_drw
from longtail.methods import lift as _lift
from longtail.methods import logit_adjusted as _logit_adjusted
from longtail.methods import lws as _lws
from longtail.methods import moco as _moco
from longtail.methods import ncm as _ncm
from longtail.methods import paco as _paco
from longtail.methods import posthoc_adjusted as _posthoc_adjusted
from longtail.methods import proco as _proco
from longtail.methods import supcon as _supcon
from longtail.methods import tau_norm as _tau_norm
from longtail.methods import vector_scaling as _vector_scaling
from longtail.methods import vl_ltr as _vl_ltr
from longtail.methods import zero_shot as _zero_shot
from longtail.methods.published import Published
from longtail.recipe import nearest
from longtail.types import Counts

METHODS: dict[str, Published] = {
    row.name: row
    for row in (
        _cross_entropy.METHOD,
        _balanced_softmax.METHOD,
        _logit_adjusted.METHOD,
        _gml.METHOD,
        _cosine_cross_entropy.METHOD,
        _focal.METHOD,
        _class_balanced.METHOD,
        _class_balanced_focal.METHOD,
        _ldam_drw.METHOD,
        _vector_scaling.METHOD,
        _posthoc_adjusted.METHOD,
        _tau_norm.METHOD,
        _crt.METHOD,
        _lws.METHOD,
        _ncm.METHOD,
        _supcon.METHOD,
        _moco.METHOD,
        _bcl.METHOD,
        _paco.METHOD,
        _gpaco.METHOD,
        _proco.METHOD,
        _kd.METHOD,
        _crd.METHOD,
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
cosine_cross_entropy = _cosine_cross_entropy.cosine_cross_entropy
focal = _focal.focal
class_balanced = _class_balanced.class_balanced
class_balanced_focal = _class_balanced_focal.class_balanced_focal
ldam_drw = _ldam_drw.LDAM
vector_scaling = _vector_scaling.VectorScaling
posthoc_adjusted = _posthoc_adjusted.posthoc_adjusted
tau_norm = _tau_norm.tau_norm
lws = _lws.lws
ncm = _ncm.NCM
supcon = _supcon.SupCon
moco = _moco.MoCo
bcl = _bcl.BCL
paco = _paco.PaCo
gpaco = _gpaco.GPaCo
proco = _proco.ProCo
kd = _kd.KD
crd = _crd.CRD
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
    counts: Counts,
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
    try:
        return find(name).objective(counts, dim, **settings, **given)
    except LongtailError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, RuntimeError, MemoryError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise LongtailError(f"the method {name!r} cannot be made with the settings {settings} ({why})") from error
