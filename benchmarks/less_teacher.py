"""A GML step against one of two views without any teacher, for each way of asking the teacher less.

    python -m benchmarks.less_teacher

CIFAR-100-LT's shape: batch 128, ResNet-32 student, ResNet-56 teacher, loader, augmentation and optimiser included. What
is asked of the teacher before the first step is shared out over the epochs of a run. Target: at most 1.25.
"""

import argparse
from collections.abc import Callable

import torch

from benchmarks.harness import medians_ms, peak_mb, write_result
from benchmarks.step import endless, noise, whole_step
from longtail.engine import device as devices
from longtail.engine.inputs import Inputs
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.models.teacher import Teacher
from longtail.recipe import Data, Recipe, Stage

TARGET, EPOCHS, PICTURES = 1.25, 30, 8
FLOOR = "two views, no teacher"
ONLINE = {"k": 4096, "kd_weight": 1.0}
# name -> settings, pictures of each image that are asked about beforehand
WAYS = {
    FLOOR: ({"keys_of": "class", "both_views": True}, 0),
    "three views, asked online": (ONLINE, 0),
    "class view alone, asked online": ({**ONLINE, "keys_of": "class"}, 0),
    "full bank, KD online": ({"bank": "full", "kd_weight": 1.0}, 0),
    "class view, asked once": ({**ONLINE, "keys_of": "class"}, PICTURES),
    "full bank, KD asked once": ({"bank": "full", "kd_weight": 1.0}, PICTURES),
    "full bank of 2 views, KD asked once": ({"bank": "full", "bank_views": 2, "kd_weight": 1.0}, PICTURES),
    "the same, embedded in turns": ({"bank": "full", "bank_views": 2, "kd_weight": 1.0, "reembed": "turns"}, PICTURES),
}


def step_of(name: str, place: devices.Device) -> Callable[[], None]:
    settings, pictures = WAYS[name]
    table = noise()
    stage = Stage(method="gml", augment="autoaugment", settings=settings, cached_views=pictures)
    inputs = Inputs.of(Recipe(Data("cifar100-lt"), (stage,)), table, place)
    torch.manual_seed(0)
    head = build_objective("logit_adjusted", table.counts(), 64, {}).likelihood
    teacher = None if name == FLOOR else Teacher(backbones.build("resnet56"), head)  # type: ignore[arg-type]
    method = Method(backbones.build("resnet32"), build_objective("gml", table.counts(), 64, settings), teacher)
    method.to(place.torch, memory_format=place.memory_format)  # type: ignore[call-overload]
    rows = torch.from_numpy(table.rows("train"))
    labels, features = inputs.labels[rows], torch.randn(len(rows), 64).relu()
    # What a teacher would have said: its cost is counted below, its words are not.
    if pictures:
        scores = torch.randn(len(rows), 100)
        method.key_encoder.remember(rows, labels, [features] * pictures, [scores] * pictures)
    views = max(1, method.objective.bank_views)
    if settings.get("bank") == "full":
        method.objective.fill(features.repeat(views, 1), labels.repeat(views), rows.repeat(views))
    elif teacher is not None:
        method.objective.enqueue(features, labels, rows)
    method.train()
    return whole_step(method, stage, endless(inputs.train(stage, method.views)), place)


def kept_mb(name: str) -> float:
    """What the teacher said, as it is kept between the steps: features for a bank, scores for distillation."""
    settings, pictures = WAYS[name]
    images = len(noise().rows("train"))
    ring = settings.get("k", 0) * 64 if name != FLOOR else 0
    full = images * max(1, settings.get("bank_views", 0)) * 64 if settings.get("bank") == "full" else 0
    said = pictures * images * (100 + (64 if settings.get("keys_of") == "class" else 0))
    return (ring + full + said) * 4 / 2**20


def asking(place: devices.Device) -> Callable[[], None]:
    """The teacher on one view of a batch, as it is asked beforehand; loading and augmenting that view is an epoch's."""
    teacher = backbones.build("resnet56").eval().to(memory_format=place.memory_format)  # type: ignore[call-overload]
    images = torch.randn(128, 3, 32, 32).contiguous(memory_format=place.memory_format)

    def ask() -> None:
        with torch.no_grad(), place.autocast():
            teacher(images)

    return ask


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    place = devices.choose()
    steps = {name: step_of(name, place) for name in WAYS}
    ms = medians_ms({**steps, "asking": asking(place)}, repeats, warmup=2)
    asked = ms.pop("asking")
    rows = []
    print(f"{place}; asked once: of {PICTURES} pictures, shared out over {EPOCHS} epochs. Target {TARGET}")
    for name, value in ms.items():
        whole = value + asked * WAYS[name][1] / EPOCHS
        ratio = whole / ms[FLOOR]
        row = {"name": name, "step_ms": value, "with_asking_ms": whole, "ratio": ratio}
        row |= {"peak_mb": peak_mb(step_of, name, place), "kept_mb": kept_mb(name)}
        rows.append(row)
        print(
            f"  {name:40s}{value:9.1f} ms{whole:9.1f} with what was asked before{ratio:7.2f}x"
            f"{row['peak_mb']:9.0f} MB a step{row['kept_mb']:7.1f} MB kept"
        )
    result = {"target": TARGET, "epochs": EPOCHS, "pictures": PICTURES, "asking_ms": asked, "rows": rows}
    print(write_result("less_teacher", result))


if __name__ == "__main__":
    main()
