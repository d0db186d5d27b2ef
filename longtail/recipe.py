"""What a run is, as data: frozen dataclasses, saved resolved with the run, enough to repeat it."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail.errors import LongtailError


@dataclass(frozen=True)
class Data:
    source: str  # a benchmark's name, a folder, or a file: see docs/data.md
    root: str | None = None  # where benchmarks are looked for; else the environment variable LONGTAIL_DATA
    imbalance: float | None = None  # n_max / n_min of a generated tail; 1 is balanced
    profile: str = "exp"  # exp, step or pareto
    label_column: str | None = None  # of a list or a table, where its name is not a usual one
    group_column: str | None = None  # rows of one group (a camera, a patient) stay on one side of a split
    test_fraction: float = 0.2  # held out where the data bring neither a test nor a validation split
    val_fraction: float = 0.0  # taken out of training as `val` where the data bring none
    on_bad_image: str = "stop"  # or skip: a training takes the next image of the batch, an evaluation counts it out
    subset_seed: int = 0  # which images a tail keeps; 0 is the published subset. `seed` never moves it


@dataclass(frozen=True)
class Optim:
    kind: str = "sgd"  # or adamw, which has no momentum to set
    lr: float = 0.1
    rates: dict[str, float] = field(default_factory=dict)  # how a parameter's name begins -> factor of its lr
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    decay_norm_and_bias: bool = True  # as the authors do; temperatures are never decayed
    schedule: str = "cosine"  # cosine, steps or poly
    steps_at: tuple[float, ...] = (0.8, 0.9)  # of the training, for schedule = steps
    step_factor: float = 0.1
    warmup_epochs: float = 0.0


@dataclass(frozen=True)
class Stage:
    """One training: a method by name and its settings, for how long, from which start."""

    name: str = "train"
    method: str = "logit_adjusted"
    settings: dict[str, Any] = field(default_factory=dict)  # arguments of the method's objective
    model: str = "resnet32"
    pretrained: bool = False
    weights: str | None = None  # a safetensors file for the backbone
    zero_init: bool = True  # residual blocks begin as the identity, as timm has it; torchvision and the authors do not
    epochs: int = 200
    batch_size: int = 128  # in all: over ranks and accumulation steps
    accumulate: int = 1
    sync_batchnorm: bool = False  # between GPUs; else every rank normalises by its own share of the batch
    optim: Optim = field(default_factory=Optim)
    sampler: str = "instance"
    views: dict[str, str] = field(default_factory=dict)  # view -> augmentation; the rest take `augment`
    augment: str = "weak"
    cached_views: int = 0  # so many class views of each image, in turn, of which the teacher is asked once; 0: ever new
    trains: str = "all"  # all, or head: the backbone stays as it came
    start_from: str = ""  # an earlier stage whose weights it starts with
    keys: str = ""  # "momentum", an earlier stage (a frozen teacher), its run folder, or "frozen": itself as it starts
    answers: bool = True  # False for an encoder without a head of its own
    ema: float = 0.0  # decay of a moving average of the weights, which then answers; 0 is none


@dataclass(frozen=True)
class Pixels:
    """What a segmentation is beside its stages: see `longtail/segmentation`."""

    architecture: str = "fcn"  # or deeplabv3plus
    output_stride: int = 8  # pixels of an image, along a side, to one of the backbone's last map
    crop: tuple[int, int] = (512, 512)  # height and width
    scale: tuple[float, float] = (0.5, 2.0)
    short_side: int | None = None  # images are brought to it first; as they are, if not given
    steps: int | None = None  # optimiser steps of an epoch; those of one pass over the images, if not given
    auxiliary: float = 0.4  # weight of the auxiliary head's loss; 0 is none
    queries: int = 64  # pixels of an image that are compared with the bank
    keys: int = 32  # pixels of an image that enter it
    inference: str = "whole"  # or slide, in windows of the crop's size


@dataclass(frozen=True)
class Recipe:
    data: Data
    stages: tuple[Stage, ...]
    name: str = "custom"
    seed: int = 0
    precision: str = "auto"  # auto, float32 or bfloat16
    evaluate_every: int = 1  # epochs between evaluations; the last epoch is always evaluated
    groups: str = "terciles"  # many, medium, few: terciles of one's own classes, or the benchmarks' threshold
    pixels: Pixels | None = None  # for segmentation


# What a number may be, whichever table it stands in. All have to be finite and fit in 64 bits.
_AT_LEAST = {
    **dict.fromkeys(
        ("epochs", "seed", "subset_seed", "lr", "momentum", "weight_decay", "warmup_epochs", "ema", "cached_views"), 0
    ),
    **dict.fromkeys(("test_fraction", "val_fraction", "auxiliary"), 0),
    **dict.fromkeys(("batch_size", "accumulate", "evaluate_every", "output_stride", "steps", "short_side"), 1),
}
_BELOW = dict.fromkeys(("test_fraction", "val_fraction", "ema"), 1)


def to_dict(recipe: Any) -> dict[str, Any]:
    return dataclasses.asdict(recipe)


def from_dict(values: dict[str, Any], where: str = "config") -> Recipe:
    return _build(Recipe, values, where)


def load(path: str | Path) -> Recipe:
    """Read a recipe from JSON or YAML; a run's own `config.json` repeats it."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml"):
            import yaml

            values = yaml.safe_load(text)
        else:
            values = json.loads(text)
    except OSError as error:
        raise LongtailError(f"cannot read the config {path}: {error.strerror}") from None
    except Exception as error:  # each parser has exceptions of its own, a deeply nested file even a RecursionError
        raise LongtailError(
            f"{path} is not valid {path.suffix.lstrip('.') or 'JSON'}: {str(error).splitlines()[0]}"
        ) from None
    if isinstance(values, dict) and "recipe" in values:
        values = values["recipe"]
    return from_dict(values, str(path))


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """'; did you mean "x"?' or the list of what there is."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(known)}"


def _build(kind: Any, value: Any, where: str) -> Any:
    """Plain data -> the annotated type, recursively. Unknown keys and wrong types are errors with a place."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise LongtailError(f"{where}: expected a table of settings, found {value!r}")
        hints, fields = typing.get_type_hints(kind), {f.name: f for f in dataclasses.fields(kind)}
        for key in value:
            if key not in fields:
                raise LongtailError(f"{where}: there is no setting {key!r}{nearest(str(key), fields)}")
        for name, f in fields.items():
            if name not in value and f.default is f.default_factory is dataclasses.MISSING:
                raise LongtailError(f"{where}: {name!r} is missing")
        built = {key: _build(hints[key], item, f"{where}: {key}") for key, item in value.items()}
        for key, item in built.items():
            if isinstance(item, (int, float)):
                _refuse_impossible(key, item, f"{where}: {key}")
        return kind(**built)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _build(next(a for a in arguments if a is not type(None)), value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise LongtailError(f"{where}: expected a list, found {value!r}")
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(kinds) != len(value):
            raise LongtailError(f"{where}: expected {len(kinds)} values, found {len(value)}")
        return tuple(_build(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, value, strict=True)))
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise LongtailError(f"{where}: expected a table, found {value!r}")
        if not all(isinstance(key, str) for key in value):
            raise LongtailError(f"{where}: the names in a table are words, found {list(value)!r}")
        of = arguments[1] if arguments else Any
        return {key: _build(of, item, f"{where}: {key}") for key, item in value.items()}
    if kind is Any:
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    assert isinstance(kind, type), kind
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise LongtailError(f"{where}: expected {kind.__name__}, found {value!r}")
    return value


def check_dials(**dials: float | None) -> None:
    """What was said by an option is answered by the option's name, before anything is derived from it."""
    for name, number in dials.items():
        if number is not None:
            _refuse_impossible(name, number, f"--{name.replace('_', '-')}")
    if dials.get("lr") == 0:
        raise LongtailError("--lr: 0 moves no weight: give a rate over 0, or leave it out to have it derived")


def _refuse_impossible(name: str, number: float, where: str) -> None:
    if not math.isfinite(number) or abs(number) >= 2**63:
        raise LongtailError(f"{where}: {number} is no number a run can use")
    if number < _AT_LEAST.get(name, number):
        raise LongtailError(f"{where}: {number} is less than {_AT_LEAST[name]}")
    if name in _BELOW and number >= _BELOW[name]:
        raise LongtailError(f"{where}: {number} is not below {_BELOW[name]}")
