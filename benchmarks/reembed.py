"""What embedding the bank costs, whole and in part: the contrast term of a step, forward and backward, and its memory.

    python -m benchmarks.reembed

Memory is what a step needs beside the bank, the MLPs and their gradients. The largest bank takes about ten minutes.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.harness import medians_ms, peak_mb, write_result
from longtail.engine import device
from longtail.methods import gml


class Shape(NamedTuple):
    name: str
    k: int
    classes: int
    width: int  # of the features and of the MLP's hidden layer
    embed: int
    imbalance: float


SHAPES = (
    Shape("CIFAR-100-LT", 4096, 100, 64, 32, 100),
    Shape("ImageNet-LT", 16384, 1000, 2048, 1024, 256),
    Shape("iNaturalist", 65536, 8142, 2048, 1024, 500),
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
    counts = (1e4 * shape.imbalance ** -torch.linspace(0, 1, shape.classes)).long()
    widths = {"hidden": shape.width, "embed": shape.embed}
    objective = gml(counts, shape.width, k=shape.k, k_m=2, gamma=0.0, **widths, **settings)
    labels = torch.arange(shape.classes).repeat_interleave(objective.bank.segments.offsets.diff())
    objective.enqueue(torch.randn(shape.k, shape.width).relu(), labels, torch.arange(shape.k))
    query = torch.randn(BATCH, shape.width).relu().requires_grad_()
    targets = torch.multinomial(counts.double(), BATCH, replacement=True)
    keys = torch.randn(BATCH, shape.width).relu()

    def step() -> None:
        objective.enqueue(keys, targets, torch.arange(BATCH))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = objective.contrast(query, targets, torch.arange(BATCH))[0].mean()
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
    print(f"{'ms and memory of the contrast term':35s}" + "".join(f"{shape.name:>24s}" for shape in SHAPES))
    for shape in SHAPES:
        ms, memory = {}, {}
        for name, way in WAYS.items():  # one at a time: seven of the largest bank do not fit side by side
            ms[name] = medians_ms({name: contrast(shape, *way)}, repeats, warmup=2)[name]
            memory[name] = peak_mb(contrast, shape, *way)
        rows.append({**shape._asdict(), "batch": BATCH, "ms": ms, "peak_mb": memory})
    for name in WAYS:
        cells = (f"{row['ms'][name]:9,.1f} {row['peak_mb'][name]:9,.0f} MB" for row in rows)
        print(f"{name:35s}" + "".join(f"{cell:>24s}" for cell in cells))
    print(write_result("reembed", {"shapes": rows}))


if __name__ == "__main__":
    main()
