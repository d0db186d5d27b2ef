"""`longtail demo`: what a long tail does to a classifier, and what to do about it, on real digits in about a minute."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from longtail.engine import device as devices
from longtail.engine import stages
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.measure import plots
from longtail.measure.metrics import render, spread
from longtail.measure.per_class import read_csv
from longtail.recipe import Data, Optim, Recipe, Stage

COLUMNS = {"accuracy": "accuracy", "many": "many", "medium": "medium", "few": "few"}
METHODS = {
    "cross_entropy": "plain cross-entropy",
    "logit_adjusted": "logit-adjusted",
    "gml": "GML",
}


def demo_stage(method: str) -> Stage:
    """Small enough for seconds, long enough to converge. GML's teacher is the logit-adjusted run of the same seed."""
    return Stage(
        method=method,
        model="small",
        epochs=40,
        batch_size=32,
        augment="shift",
        optim=Optim(lr=0.05, warmup_epochs=2.0),
        settings={"k": 128} if method == "gml" else {},
    )


def run_demo(out: Path, seeds: int) -> None:
    if seeds < 1:
        raise LongtailError(f"--seeds is 1 or more, not {seeds}")
    started = time.monotonic()
    data = Data("digits-lt", imbalance=50)
    table = stages.load_data(data)
    device = devices.choose("float32", "cpu")  # the network is too small to gain from anything else
    groups = stages.by_terciles(table.counts())
    print(f"{table.summary()}\n{groups}\n")
    print(f"training {len(METHODS)} methods x {seeds} seeds; GML's teacher is the logit-adjusted run of the same seed")

    rows, per_class = {}, {}
    for method, label in METHODS.items():
        summaries, accuracies = [], []
        for seed in range(seeds):
            stage = demo_stage(method)
            if method == "gml":
                stage = replace(stage, keys=str(out / f"logit_adjusted-{seed}"))
            recipe = Recipe(data, (stage,), name=f"demo-{method}", seed=seed, evaluate_every=stage.epochs)
            folder = out / f"{method}-{seed}"
            stages.forget(folder)
            finished = stages.run(recipe, table, folder, device, progress=Progress(io.StringIO()))[-1]
            summaries.append(finished.summary)
            accuracies.append(read_csv(folder / "per_class.csv")[0].accuracy)
        rows[label], per_class[label] = spread(summaries), np.stack(accuracies)
        few = rows[label]["few"]
        print(f"  {label}: few-shot classes at {100 * few.mean:.1f} %" if few else f"  {label}")

    print(f"\n{render(rows, COLUMNS)}\nmean ± deviation over {seeds} seeds, the last epoch of each, in per cent")
    print("digits are too easy to tell the two adjusted methods apart: for that, see the CIFAR-100-LT table\n")
    plots.save(plots.counts_and_accuracy(table.counts(), per_class, groups), out / "demo.png")
    print(f"the picture: {out / 'demo.png'}   ({time.monotonic() - started:.0f} s)")
    print(
        "\nnext, with your own images (a folder with one folder a class):\n"
        "  longtail train my_images/ --out runs/first\n"
        "  longtail evaluate runs/first --prior uniform\n"
        "or read the method: longtail/methods/gml.py"
    )
