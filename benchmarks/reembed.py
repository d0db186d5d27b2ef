"""What embedding the bank costs, whole and in part: the contrast term of a step, forward and backward.

    python -m benchmarks.reembed

The embedding's cost is linear in the bank's rows, so of the large banks a part is measured, with the widths and the
rows per class of the whole, and multiplied. That leaves out nothing but caches, which no part here fits anyway.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.harness import medians_ms, write_result
from longtail.engine import device
from longtail.methods import gml


class Shape(NamedTuple):
    name: str
    k: int
    classes: int
    width: int  # of the features and of the MLP's hidden layer
    embed: int
    imbalance: float
    part: int = 1  # so many times fewer rows, classes and queries are measured


SHAPES = (
    Shape("CIFAR-100-LT", 4096, 100, 64, 32, 100),
    Shape("ImageNet-LT", 16384, 1000, 2048, 1024, 256, part=8),
    Shape("iNaturalist", 65536, 8142, 2048, 1024, 500, part=32),
)
BATCH = 128
# name -> settings, and whether the run is in bfloat16
WAYS = {
    "all, float32": ({}, False),
    "all, bank in bfloat16": ({"bank_dtype": "bfloat16"}, False),
    "all, autocast": ({}, True),
    "a quarter in turns": ({"reembed": "turns"}, True),
    "a tenth in turns": ({"reembed": "turns", "reembed_share": 0.1}, True),
    "a quarter in use": ({"reembed": "in_use"}, True),
    "a tenth in use": ({"reembed": "in_use", "reembed_share": 0.1}, True),
}


def contrast(shape: Shape, settings: dict, autocast: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    classes, k, batch = shape.classes // shape.part, shape.k // shape.part, BATCH // shape.part
    counts = (1e4 * shape.imbalance ** -torch.linspace(0, 1, classes)).long()
    widths = {"hidden": shape.width, "embed": shape.embed}
    objective = gml(counts, shape.width, k=k, k_m=2, gamma=0.0, **widths, **settings)
    labels = torch.arange(classes).repeat_interleave(objective.bank.segments.offsets.diff())
    objective.enqueue(torch.randn(k, shape.width).relu(), labels, torch.arange(k))
    query = torch.randn(batch, shape.width).relu().requires_grad_()
    targets = torch.multinomial(counts.double(), batch, replacement=True)
    keys = torch.randn(batch, shape.width).relu()

    def step() -> None:
        objective.enqueue(keys, targets, torch.arange(batch))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = objective.contrast(query, targets, torch.arange(batch))[0].mean()
        loss.backward()
        objective.zero_grad(set_to_none=True)

    return step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    device.choose()
    rows = []
    print(f"{'ms of the contrast term, whole bank':35s}" + "".join(f"{shape.name:>24s}" for shape in SHAPES))
    for shape in SHAPES:
        steps = {name: contrast(shape, *way) for name, way in WAYS.items()}
        ms = {name: value * shape.part for name, value in medians_ms(steps, repeats, warmup=2).items()}
        rows.append({**shape._asdict(), "batch": BATCH, "ms": ms})
    for name in WAYS:
        cells = (f"{row['ms'][name]:15.1f} ({row['ms'][name] / row['ms']['all, autocast']:.2f}x)" for row in rows)
        print(f"{name:35s}" + "".join(f"{cell:>24s}" for cell in cells))
    print(write_result("reembed", {"shapes": rows}))


if __name__ == "__main__":
    main()
