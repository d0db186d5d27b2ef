"""Published methods, one file each. `METHODS` is the only registry: a new method is a file and, here, two lines."""

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
from longtail.methods.published import Objective, Published
from longtail.recipe import nearest
from longtail.types import Counts

METHODS: dict[str, Published[Any]] = {}


def _listed(row: Published[Objective]) -> Objective:
    """Put a row into METHODS; returns its objective, whose type `lt.methods.NAME` keeps for editors and checkers."""
    METHODS[row.name] = row
    return row.objective


# In the order in which tables show them.
cross_entropy = _listed(_cross_entropy.METHOD)
balanced_softmax = _listed(_balanced_softmax.METHOD)
logit_adjusted = _listed(_logit_adjusted.METHOD)
gml = _listed(_gml.METHOD)
cosine_cross_entropy = _listed(_cosine_cross_entropy.METHOD)
focal = _listed(_focal.METHOD)
class_balanced = _listed(_class_balanced.METHOD)
class_balanced_focal = _listed(_class_balanced_focal.METHOD)
ldam_drw = _listed(_ldam_drw.METHOD)
vector_scaling = _listed(_vector_scaling.METHOD)
posthoc_adjusted = _listed(_posthoc_adjusted.METHOD)
tau_norm = _listed(_tau_norm.METHOD)
crt = _listed(_crt.METHOD)
lws = _listed(_lws.METHOD)
ncm = _listed(_ncm.METHOD)
supcon = _listed(_supcon.METHOD)
moco = _listed(_moco.METHOD)
bcl = _listed(_bcl.METHOD)
paco = _listed(_paco.METHOD)
gpaco = _listed(_gpaco.METHOD)
proco = _listed(_proco.METHOD)
kd = _listed(_kd.METHOD)
crd = _listed(_crd.METHOD)
zero_shot = _listed(_zero_shot.METHOD)
lift = _listed(_lift.METHOD)
vl_ltr_contrast = _listed(_vl_ltr.CONTRAST)
vl_ltr = _listed(_vl_ltr.METHOD)
gml_text = _listed(_gml_text.METHOD)

GIVEN = ("key_dim", "model")  # what an objective may ask of its stage: the width of its keys, its backbone's name


def find(name: str) -> Published[Any]:
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
