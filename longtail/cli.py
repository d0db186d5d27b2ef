"""The command line: verbs, few dials, and errors in one sentence. The only file that imports the CLI library.

Start-up is what a newcomer feels first, so torch and everything above it is imported inside the verbs.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from longtail.errors import LongtailError
from longtail.segmentation import is_segmentation

Positional = tyro.conf.Positional
Repeated = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]

ABOUT = (
    "Train image classifiers when a few classes have most of the pictures, and use them where the class mix differs "
    "again. `longtail --version` says which longtail this is."
)
NOT_OF_PIXELS = "is for classifiers of images: a segmentation has none"


def refuse(why: str, **given: bool) -> None:
    """What was asked for and would not be heard is refused, not ignored."""
    for name, asked in given.items():
        if asked:
            raise LongtailError(f"--{name.replace('_', '-')} {why}")


def demo(out: Path = Path("runs/demo"), seeds: int = 3) -> None:
    """Real handwritten digits with a long tail: plain, logit-adjusted and GML, in under 90 seconds, no download.

    Args:
        out: where the table and the figure go.
        seeds: how often each is trained.
    """
    from longtail.demo import run_demo

    run_demo(out, seeds)


def train(
    data: Positional[str] = "",
    /,
    task: str = "classification",
    method: str | None = None,
    alpha: float | None = None,
    model: str | None = None,
    clip: str | None = None,
    sentences: str | None = None,
    teacher: str | None = None,
    first_stage: Path | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
    imbalance: float | None = None,
    tail: str = "exp",
    subset_seed: int = 0,
    data_root: Path | None = None,
    label_column: str | None = None,
    group_column: str | None = None,
    hold_out: float = 0.0,
    from_scratch: bool = False,
    seed: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    weights: Path | None = None,
    workers: int | None = None,
    on_bad_image: str = "stop",
    out: Path | None = None,
    resume: bool = False,
    config: Path | None = None,
    set: Repeated = (),
    print_config: bool = False,
    dry_run: bool = False,
    profile: bool = False,
) -> None:
    """Train on a benchmark's name, a folder, or a list file. What is not said is derived from the data, and printed.

    Args:
        data: digits-lt, cifar10-lt, cifar100-lt, cifar100-lt-dev (to choose by), imagenet-lt, places-lt, inat18,
            imagenet (balanced), or the path of your images; for pixels camvid, ade20k, or your folder.
        task: classification, or segmentation of pixels.
        method: see `longtail list methods`; gml, or cross_entropy where there is no tail, if not said.
        alpha: what multiplies the log prior of a segmentation in training; 1 if not said.
        model: resnet20 to resnet110 (CIFAR), small, or any timm name.
        clip: a CLIP in place of a model: ViT-B-16/openai, or a folder; needs `pip install 'longtail[clip]'`.
        sentences: what methods that read text are told of the classes: JSON lines, or a folder in VL-LTR's layout.
        teacher: for methods that have one, the model of its stage, or a trained run's folder (with a slash); momentum
            takes a moving average of the student instead.
        first_stage: a finished run's folder in place of the stage that a decoupled or post-hoc method starts from
            (cross_entropy for tau_norm, crt, lws, ncm, posthoc_adjusted), or of an encoder's.
        epochs: of every stage.
        batch_size: in all, over devices and accumulation steps.
        lr: learning rate at that batch size.
        augment: none, shift, weak, autoaugment; for photographs crop, randaugment, sim, randstack.
        imbalance: cut a balanced training set to this n_max / n_min; 1 leaves it balanced.
        tail: profile of that cut: exp, step or pareto.
        subset_seed: which images the cut keeps; 0 is the published subset. --seed never moves it.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        hold_out: share of every class to keep out of training as val, where the data bring none: for `adjust`, and for
            the average of the two answers.
        label_column: of a list or parquet file, where it has an unusual name.
        group_column: rows of one group (a camera, a patient) stay on one side of a split.
        from_scratch: no pretrained weights.
        seed: of weights, order and augmentation; 0 if not said.
        precision: auto, float32 or bfloat16; auto if not said.
        device: auto, cpu, cuda or mps.
        weights: a safetensors file to start the backbone from, or a run folder.
        workers: processes that read images; batches do not depend on their number.
        on_bad_image: stop with its name, or skip it and count it.
        out: the run folder; runs/DATA-METHOD if not given.
        resume: carry on in the run folder, bit for bit.
        config: a recipe as JSON or YAML; a run's config.json repeats it. Of the dials above, those of a recipe are then
            said with --set; --seed, --precision and --data-root are heard.
        set: change one setting by name, as in --set k_m=8 --set teacher.epochs=30 (repeatable).
        print_config: print the resolved recipe and stop.
        dry_run: do everything up to the first epoch, then stop.
        profile: time the parts of a step (load, augment, teacher, forward, likelihood, backward, optimiser), then stop.
    """
    from longtail import recipe as recipes
    from longtail.engine import device as devices
    from longtail.engine.stages import load_data
    from longtail.recipes.change import change, data_of, from_config
    from longtail.recipes.derive import derive

    why: list[str] = []
    task_of: dict[str, Any] = {}
    changes = list(set)
    of_images = {
        "clip": clip is not None,
        "sentences": sentences is not None,
        "first_stage": first_stage is not None,
        "augment": augment is not None,
        "imbalance": imbalance is not None,
        "tail": tail != "exp",
        "subset_seed": subset_seed != 0,
        "label_column": label_column is not None,
        "group_column": group_column is not None,
        "hold_out": hold_out != 0,
        "on_bad_image": on_bad_image != "stop",
    }
    if task not in ("classification", "segmentation"):
        raise LongtailError(f"--task is classification or segmentation, not {task!r}")
    if config is not None:
        if data:
            raise LongtailError(f"{config} names its data: leave {data!r} out, or say --set data.source={data}")
        refuse(
            f"is said by {config}: leave it out, or say it with --set",
            method=method is not None,
            alpha=alpha is not None,
            model=model is not None,
            teacher=teacher is not None,
            epochs=epochs is not None,
            batch_size=batch_size is not None,
            lr=lr is not None,
            from_scratch=from_scratch,
            weights=weights is not None,
            **of_images,
        )
        recipe = from_config(config, changes, seed=seed, precision=precision, root=data_root)
        if task == "segmentation" or recipe.pixels is not None:
            from longtail.segmentation import command

            table, task_of = command.table_of(recipe), command.TASK
        else:
            table = load_data(recipe.data)
    elif task == "segmentation":
        from longtail.segmentation import command

        refuse(NOT_OF_PIXELS, **of_images)
        recipe, table, why = command.recipe_of(
            data_of(data, changes, data_root=data_root),
            method=method or "gml",
            alpha=alpha,
            model=model,
            teacher=teacher,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            pretrained=not from_scratch and weights is None,
            weights=str(weights) if weights else None,
            seed=seed or 0,
            precision=precision or "auto",
        )
        recipe, task_of = change(recipe, changes), command.TASK
    elif data:
        if alpha is not None:
            raise LongtailError(
                "--alpha is for --task segmentation: images take --set alpha=0.5 (GML) or --set tau=0.5"
            )
        if clip and model:
            raise LongtailError("--clip stands in the place of --model: give one of them")
        source = data_of(
            data,
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
        table = load_data(source, print)
        size = getattr(table.images, "pixels", None)
        recipe, why = derive(
            source,
            table.counts(),
            None if size is None else size.shape[1],
            method=method,
            model=f"clip:{clip}" if clip else model,
            sentences=sentences,
            teacher=teacher,
            first_stage=str(first_stage) if first_stage else None,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            augment=augment,
            pretrained=not from_scratch and weights is None,
            weights=str(weights) if weights else None,
            seed=seed or 0,
            precision=precision or "auto",
        )
        recipe = change(recipe, changes)
    else:
        raise LongtailError("say what to train on: `longtail train my_images/`, or --config FILE")
    if print_config:
        print(json.dumps(recipes.to_dict(recipe), indent=1))
        return

    from longtail.engine.session import train_run

    place = devices.choose(recipe.precision, device)
    train_run(
        recipe,
        table,
        out or Path("runs") / recipe.name,
        place,
        resume=resume,
        dry_run=dry_run,
        profiling=profile,
        why=why,
        workers=workers,
        **task_of,
    )


def evaluate(
    run: Positional[Path],
    /,
    data: str | None = None,
    split: str | None = None,
    prior: str | None = None,
    head: str = "cosine",
    absent: Repeated = (),
    save_scores: bool = False,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Answer labelled images with a trained run, and print and keep the full report.

    Args:
        run: the run folder.
        data: other images than the run's own, with the same class names: a folder, a list, parquet.
        split: train, val or test; the test split if not said, else val, else all there is.
        prior: as-trained (the published rule, and the default), uniform, train, val, test, estimate (learned from the
            images without their labels), or a file of `class,probability` lines; its zeros rule classes out.
        head: cosine (the trained classifier), kernel (the mixture over the bank), or both (their average).
        absent: a class that cannot occur here (repeatable).
        save_scores: also keep the prior-free scores, for `longtail adjust`.
        out: where report.json and per_class.csv go; RUN/eval/SPLIT-PRIOR if not given, and what else was asked.
        device: auto, cpu, cuda or mps.
    """
    if is_segmentation(run):
        from longtail.segmentation import command

        refuse(NOT_OF_PIXELS, head=head != "cosine", absent=bool(absent), save_scores=save_scores)
        print(command.evaluate(run, data, split, prior, out, device))
        return
    from longtail.answers.evaluation import evaluate
    from longtail.answers.run import open_run

    opened = open_run(run, device)
    done = evaluate(
        opened,
        data,
        split=split,
        prior=prior,
        head=head,
        absent=absent,
        keep_scores=save_scores,
    )
    print(done)
    hint = (
        "" if opened.model.adjusted else f"   next: longtail report {run}"
    )  # an adjusted run has no training to report
    print(f"\nsaved {done.save(out or opened.beside / 'eval' / done.name)}{hint}")


def predict(
    run: Positional[Path],
    images: Positional[tuple[str, ...]],
    /,
    prior: str | None = None,
    head: str = "cosine",
    absent: Repeated = (),
    top: int = 1,
    format: str = "csv",
    out: Path | None = None,
    resize: bool = False,
    batch_size: int = 64,
    device: str = "auto",
) -> None:
    """Name the class of images, one line each: class, probability under the prior, group, a flag for low support.

    A segmentation paints a mask and an overlay of each, as PNG in the folder OUT.

    Args:
        run: the run folder.
        images: files, folders, lists (CSV, TSV, TXT), or - for a path a line from the standard input.
        prior: uniform, train, estimate (learned from these images first), as-trained, or a file of `class,probability`;
            uniform if not said, for a segmentation as-trained.
        head: cosine (the trained classifier), kernel (the mixture over the bank), or both (their average).
        absent: a class that cannot occur here (repeatable).
        top: how many classes to name for each image.
        format: csv, or jsonl for a JSON object a line.
        out: a file; the standard output if not given. It is called FILE.partial until the last line is in it.
        resize: bring images of other sizes to the one the model was trained on.
        batch_size: images answered at a time.
        device: auto, cpu, cuda or mps.
    """
    if is_segmentation(run):
        from longtail.segmentation import command

        refuse(
            NOT_OF_PIXELS,
            head=head != "cosine",
            absent=bool(absent),
            top=top != 1,
            format=format != "csv",
            resize=resize,
            batch_size=batch_size != 64,
        )
        print(command.predict(run, images, prior, out, device))
        return
    from longtail.answers import predict as predicting
    from longtail.answers.run import open_run

    if format not in ("csv", "jsonl"):
        raise LongtailError(f"--format is csv or jsonl, not {format!r}")
    if not images:
        raise LongtailError("say which images: files, folders, lists, or - for paths from the standard input")
    answers = predicting.predict(
        open_run(run, device),
        predicting.find_images(images),
        prior=prior or "uniform",
        head=head,
        absent=absent,
        top=top,
        resize=resize,
        batch_size=batch_size,
    )
    total, failed = predicting.write(answers, out, format, top)
    if failed:
        raise LongtailError(
            f"{len(failed):,} of {total:,} images have no answer; their lines say why, the first: {failed[0].error}"
        )


def adjust(
    source: Positional[Path],
    /,
    prior: str = "uniform",
    temperature: str | None = None,
    tau: str | None = None,
    data: str | None = None,
    val: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Better answers without training: another prior, a temperature, tau-normalisation; with a table before and after.

    Args:
        source: a run folder, or an .npz of anybody's scores that states the prior they carry.
        prior: uniform, train, val, test, estimate, or a file of `class,probability` lines.
        temperature: a number, or fit (on val); fitted if not said and there is a val split.
        tau: divide a linear head's class weights by their norm to this: a number, or fit (on val); takes no prior.
        data: other images than the run's own.
        val: an .npz of the same model's scores on val images, where the source is an .npz.
        out: a folder for an adjusted run (RUN/adjusted if not given), or an .npz.
        device: auto, cpu, cuda or mps.
    """
    from longtail.answers.adjust import adjust_run, adjust_scores
    from longtail.answers.run import open_run

    if source.suffix != ".npz":
        done = adjust_run(open_run(source, device), data, prior=prior, temperature=temperature, tau=tau)
    else:
        done = adjust_scores(source, val=val, prior=prior, temperature=temperature, tau=tau)
    print(done)
    print(f"\nsaved {done.save(out)}")


def report(
    runs: Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
    device: str = "auto",
) -> None:
    """Write one HTML page about a run, or about several side by side; runs that differ in the seed alone are averaged.

    Args:
        runs: run folders; the first method is the baseline.
        out: the page; report.html in the first run's folder if not given.
        device: auto, cpu, cuda or mps.
    """
    if not runs:
        raise LongtailError("say which runs to report: `longtail report runs/first`")
    if is_segmentation(runs[0]):
        from longtail.segmentation import command

        print(command.report(runs, out, device))
        return
    from longtail.answers.report import report

    path, table = report(runs, out, device)
    print(f"{table}\nin per cent\n\nsaved {path}   open it in a browser; it needs no network")


def compare(
    data: Positional[str],
    /,
    methods: str = "cross_entropy,logit_adjusted,gml",
    seeds: int = 3,
    epochs: int | None = None,
    budget: str = "total",
    model: str | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
    imbalance: float | None = None,
    data_root: Path | None = None,
    hold_out: float | None = None,
    from_scratch: bool = False,
    precision: str | None = None,
    device: str | None = None,
    workers: int | None = None,
    out: Path | None = None,
) -> None:
    """Train methods on the same data under equal budgets and several seeds: one table, one figure; carries on.

    Args:
        data: a benchmark's name, or the path of your images.
        methods: names with commas between them; see `longtail list methods`.
        seeds: how often each is trained.
        epochs: of the longest method's longest stage; derived from the data if not said.
        budget: total gives all methods the epochs of the longest, a teacher's counted; stage gives every stage the
            same.
        model: resnet20 to resnet110 (CIFAR), small, or any timm name.
        batch_size: in all.
        lr: learning rate at that batch size.
        augment: as `longtail train` takes it.
        imbalance: cut a balanced training set to this n_max / n_min; 1 leaves it balanced.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        hold_out: share of every class to keep out of training as val.
        from_scratch: no pretrained weights.
        precision: auto, float32 or bfloat16.
        device: auto, cpu, cuda or mps.
        workers: processes that read images.
        out: where runs, table and figure go; runs/compare/DATA if not given. The same command carries on there.
    """
    from longtail import comparison

    dials = {
        "model": model,
        "batch_size": batch_size,
        "lr": lr,
        "augment": augment,
        "imbalance": imbalance,
        "data_root": data_root,
        "hold_out": hold_out,
        "from_scratch": from_scratch or None,
        "precision": precision,
        "device": device,
        "workers": workers,
    }
    names = [name.strip() for name in methods.split(",") if name.strip()]
    done = comparison.compare(data, names, seeds=seeds, epochs=epochs, budget=budget, out=out, dials=dials)
    print(f"\n{done}\n\nsaved {done.folder}" + ("" if done.figure is None else f"   the picture: {done.figure}"))
    if done.failed:
        cell, why = done.failed[0]
        cells = len(names) * seeds
        raise LongtailError(
            f"{len(done.failed)} of {cells} cells failed and the rest is kept; the first: {cell}, {why}"
        )


def export(
    run: Positional[Path],
    /,
    format: str | None = None,
    out: Path | None = None,
    images: tuple[str, ...] = (),
) -> None:
    """Write a trained run as one file for elsewhere, and check its answers against the model's on real images.

    Args:
        run: the run folder.
        format: onnx, torch (torch.export), or safetensors (weights and card, for longtail.load); if not said, by the
            ending of OUT (.onnx, .pt2, .safetensors), else onnx.
        out: the file; RUN/model-export.* if not given.
        images: images or folders to check with; the run's own test images if not given.
    """
    if is_segmentation(run):
        from longtail.segmentation import command

        refuse(NOT_OF_PIXELS, images=bool(images))
        print(command.export(run, out, format or "onnx"))
        return
    from longtail.answers.export import export
    from longtail.answers.run import open_run

    path, parity = export(open_run(run, "cpu"), out, format, list(images) or None)
    print(
        f"parity on {parity.images} real images: scores at most {parity.largest_difference:.2g} apart, "
        f"{100 * parity.same_answers:.0f} % the same answers\nsaved {path}"
    )


def serve(
    run: Positional[Path],
    /,
    port: int | None = None,
    device: str = "auto",
) -> None:
    """A page on this machine: drop an image, move the prior from uniform to train, see the bank's nearest samples.

    Args:
        run: the run folder.
        port: of 127.0.0.1; the first free one from 7860 if not given.
        device: auto, cpu, cuda or mps.
    """
    if is_segmentation(run):
        raise LongtailError("serve shows classes of whole images: paint a segmentation's masks with `longtail predict`")
    from longtail.answers.run import open_run
    from longtail.answers.serve import serve

    serve(open_run(run, device), port)


def inspect(
    data: Positional[str],
    /,
    out: Path | None = None,
    data_root: Path | None = None,
    imbalance: float | None = None,
    tail: str = "exp",
    label_column: str | None = None,
    group_column: str | None = None,
) -> None:
    """What does my tail look like, and would anything spoil a training? Decodes every image.

    Args:
        data: a benchmark's name, a folder, or a list file.
        out: where inspect.json and counts.png go; runs/inspect/DATA if not given.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        imbalance: cut a balanced training set to this n_max / n_min first.
        tail: profile of that cut: exp, step or pareto.
        label_column: of a list or parquet file, where it has an unusual name.
        group_column: rows of one group (a camera, a patient) belong on one side of a split.
    """
    from longtail.data import benchmarks
    from longtail.data.columns import Columns
    from longtail.data.inspect import inspect_table

    columns = Columns(label=label_column, group=group_column)
    table = benchmarks.load(data, root=data_root, imbalance=imbalance, profile=tail, columns=columns)
    out = out or Path("runs/inspect") / table.name
    report = inspect_table(table, out)
    print(f"{report.render()}\nsaved {out}: inspect.json, counts.png")
    if report.exit_code:
        raise SystemExit(report.exit_code)


def data(
    action: Positional[Literal["prepare"]],
    name: Positional[str],
    /,
    data_root: Path | None = None,
    verify_only: bool = False,
) -> None:
    """Fetch a benchmark, or say exactly what to put where; then verify it: how many files are missing, and which.

    Args:
        action: prepare.
        name: cifar10-lt, cifar100-lt, imagenet-lt, inat18, places-lt or ade20k.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        verify_only: fetch nothing.
    """
    from longtail.data.prepare import prepare

    prepared = prepare(name, data_root, download=not verify_only, say=print)
    print(prepared.render())
    if prepared.exit_code:
        raise SystemExit(prepared.exit_code)


def queue(
    file: Positional[Path],
    /,
    runs: Path = Path("runs/queue"),
    results: Path = Path("results"),
    dry_run: bool = False,
) -> None:
    """Work off a list of runs one at a time; carries on where it was cut off, and keeps what it finishes.

    Args:
        file: YAML: `jobs`, each with a `name` and what to `run`; see longtail/engine/queue.py.
        runs: where the runs and their checkpoints are.
        results: where the numbers and the final weights go; what has a file there is done.
        dry_run: say what would be run, and stop.
    """
    from longtail.engine import queue as queues

    jobs = queues.read_jobs(file)
    if dry_run:
        for job in jobs:
            done = (results / f"{job.name}.json").exists()
            print(f"{'done' if done else 'to do':5s}  {job.name}: {job.command}")
        return
    outcomes = queues.work(jobs, runs, results)
    print(queues.summary(outcomes, jobs))
    if failed := [outcome for outcome in outcomes if outcome.how == "failed"]:
        raise LongtailError(
            f"{len(failed)} of {len(jobs)} jobs failed, the first: {failed[0].job.name}, {failed[0].why}"
        )


def reproduce(
    name: Positional[str],
    /,
    preset: Literal["paper", "authors"] = "paper",
    stage: str | None = None,
    teacher: Path | None = None,
    sentences: str | None = None,
    data_root: Path | None = None,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    workers: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    set: Repeated = (),
    dry_run: bool = False,
    print_config: bool = False,
) -> None:
    """Run an experiment of the paper, and say whether its number came out; `longtail list recipes` names them.

    Args:
        name: the recipe.
        preset: to the paper's letter, or with the settings of the authors' script where there is one.
        stage: this one alone, which can be used as --teacher later.
        teacher: the folder of a finished run, in place of the recipe's first stage.
        sentences: what a CLIP is told of the classes, where that is not beside the images; see `train`.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        seed: of weights, order and augmentation.
        precision: auto, float32 or bfloat16.
        device: auto, cpu, cuda or mps.
        workers: processes that read images; batches do not depend on their number.
        out: the run folder; runs/NAME, with what else was said, if not given.
        resume: carry on in the run folder, bit for bit.
        set: change one setting by name, as `train` does; the number is then not the paper's experiment any more.
        dry_run: two steps of every stage, on generated images where the recipe's own are not here; says what they cost.
        print_config: print the resolved recipe and stop.
    """
    from longtail import recipe as recipes
    from longtail import reproduce as reproducing
    from longtail.recipes.change import change

    recipe = reproducing.recipe_of(
        name,
        preset=preset,
        stage=stage,
        teacher=str(teacher) if teacher else None,
        sentences=sentences,
        data_root=str(data_root) if data_root else None,
        seed=seed,
        precision=precision,
    )
    recipe = change(recipe, list(set))
    if print_config:
        print(json.dumps(recipes.to_dict(recipe), indent=1))
        return
    if dry_run:
        print(reproducing.dry_run(name, recipe, device=device, workers=workers, out=out))
        return
    said = (recipe.name, preset if preset != "paper" else "", f"s{seed}" if seed else "")
    out = out or Path("runs") / "-".join(part for part in said if part)
    changed = list(set)
    print(reproducing.reproduce(name, recipe, out, device=device, resume=resume, workers=workers, changed=changed))


def list_(what: Positional[str] = "methods", /) -> None:
    """What there is to choose from.

    Args:
        what: methods, models, datasets or recipes.
    """
    if what == "methods":
        from longtail.methods import METHODS

        rows = [("method", "likelihood", "samples or centres", "prior in training", "numerator", "weight", "paper")]
        rows += [(m.name, m.likelihood, m.samples, m.prior, m.numerator, m.weight, m.paper) for m in METHODS.values()]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    elif what == "models":
        from longtail.models.backbone import CIFAR_RESNETS

        print("\n".join(["small", *CIFAR_RESNETS]))
        print("and any timm name: python -c 'import timm; print(timm.list_models(pretrained=True))'")
    elif what == "datasets":
        from longtail.data.benchmarks import BENCHMARKS, FOLDERS
        from longtail.segmentation.sources import NAMED

        print("\n".join(f"{name:15s} imbalance {imbalance}" for name, imbalance in BENCHMARKS.items()))
        print("\n".join(f"{name:15s} balanced" for name in FOLDERS))
        print("\n".join(f"{name:15s} pixels, with --task segmentation" for name in NAMED))
        print("or the path of a folder of class folders, or of a CSV, TSV, TXT or parquet file")
    elif what == "recipes":
        from longtail.recipes import RECIPES
        from longtail.recipes.stated import stated

        for name, recipe in RECIPES.items():
            said = stated(recipe)
            print(f"{name}: {said.title}\n    expected {said.fields['Expected']}; {said.fields['Time']}")
    else:
        raise LongtailError(f"list takes methods, models, datasets or recipes, not {what!r}")


VERBS: dict[str, Callable[..., Any]] = {
    "demo": demo,
    "train": train,
    "evaluate": evaluate,
    "predict": predict,
    "adjust": adjust,
    "report": report,
    "compare": compare,
    "export": export,
    "serve": serve,
    "inspect": inspect,
    "data": data,
    "queue": queue,
    "reproduce": reproduce,
    "list": list_,
}


def main(arguments: Sequence[str] | None = None) -> int:
    from longtail import __version__

    arguments = sys.argv[1:] if arguments is None else arguments
    warnings.formatwarning = lambda message, *_, **__: f"longtail: {message}\n"  # a place in the code is no use here
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(VERBS, prog="longtail", description=ABOUT, args=arguments)
    except LongtailError as error:
        print(f"longtail: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `longtail list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if type(error).__name__ != "Interrupted":  # by name, because importing the engine here would slow every --help
            raise
        return 128 + error.signal  # type: ignore[attr-defined]
    return 0


if __name__ == "__main__":
    sys.exit(main())
