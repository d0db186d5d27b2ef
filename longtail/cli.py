"""The command line: verbs, few dials, and errors in one sentence. The only file that imports the CLI library.

Start-up is what a newcomer feels first, so torch and everything above it is imported inside the verbs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from longtail.errors import LongtailError

Positional = tyro.conf.Positional


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
    method: str = "gml",
    alpha: float | None = None,
    model: str | None = None,
    clip: str | None = None,
    sentences: str | None = None,
    teacher: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    augment: str | None = None,
    imbalance: float | None = None,
    tail: str = "exp",
    subset_seed: int = 0,
    data_root: Path | None = None,
    from_scratch: bool = False,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    weights: Path | None = None,
    workers: int | None = None,
    on_bad_image: str = "stop",
    out: Path | None = None,
    resume: bool = False,
    config: Path | None = None,
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    print_config: bool = False,
    dry_run: bool = False,
) -> None:
    """Train on a benchmark's name, a folder, or a list file. What is not said is derived from the data, and printed.

    Args:
        data: digits-lt, cifar10-lt, cifar100-lt, or the path of your images; for pixels camvid, ade20k, or your folder.
        task: classification, or segmentation of pixels.
        method: see `longtail list methods`.
        alpha: what multiplies the log prior of a segmentation in training; 1 if not said.
        model: resnet20 to resnet110 (CIFAR), small, or any timm name.
        clip: a CLIP in place of a model: ViT-B-16/openai, or a folder; needs `pip install 'longtail[clip]'`.
        sentences: what methods that read text are told of the classes: JSON lines, or a folder in VL-LTR's layout.
        teacher: model of the teacher's stage, or a trained run's folder (with a slash), for methods that have one.
        epochs: of every stage.
        batch_size: in all, over devices and accumulation steps.
        lr: learning rate at that batch size.
        augment: none, shift, weak, autoaugment; for photographs crop, randaugment, sim, randstack.
        imbalance: cut a balanced training set to this n_max / n_min; 1 leaves it balanced.
        tail: profile of that cut: exp, step or pareto.
        subset_seed: which images the cut keeps; 0 is the published subset. --seed never moves it.
        data_root: where benchmarks lie; else the environment variable LONGTAIL_DATA.
        from_scratch: no pretrained weights.
        seed: of weights, order and augmentation.
        precision: auto, float32 or bfloat16.
        device: auto, cpu, cuda or mps.
        weights: a safetensors file to start the backbone from, or a run folder.
        workers: processes that read images; batches do not depend on their number.
        on_bad_image: stop with its name, or skip it and count it.
        out: the run folder; runs/DATA-METHOD if not given.
        resume: carry on in the run folder, bit for bit.
        config: a recipe as JSON or YAML; a run's config.json repeats it.
        set: change one setting by name, as in --set k_m=8 --set teacher.epochs=30 (repeatable).
        print_config: print the resolved recipe and stop.
        dry_run: do everything up to the first epoch, then stop.
    """
    from longtail import recipe as recipes
    from longtail.data.benchmarks import BENCHMARKS
    from longtail.engine import device as devices
    from longtail.engine.stages import load_data
    from longtail.recipes.change import change
    from longtail.recipes.derive import derive

    why: list[str] = []
    task_of: dict[str, Any] = {}
    if task != "classification":
        from longtail.segmentation import command

        if task != "segmentation":
            raise LongtailError(f"--task is classification or segmentation, not {task!r}")
        recipe, table, why = command.recipe_of(
            config,
            recipes.Data(data, str(data_root) if data_root else None),
            method=method,
            alpha=alpha,
            model=model,
            teacher=teacher,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            pretrained=not from_scratch and weights is None,
            weights=str(weights) if weights else None,
            seed=seed,
            precision=precision,
        )
        task_of = command.TASK
    elif config is not None:
        recipe = recipes.load(config)
        table = load_data(recipe.data)
    elif data:
        if clip and model:
            raise LongtailError("--clip stands in the place of --model: give one of them")
        root = str(data_root) if data_root else None
        imbalance = imbalance or BENCHMARKS.get(data)
        source = recipes.Data(data, root, imbalance, tail, subset_seed=subset_seed, on_bad_image=on_bad_image)
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
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            augment=augment,
            pretrained=not from_scratch and weights is None,
            weights=str(weights) if weights else None,
            seed=seed,
            precision=precision,
        )
    else:
        raise LongtailError("say what to train on: `longtail train my_images/`, or --config FILE")
    recipe = change(recipe, list(set))
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
        why=why,
        workers=workers,
        **task_of,
    )


def evaluate(run: Positional[Path], /, prior: str = "as-trained") -> None:
    """Answer the test images of a trained run again and print the full report.

    Args:
        run: the run folder.
        prior: as-trained, uniform, train, test, or a file of `class,probability` lines.
    """
    from longtail.engine.session import evaluate_run
    from longtail.evaluate.metrics import HEADLINE, REST, render

    summary = evaluate_run(run, prior)
    print(render({f"prior {prior}": summary}, HEADLINE))
    print()
    print(render({f"prior {prior}": summary}, REST))


def list_(what: Positional[str] = "methods", /) -> None:
    """What there is to choose from.

    Args:
        what: methods, models, datasets or recipes.
    """
    if what == "methods":
        from longtail.methods import METHODS

        for row in METHODS.values():
            print(f"{row.name:20s} {row.likelihood} likelihood, prior {row.prior}; {row.paper}")
    elif what == "models":
        from longtail.models.backbone import CIFAR_RESNETS

        print("\n".join(["small", *CIFAR_RESNETS]))
        print("and any timm name: python -c 'import timm; print(timm.list_models(pretrained=True))'")
    elif what == "datasets":
        from longtail.data.benchmarks import BENCHMARKS

        print("\n".join(f"{name:15s} imbalance {imbalance}" for name, imbalance in BENCHMARKS.items()))
        print("or the path of a folder of class folders, or of a CSV, TSV, TXT or parquet file")
    else:
        raise LongtailError(f"list takes methods, models or datasets, not {what!r}")


VERBS: dict[str, Callable[..., Any]] = {"demo": demo, "train": train, "evaluate": evaluate, "list": list_}


def main(arguments: list[str] | None = None) -> int:
    from longtail import __version__

    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(__version__)
        return 0
    try:
        tyro.extras.subcommand_cli_from_dict(
            VERBS, prog="longtail", description=__doc__.splitlines()[0], args=arguments
        )
    except LongtailError as error:
        print(f"longtail: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__name__ != "Interrupted":  # by name, because importing the engine here would slow every --help
            raise
        return 128 + error.signal  # type: ignore[attr-defined]
    except BrokenPipeError:  # `longtail list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
