"""What L_GML adds to a segmentation's step at ADE20K's shape, part by part.

    python -m benchmarks.segmentation

The recipe of `longtail reproduce ade20k`: 150 classes, crops of 512 x 512, FCN over a ResNet-50 of stride 8, a bank of
8,192 pixels, 64 queries and 32 keys an image. The term is all that L_GML does: it draws keys and puts them into the
bank, embeds the bank, draws queries, compares, and goes back to the feature map. A whole step is taken with two images,
which 7 GB of memory hold; much of the term's cost is the bank's and does not grow with the images, so its share
at 16 is smaller, and is worked out from the term measured on 16 feature maps. The teacher's pass is a part of its own.
Target: at most 15 % of a step.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benchmarks.harness import medians_ms, write_result
from longtail import recipes
from longtail.engine import device as devices
from longtail.engine import memory
from longtail.engine.optim import build_optimiser
from longtail.methods.method import Method
from longtail.recipe import Recipe
from longtail.segmentation import model
from longtail.segmentation.model import PixelModel
from longtail.segmentation.objective import PixelObjective
from longtail.types import Batch

TARGET = 0.15
CLASSES, IMAGES, ALL_IMAGES = 150, 2, 16


def main(repeats: int = 5, warmup: int = 1) -> None:
    place = devices.choose()
    recipe = recipes.build("ade20k")
    method, plain = methods(recipe, place)
    milliseconds = medians_ms(parts(recipe, method, plain, place), repeats, warmup)
    term, step = milliseconds["of it: keys into the bank"] + milliseconds["of it: contrast"], milliseconds["step"]
    at_16 = milliseconds["16 images: keys into the bank"] + milliseconds["16 images: contrast"]
    share, share_at_16 = term / step, at_16 / (ALL_IMAGES / IMAGES * (step - term) + at_16)
    teacher = milliseconds["of it: teacher"] / step
    peak = memory.peak() / 2**20
    print(f"{place}, {torch.get_num_threads()} threads, median of {repeats}, {IMAGES} images")
    for name, value in milliseconds.items():
        print(f"  {name:32s} {value:9.1f} ms   {100 * value / step:6.1f} % of the step")
    print(f"the term: {100 * share:.1f} % of a step of {IMAGES} images (target {100 * TARGET:.0f} %), ", end="")
    print(f"{100 * share_at_16:.1f} % at {ALL_IMAGES}; the teacher {100 * teacher:.0f} %; peak memory {peak:,.0f} MB")
    result = {"target": TARGET, "share": share, "share_at_16": share_at_16, "teacher_share": teacher}
    result |= {"ms": milliseconds, "images": IMAGES, "repeats": repeats, "peak_mb": peak, "device": str(place)}
    write_result("segmentation", result)


def methods(recipe: Recipe, place: devices.Device) -> tuple[Method, Method]:
    """GML, and the same network under the losses without it."""
    torch.manual_seed(0)
    pixels, (teacher_stage, stage) = recipe.pixels, recipe.stages
    assert pixels is not None
    counts = (3e9 * 0.96 ** np.arange(CLASSES)).astype(np.int64)
    teacher = model.build_method(teacher_stage, pixels, counts).eval().requires_grad_(False)
    card = {"classes": list(map(str, range(CLASSES))), "palette": [[0, 0, 0]] * CLASSES}
    method = model.build_method(stage, pixels, counts, PixelModel(teacher, pixels, card))
    plain = model.build_method(teacher_stage, pixels, counts)
    plain.backbone = method.backbone
    for each in (method, plain):
        each.to(place.torch, memory_format=place.memory_format).train()  # type: ignore[call-overload]
    objective = method.objective
    assert isinstance(objective, PixelObjective)
    rows = torch.arange(20 * 8192)  # full, as it is for most of a training
    objective.inner.enqueue(torch.randn(len(rows), method.backbone.dim).relu(), rows % CLASSES, rows)  # type: ignore[operator]
    return method, plain


def parts(recipe: Recipe, method: Method, plain: Method, place: devices.Device) -> dict[str, Callable[[], object]]:
    pixels, optim = recipe.pixels, recipe.stages[-1].optim
    assert pixels is not None
    batch = scenes(IMAGES, pixels.crop)
    optimisers = {each: build_optimiser(each, optim) for each in (method, plain)}

    def step(of: Method) -> None:
        with place.autocast():
            losses = of(batch)
        losses.per_sample.mean().backward()
        optimisers[of].step()
        optimisers[of].zero_grad(set_to_none=True)

    def frozen() -> None:
        with place.autocast(), torch.no_grad():
            method.key_encoder.backbone(batch.views[0])

    def term(images: int) -> tuple[Callable[[], object], Callable[[], object]]:
        objective, size = method.objective, [side // pixels.output_stride for side in pixels.crop]
        maps = torch.randn(images, method.backbone.dim, *size, dtype=place.dtype).relu()
        maps = maps.to(memory_format=place.memory_format).requires_grad_()
        seen = scenes(images, pixels.crop)

        def enqueue() -> None:
            with place.autocast(), torch.no_grad():
                objective.enqueue(maps, seen.labels, seen.ids)

        def contrast() -> None:
            with place.autocast():
                loss, _ = objective._contrast(objective.inner, maps, seen.labels, seen.ids)
            loss.mean().backward()
            objective.zero_grad(set_to_none=True)
            maps.grad = None

        return enqueue, contrast

    enqueue, contrast = term(IMAGES)
    enqueue_16, contrast_16 = term(ALL_IMAGES)
    return {
        "step": lambda: step(method),
        "without the term and teacher": lambda: step(plain),
        "of it: teacher": frozen,
        "of it: keys into the bank": enqueue,
        "of it: contrast": contrast,
        "16 images: keys into the bank": enqueue_16,
        "16 images: contrast": contrast_16,
    }


def scenes(images: int, crop: tuple[int, int]) -> Batch:
    """Noise, under masks of squares: some ten classes an image, rare ones among them, and some void."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.randint(-1, CLASSES, (images, 4, 4), generator=generator)
    labels: Tensor = squares.repeat_interleave(crop[0] // 4, 1).repeat_interleave(crop[1] // 4, 2)
    labels[labels < 0] = -100
    pictures = torch.randn(images, 3, *crop, generator=generator)
    return Batch((pictures, pictures), labels, torch.arange(images))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    main(**vars(parser.parse_args()))
