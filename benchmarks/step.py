"""A whole GML step against the arithmetic it cannot avoid.

    python -m benchmarks.step

CIFAR-100-LT's shape: batch 128, ResNet-32 student, ResNet-56 teacher, three views, bank of 4,096. The floor is the
student on two preloaded views, forward and backward, and the teacher on the views that the step asks of it, in
the same precision and layout, with no loader, no augmentation, no loss of ours and no optimiser. Target: at most 1.15.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.harness import medians_ms, peak_mb, write_result
from longtail.data import tails
from longtail.data.loader import Loader
from longtail.data.table import SPLITS, ImageTable, PixelStore
from longtail.engine import device as devices
from longtail.engine.inputs import Inputs
from longtail.engine.optim import build_optimiser
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.models.teacher import Teacher
from longtail.recipe import Data, Recipe, Stage
from longtail.types import Batch

TARGET = 1.15


def main(repeats: int = 15) -> None:
    place = devices.choose()
    milliseconds = medians_ms(functions_of(place), repeats)
    floor = milliseconds["floor"]
    print(f"{place}, {torch.get_num_threads()} threads, median of {repeats}")
    for name, value in milliseconds.items():
        print(f"  {name:28s} {value:8.1f} ms   {value / floor:5.2f} of the floor")
    ratio = milliseconds["step"] / floor
    memory = {name: peak_mb(one_of, place, name) for name in ("floor", "step")}
    print(f"step / floor = {ratio:.2f} (target {TARGET}), {128e3 / milliseconds['step']:.0f} images/s")
    print(f"memory: {memory['floor']:.0f} MB the floor, {memory['step']:.0f} MB the step")
    result = {"target": TARGET, "ratio": ratio, "ms": milliseconds, "peak_mb": memory, "device": str(place)}
    print(write_result("step", result))


def one_of(place: devices.Device, name: str) -> Callable[[], object]:
    return functions_of(place)[name]


def functions_of(place: devices.Device) -> dict[str, Callable[[], object]]:
    table = noise()
    stage = Stage(method="gml", augment="autoaugment", settings={"k": 4096, "kd_weight": 1.0})
    torch.manual_seed(0)
    backbone, teacher = backbones.build("resnet32"), backbones.build("resnet56")
    head = build_objective("logit_adjusted", table.counts(), 64, {}).likelihood
    method = Method(
        backbone,
        build_objective("gml", table.counts(), 64, stage.settings),
        Teacher(teacher, head),  # type: ignore[arg-type]
    )
    method.to(place.torch, memory_format=place.memory_format)  # type: ignore[call-overload]
    inputs = Inputs.of(Recipe(Data("cifar100-lt"), (stage,)), table, place)
    return parts(method, stage, inputs, place)


def noise() -> ImageTable:
    """CIFAR-100-LT in everything but the pictures."""
    counts = tails.exponential(500, 100, 100)
    labels = np.repeat(np.arange(100), counts).astype(np.int32)
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    split = np.full(len(labels), SPLITS.index("train"), np.uint8)
    return ImageTable(tuple(map(str, range(100))), labels, split, PixelStore(pixels, "noise"), name="noise")


def whole_step(method: Method, stage: Stage, steps: Iterator[Batch], place: devices.Device) -> Callable[[], None]:
    """A step as the loop takes it: loader, forward, backward, optimiser."""
    optimiser = build_optimiser(method, stage.optim)

    def step() -> None:
        current = next(steps)
        with place.autocast():
            losses = method(current)
        losses.per_sample.mean().backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        method.after_step()

    return step


def parts(method: Method, stage: Stage, inputs: Inputs, place: devices.Device) -> dict[str, Callable[[], object]]:
    """The floor, the step as the loop takes it, and the step's parts by themselves."""
    steps = endless(inputs.train(stage, method.views))
    batch = next(steps)
    two, all_of_teacher = torch.cat(batch.views[:2]), torch.cat((batch.views[0], batch.views[2]))
    method.train()
    rows = torch.from_numpy(inputs.table.rows("train"))
    method.objective.enqueue(torch.randn(len(rows), 64).relu(), inputs.labels[rows], rows)  # full, as most of the time

    def backward(loss: torch.Tensor) -> None:
        loss.backward()
        method.zero_grad(set_to_none=True)

    def floor() -> None:
        frozen()
        student()

    def student() -> None:
        with place.autocast():
            features = method.backbone(two)
        backward(features.float().square().mean())

    def frozen() -> None:
        with place.autocast(), torch.no_grad():
            method.key_encoder.backbone(all_of_teacher)

    def compute() -> None:
        with place.autocast():
            losses = method(batch)
        backward(losses.per_sample.mean())

    return {
        "floor": floor,
        "step": whole_step(method, stage, steps, place),
        "of it: loader and views": lambda: next(steps),
        "of it: student": student,
        "of it: teacher": frozen,
        "of it: all but the loader": compute,
    }


def endless(loader: Loader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.epoch(epoch)
        epoch += 1


if __name__ == "__main__":
    main()
