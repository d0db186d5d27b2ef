"""What `import longtail as lt` offers: the verbs of the command line as functions.

A `run` is the folder of one, an exported `.safetensors` file, what `train` returned or what `load` returned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longtail import comparison
from longtail.answers import adjust as adjusting
from longtail.answers import evaluation
from longtail.answers import export as exporting
from longtail.answers import predict as predicting
from longtail.answers.adjust import Adjusted
from longtail.answers.evaluation import Evaluation
from longtail.answers.export import Parity
from longtail.answers.predict import ImageLike, Prediction
from longtail.answers.run import PriorLike, Run, RunLike, open_run
from longtail.comparison import Comparison
from longtail.data import benchmarks, tails
from longtail.data.columns import Columns, refuse
from longtail.data.table import ImageTable
from longtail.engine import device as devices
from longtail.engine import stages, trained
from longtail.engine.session import train_run
from longtail.engine.trained import Model
from longtail.recipe import Data
from longtail.recipes.change import change, data_of
from longtail.recipes.derive import derive


def load(run: str | Path) -> Model:
    """The trained model as a plain module on the CPU: normalised images [B, 3, H, W] -> log p(x|c), [B, C].

    Add any log prior to what it returns. Its `card` says how images are normalised, which classes there are, and how
    many training images each had.

    >>> import torch, longtail as lt
    >>> model = lt.load("runs/digits")
    >>> loglik = model(torch.zeros(2, 3, 16, 16))
    >>> loglik.shape, model.classes[7], model.card["counts"][7] < model.card["counts"][0]
    (torch.Size([2, 10]), '7', True)
    """
    return trained.load(run)


def train(
    data: Any,
    method: str | None = None,
    *,
    out: str | Path | None = None,
    model: str | None = None,
    teacher: str | None = None,
    first_stage: str | Path | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
    imbalance: float | None = None,
    tail: str = "exp",
    subset_seed: int = 0,
    data_root: str | Path | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    on_bad_image: str = "stop",
    hold_out: float = 0.0,
    pretrained: bool = True,
    weights: str | Path | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    precision: str = "auto",
    device: str = "auto",
    workers: int | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train on a benchmark's name, a path, a data set object or an `ImageTable`; what is not said is derived.

    `settings` are what `--set` takes, by name: `{"k_m": 8, "teacher.epochs": 30}`. The rest are the dials of
    `longtail train`; `tail`, `subset_seed` and `imbalance` are of the cut, `data_root` of a name or a list. A run on
    data that have no name or path is asked about them only while Python runs, or with `data=` given again.

    >>> import longtail as lt
    >>> run = lt.train("digits-lt", "logit_adjusted", out="runs/doctest", model="small", epochs=8, quiet=True)
    >>> run.classes[:3], int(run.counts.sum())
    (('0', '1', '2'), 342)
    """
    named = isinstance(data, str | Path)
    changes = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    source = data_of(
        str(data) if named else "",
        changes,
        data_root=data_root,
        imbalance=imbalance,
        tail=tail,
        subset_seed=subset_seed,
        label_column=label_column,
        group_column=group_column,
        hold_out=hold_out,
        on_bad_image=on_bad_image,
    )
    say = (lambda line: None) if quiet else print
    if named:
        table = stages.load_data(source, say)
    else:
        table, source = _in_python(data, source)
        table = stages.ready(table, source, say)
    size = getattr(table.images, "pixels", None)
    recipe, why = derive(
        source,
        table.counts(),
        None if size is None else size.shape[1],
        method=method,
        model=model,
        teacher=teacher,
        first_stage=str(first_stage) if first_stage else None,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        augment=augment,
        pretrained=pretrained and weights is None,
        weights=str(weights) if weights else None,
        seed=seed,
        precision=precision,
    )
    recipe = change(recipe, changes)
    folder = Path(out) if out else Path("runs") / recipe.name
    place = devices.choose(recipe.precision, device)
    train_run(recipe, table, folder, place, resume=resume, why=why, workers=workers, quiet=quiet)
    opened = open_run(folder, device)
    return Run(opened.folder, opened.recipe, opened.model, opened.device, None if named else table)


def _in_python(data: Any, source: Data) -> tuple[ImageTable, Data]:
    """The table of a data set object, and how a run may load it again: by name if it is a benchmark that is whole."""
    columns = Columns(label=source.label_column, group=source.group_column)
    if not isinstance(data, ImageTable):
        table = benchmarks.load(data, columns=columns)
    else:
        refuse(columns, data.name)
        table = data
    if source.imbalance is not None:
        table = tails.cut(table, source.imbalance, source.profile, source.subset_seed)
    if table.loaded is not None:
        return table, replace(source, **table.loaded)
    return table, replace(source, source=f"{table.name} (in Python)", root=None)


def evaluate(
    run: RunLike,
    data: str | Path | ImageTable | None = None,
    *,
    split: str | None = None,
    prior: PriorLike | None = None,
    head: str = "cosine",
    absent: Sequence[str] = (),
    save_scores: bool = False,
    device: str = "auto",
) -> Evaluation:
    """Answer labelled images and count: print it, take numbers from its `summary`, or `save` it.

    `prior` is uniform, train, val, test, estimate, as-trained, a file, or probabilities by class name or in class
    order; as trained, if not said. `save_scores` keeps the prior-free scores, which `save` then writes too.

    >>> import longtail as lt
    >>> balanced = lt.evaluate("runs/digits", prior="uniform").summary
    >>> skewed = lt.evaluate("runs/digits", prior="train").summary
    >>> balanced["few"] > skewed["few"]  # the training mix hides the tail
    True
    """
    opened = open_run(run, device)
    return evaluation.evaluate(
        opened, data, split=split, prior=prior, head=head, absent=absent, keep_scores=save_scores
    )


def predict(
    run: RunLike,
    images: Iterable[ImageLike] | str | Path,
    *,
    prior: PriorLike = "uniform",
    head: str = "cosine",
    absent: Sequence[str] = (),
    top: int = 1,
    resize: bool = False,
    batch_size: int = 64,
    device: str = "auto",
) -> Iterator[Prediction]:
    """Name the class of images, in their order and a batch at a time; one that cannot be read has an `error`.

    `images` are paths and uint8 arrays [H, W, 3], or one path: of an image, a folder, or a list.

    >>> import longtail as lt
    >>> digits = lt.data.load("digits-lt")
    >>> pictures = [digits.images.decode(row) for row in digits.rows("test")[:20]]
    >>> answers = list(lt.predict("runs/digits", pictures, prior={"0": 0.5, "1": 0.5}))
    >>> {answer.answer for answer in answers} <= {"0", "1"}  # the others cannot occur here
    True
    """
    found = predicting.find_images([images]) if isinstance(images, str | Path) else images
    opened = open_run(run, device)
    return predicting.predict(
        opened, found, prior=prior, head=head, absent=absent, top=top, resize=resize, batch_size=batch_size
    )


def adjust(
    source: RunLike,
    data: str | Path | ImageTable | None = None,
    *,
    prior: PriorLike = "uniform",
    temperature: float | str | None = None,
    tau: float | str | None = None,
    val: str | Path | None = None,
    device: str = "auto",
) -> Adjusted:
    """Better answers without training: print the table before and after, take the `result`, or `save` it.

    `source` is a run, or an `.npz` of anybody's scores that states the prior they carry (docs/priors.md); `val` is then
    another such file, of the same model on validation images, to fit the temperature on.

    >>> import longtail as lt
    >>> done = lt.adjust("runs/digits", prior="train", temperature=1)
    >>> print(done.what)
    prior train, temperature 1
    >>> lt.adjust(done.result)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    longtail.errors.LongtailError: runs/digits was already adjusted (prior train, temperature 1): ...
    """
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        scores_of_val = None if val is None else Path(val)
        return adjusting.adjust_scores(Path(source), val=scores_of_val, prior=prior, temperature=temperature, tau=tau)
    return adjusting.adjust_run(open_run(source, device), data, prior=prior, temperature=temperature, tau=tau)


def export(
    run: RunLike,
    out: str | Path | None = None,
    format: str | None = None,
    *,
    images: Sequence[str | Path] | None = None,
) -> tuple[Path, Parity]:
    """Write a run as one file (onnx, torch, safetensors), kept only if it answers as the model does on real images.

    >>> import longtail as lt
    >>> path, parity = lt.export("runs/digits", "digits.safetensors")
    >>> parity.images, parity.same_answers, lt.load(path).classes[0]
    (8, 1.0, '0')
    """
    opened = open_run(run, "cpu")
    if opened.device.torch.type != "cpu":  # a run that was opened before, elsewhere
        opened = open_run(opened.folder, "cpu")
    return exporting.export(opened, Path(out) if out else None, format, images)


def compare(
    data: str | Path,
    methods: Sequence[str],
    *,
    seeds: int = 3,
    epochs: int | None = None,
    budget: str = "total",
    out: str | Path | None = None,
    **dials: Any,
) -> Comparison:
    """Train methods on the same data under equal budgets and several seeds; carries on where it was cut off.

    Every cell is a `longtail train` of its own, so one that fails takes nothing with it; `dials` are those of that
    command's options that methods can share, such as `model` and `imbalance`. `budget="total"` gives all methods the
    epochs of the longest, stages such as a teacher's counted.

    >>> import longtail as lt
    >>> methods = ["cross_entropy", "logit_adjusted"]
    >>> done = lt.compare("digits-lt", methods, seeds=2, epochs=2, out="runs/compare", model="small")
    >>> [row.seeds for row in done.rows], done.failed
    ([(0, 1), (0, 1)], ())
    """
    folder = Path(out) if out else None
    return comparison.compare(str(data), methods, seeds=seeds, epochs=epochs, budget=budget, out=folder, dials=dials)
