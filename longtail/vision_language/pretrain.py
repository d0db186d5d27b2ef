"""A small CLIP of one's own, trained from scratch in twenty minutes on two cores, where no weights can be had.

    python -m longtail.vision_language.pretrain runs/small_clip --data-root data --cifar10-root data

It sees CIFAR-10's training images and the CIFAR-100-LT training subset, with the captions of `captions.py`; no image
that occurs in CIFAR-100's test, and of CIFAR-100 no label beyond the long-tailed subset's. What comes out is a folder
as open_clip saves one, so it is used like any other CLIP:

    longtail train cifar100-lt --method gml_text --clip runs/small_clip

Twenty minutes give an aligned space of a hundred known words, not knowledge of the web: its zero-shot answers are those
of a classifier trained with the long tail's own labels, and say nothing about CLIP's.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from longtail.data import benchmarks
from longtail.data.augment import ImageFormat
from longtail.data.batch_augment import VIEWS, normalise
from longtail.data.randomness import keys, uniforms
from longtail.data.table import ImageTable, PixelStore
from longtail.files import atomic, write_json
from longtail.template import cross_entropy
from longtail.vision_language.captions import captions, colours
from longtail.vision_language.clip import ImageTower, TextTower
from longtail.vision_language.contrast import smoothed_classes

MODEL = {
    "custom_text": True,
    "embed_dim": 128,
    # CLIP's ResNet at twice CIFAR's size: its stem halves twice, so the first block sees 16 x 16.
    "vision_cfg": {"image_size": 64, "layers": [1, 2, 2, 1], "width": 24, "patch_size": None},
    "text_cfg": {"context_length": 24, "vocab_size": 49408, "width": 128, "heads": 2, "layers": 2},
}
FORMAT = ImageFormat(64, (0.49, 0.48, 0.45), (0.25, 0.24, 0.26), "bicubic", 1.0)
_ORDER, _CAPTION = -2, -6  # of the hashed random numbers, beside those of the views


@dataclass(frozen=True)
class Captioned:
    """What is trained on. Labels say which captions are about the same class, and nothing else."""

    pixels: Tensor  # uint8 [N, 3, 32, 32]
    labels: np.ndarray  # int64 [N]
    classes: tuple[str, ...]
    colours: np.ndarray  # [N, 2]


def without_test_images(train: ImageTable, test: ImageTable) -> np.ndarray:
    """Training rows whose pixels occur nowhere in the other table's test."""
    seen = {test.images.content(int(row)) for row in test.rows("test")}
    return np.array([row for row in train.rows("train") if train.images.content(int(row)) not in seen])


def captioned(tables: list[ImageTable], test: ImageTable) -> Captioned:
    """The training splits of all tables, one after the other."""
    pixels, labels, classes = [], [], []
    for table in tables:
        rows = without_test_images(table, test)
        assert isinstance(table.images, PixelStore)
        pixels.append(table.images.pixels[rows])
        labels.append(table.labels[rows].astype(np.int64) + len(classes))
        classes += table.classes
    images = np.concatenate(pixels)
    channels_first = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    return Captioned(channels_first, np.concatenate(labels), tuple(classes), colours(images))


def pretrain(
    data: Captioned, out: Path, *, epochs: int = 12, batch_size: int = 256, lr: float = 1e-3, seed: int = 0
) -> None:
    """Every caption of an image's class in the batch is a right one, as in `contrast.py`; two towers, one AdamW."""
    steps_an_epoch = len(data.labels) // batch_size
    assert steps_an_epoch, f"{len(data.labels)} images are no batch of {batch_size}"
    out.mkdir(parents=True, exist_ok=True)
    preprocess = {"size": FORMAT.size, "mean": FORMAT.mean, "std": FORMAT.std, "interpolation": FORMAT.interpolation}
    write_json(out / "open_clip_config.json", {"model_cfg": MODEL, "preprocess_cfg": preprocess})
    torch.manual_seed(seed)
    image_tower = ImageTower(f"clip:{out}", pretrained=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    text_tower = TextTower(f"clip:{out}", pretrained=False)
    parameters = [p for tower in (image_tower, text_tower) for p in tower.parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
         {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0}], lr=lr,
    )  # fmt: skip
    view, started = VIEWS["weak"], time.monotonic()
    for epoch in range(epochs):
        order = keys(seed, epoch, torch.arange(len(data.labels)), _ORDER).argsort()
        loss = torch.zeros(())
        for step in range(steps_an_epoch):
            here = torch.arange(step * batch_size, (step + 1) * batch_size)
            row, key = order[here], keys(seed, epoch, here)
            views = view(data.pixels[row], uniforms(key, view.draws))
            images = normalise(views, FORMAT.mean, FORMAT.std, channels_last=True)
            u = uniforms(keys(seed, epoch, here, _CAPTION), 1)[:, 0]
            tokens = text_tower.tokenize(captions(data.classes, data.labels[row], data.colours[row], u))
            done = (epoch + step / steps_an_epoch) / epochs
            for group in optimiser.param_groups:
                group["lr"] = lr * min(1.0, 20 * (done + 1e-3)) * 0.5 * (1 + math.cos(math.pi * done))

            with torch.autocast("cpu", torch.bfloat16):
                image, text = image_tower(images), text_tower(tokens)
            image, text = F.normalize(image.float(), dim=1), F.normalize(text.float(), dim=1)
            labels = torch.from_numpy(data.labels)[row]
            target = smoothed_classes(labels, labels, 0.1)
            logits = text_tower.scale * image @ text.T
            loss = (cross_entropy(logits, target) + cross_entropy(logits.T, target)).mean() / 2
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        print(f"epoch {epoch + 1}/{epochs}  loss {loss.item():.3f}  {time.monotonic() - started:.0f} s", flush=True)

    state: dict[str, Any] = {f"visual.{name}": x for name, x in image_tower.visual.state_dict().items()}
    state |= {f"text.{name}": x for name, x in text_tower.text.state_dict().items()}
    state["logit_scale"] = text_tower.log_scale.data
    with atomic(out / "open_clip_model.safetensors") as file:
        file.write(save({name: x.contiguous() for name, x in state.items()}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the small CLIP.", allow_abbrev=False)
    parser.add_argument("out", type=Path, help="where its folder goes")
    parser.add_argument("--data-root", type=Path, help="where CIFAR-100 lies; else the variable LONGTAIL_DATA")
    parser.add_argument("--cifar10-root", type=Path, help="where CIFAR-10 lies, if elsewhere")
    parser.add_argument("--imbalance", type=float, default=100, help="of the CIFAR-100-LT subset that it may see")
    parser.add_argument("--epochs", type=int, default=12, help="over both training sets together")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW, at its highest")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order, views and captions; not of the subset")
    given = parser.parse_args()
    tail = benchmarks.load("cifar100-lt", root=given.data_root, imbalance=given.imbalance)
    cifar10 = benchmarks.load("cifar10-lt", root=given.cifar10_root or given.data_root, imbalance=1)
    data = captioned([replace(cifar10, name="cifar10"), tail], test=tail)
    print(f"{len(data.labels):,} captioned images of {len(data.classes)} classes", flush=True)
    pretrain(data, given.out, epochs=given.epochs, lr=given.lr, seed=given.seed)
    made_from = {"cifar10": "train", "cifar100-lt": given.imbalance}
    write_json(given.out / "made_from.json", made_from | {k: vars(given)[k] for k in ("epochs", "lr", "seed")})


if __name__ == "__main__":
    main()
