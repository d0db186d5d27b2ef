"""Images a second through the input path, on one core: whole batches against torchvision, image by image.

    python -m benchmarks.augment

CIFAR-size images are in memory already. Photographs are generated JPEGs of 375 x 500, decoded once; "workers" is what a
loading process still does where an accelerator finishes the views, "here" is everything on the processor.
"""

import argparse
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image, ImageFilter
from timm.data.auto_augment import rand_augment_transform
from torchvision import transforms

from benchmarks.harness import medians_ms, peak_mb, write_result
from longtail.data.augment import ImageFormat
from longtail.data.batch_augment import IMAGENET_GREY, named, normalise
from longtail.data.decode import decode
from longtail.data.disk_loader import Decoder, Request
from longtail.data.loader import draw
from longtail.data.table import BytesStore

FORMAT = ImageFormat()
SMALL, LARGE = 128, 32  # images
SMALL_VIEWS = (("weak",), ("autoaugment",), ("autoaugment",) * 3)
LARGE_VIEWS = (("crop",), ("randaugment",), ("sim",), ("randstack",), ("randaugment", "randstack", "randstack"))


class Blur:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def peers() -> dict[str, Callable]:
    """The same views as the methods' authors build them."""
    tensor, normal = transforms.ToTensor(), transforms.Normalize(FORMAT.mean, FORMAT.std)
    shift = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    policy = transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10, fill=[128.0] * 3)
    hole = transforms.RandomErasing(1.0, (0.25, 0.25), (1.0, 1.0))
    crop = [transforms.RandomResizedCrop(FORMAT.size), transforms.RandomHorizontalFlip()]
    jitter = transforms.ColorJitter(0.4, 0.4, 0.4, 0.0)
    soft = [transforms.RandomGrayscale(0.2), transforms.RandomApply([Blur()], 0.5)]
    rand = rand_augment_transform("rand-n2-m10-mstd0.5", {"img_mean": IMAGENET_GREY})
    pipelines = {
        "weak": [*shift, tensor, normal],
        "autoaugment": [*shift, policy, tensor, hole, normal],
        "crop": [*crop, tensor, normal],
        "randaugment": [*crop, jitter, rand, tensor, normal],
        "sim": [*crop, jitter, *soft, tensor, normal],
        "randstack": [*crop, jitter, *soft, rand, tensor, normal],
    }
    return {name: transforms.Compose(steps) for name, steps in pipelines.items()}


def picture(height: int, width: int, seed: int) -> Image.Image:
    """Shapes and grain, so that its JPEG is as large as a photograph's (about 100 kB)."""
    rng = np.random.default_rng(seed)
    shapes = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width, height))
    return Image.fromarray(np.clip(np.asarray(shapes) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8))


def jpeg(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def small(names: tuple[str, ...], peer: dict[str, Callable]) -> dict[str, Callable[[], Any]]:
    pictures = [picture(32, 32, seed) for seed in range(SMALL)]
    images = torch.from_numpy(np.stack([np.asarray(p) for p in pictures])).permute(0, 3, 1, 2).contiguous()
    views = named(names)

    def here():
        numbers = draw(views, 0, 0, torch.arange(SMALL))
        return [normalise(view(images, u), FORMAT.mean, FORMAT.std) for view, u in zip(views, numbers, strict=True)]

    return {
        "torchvision": lambda: [torch.stack([peer[name](image) for image in pictures]) for name in names],
        "here": here,
    }


def large(names: tuple[str, ...], peer: dict[str, Callable]) -> dict[str, Callable[[], Any]]:
    files = [jpeg(picture(375, 500, seed)) for seed in range(LARGE)]
    store = BytesStore(pa.chunked_array([files]), pa.chunked_array([[f"{i}.jpg" for i in range(LARGE)]]))
    views = named(names)
    request = Request(np.arange(LARGE), draw(views, 0, 0, torch.arange(LARGE)))
    worker, whole = (Decoder(store, FORMAT, names, "stop", augment) for augment in (False, True))

    def torchvision():
        pictures = [Image.open(io.BytesIO(file)).convert("RGB") for file in files]
        return [torch.stack([peer[name](image) for image in pictures]) for name in names]

    return {
        "decode": lambda: [decode(file, "") for file in files],
        "torchvision": torchvision,
        "workers": lambda: worker[request],
        "here": lambda: [normalise(view, FORMAT.mean, FORMAT.std) for view in whole[request].views],
    }


def one_of(make: Callable[..., dict[str, Callable[[], Any]]], names: tuple[str, ...], key: str) -> Callable[[], Any]:
    return make(names, peers())[key]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=10)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    peer, rows = peers(), []
    columns = ("decode", "torchvision", "workers", "here")
    print(f"{'images a second on one core':45s}" + "".join(f"{column:>13s}" for column in columns) + f"{'gain':>8s}")
    for size, make, all_views in (("32 x 32", small, SMALL_VIEWS), ("375 x 500", large, LARGE_VIEWS)):
        for names in all_views:
            images = SMALL if make is small else LARGE
            rate = {key: 1e3 * images / ms for key, ms in medians_ms(make(names, peer), repeats, warmup=1).items()}
            gain = (
                rate.get("workers", rate["here"]) / rate["torchvision"]
            )  # in what a core that feeds a training can do
            memory = {key: peak_mb(one_of, make, names, key) for key in rate}
            rows.append({"images": size, "views": names, "images_per_second": rate, "gain": gain, "peak_mb": memory})
            cells = "".join(f"{rate[column]:13,.0f}" if column in rate else f"{'':13s}" for column in columns)
            print(f"{size:10s}{', '.join(names):35s}{cells}{gain:7.1f}x", flush=True)
    print(write_result("augment", {"rows": rows}))


if __name__ == "__main__":
    main()
