"""A small CLIP of one's own, trained from scratch in twenty minutes on two cores, where no weights can be had.

    python -m longtail.small_clip --out runs/small_clip --cifar10-root data

It sees CIFAR-10's training images and the CIFAR-100-LT training subset, with the captions of `captions.py`; no image
that occurs in CIFAR-100's test, and of CIFAR-100 no label beyond the long-tailed subset's. What comes out is a folder
as open_clip saves one, so it is used like any other CLIP, and beside it the sentences that its captions can make about
each class:

    longtail train cifar100-lt --method gml_text --clip runs/small_clip --sentences runs/small_clip/corpus.jsonl

Twenty minutes give an aligned space of a hundred known words, not knowledge of the web: its zero-shot answers are those
of a classifier trained with the long tail's own labels, and say nothing about CLIP's.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
from collections.abc import Sequence
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
from longtail.engine.runfolder import RunFolder
from longtail.errors import LongtailError
from longtail.files import atomic, write_json
from longtail.recipe import Data, Optim, Recipe, Stage, to_dict
from longtail.template import cross_entropy
from longtail.vision_language.captions import captions, colours, sentences, words
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
BATCH = 256
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
    data: Captioned, out: Path, *, epochs: int = 12, batch_size: int = BATCH, lr: float = 1e-3, seed: int = 0
) -> dict[str, Any]:
    """Every caption of an image's class in the batch is a right one, as in `contrast.py`; two towers, one AdamW.

    Each epoch leaves a state in `out`, from which the same call carries on.
    """
    steps_an_epoch = len(data.labels) // batch_size
    if not steps_an_epoch:
        raise LongtailError(f"{len(data.labels)} images are no batch of {batch_size}")
    preprocess = {"size": FORMAT.size, "mean": FORMAT.mean, "std": FORMAT.std, "interpolation": FORMAT.interpolation}
    write_json(out / "open_clip_config.json", {"model_cfg": MODEL, "preprocess_cfg": preprocess})
    torch.manual_seed(seed)
    image_tower = ImageTower(f"clip:{out}", pretrained=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    text_tower = TextTower(f"clip:{out}", pretrained=False)
    towers = torch.nn.ModuleList([image_tower, text_tower])
    optimiser = torch.optim.AdamW(
        [{"params": [p for p in towers.parameters() if p.ndim > 1], "weight_decay": 0.1},
         {"params": [p for p in towers.parameters() if p.ndim < 2], "weight_decay": 0.0}], lr=lr, fused=True,
    )  # fmt: skip
    curve: list[dict[str, float]] = []
    if (state := out / "state.pt").exists():
        saved = torch.load(state, weights_only=True)
        towers.load_state_dict(saved["towers"])
        optimiser.load_state_dict(saved["optimiser"])
        curve = saved["curve"]
    view = VIEWS["weak"]
    for epoch in range(len(curve), epochs):
        order = keys(seed, epoch, torch.arange(len(data.labels)), _ORDER).argsort()
        total, started = torch.zeros(()), time.monotonic()
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
            total += loss.detach()
        seconds = time.monotonic() - started
        curve.append({"epoch": epoch + 1, "loss": total.item() / steps_an_epoch, "seconds": seconds})
        print(f"epoch {epoch + 1}/{epochs}  loss {curve[-1]['loss']:.3f}  {seconds:.0f} s", flush=True)
        with atomic(state) as file:
            torch.save({"towers": towers.state_dict(), "optimiser": optimiser.state_dict(), "curve": curve}, file)
    forget_unsaid(text_tower, words(data.classes))
    with atomic(out / "model.safetensors") as file:
        file.write(save(in_half(image_tower, text_tower)))
    with atomic(out / "metrics.jsonl") as file:
        file.write("".join(json.dumps(row) + "\n" for row in curve).encode())
    state.unlink(missing_ok=True)
    parameters = sum(p.numel() for p in towers.parameters()) - text_tower.text.token_embedding.weight.numel()
    return {
        "parameters": parameters,  # without the table of words, of which a few hundred are ever said
        "hours": sum(row["seconds"] for row in curve) / 3600,
        "summary": {"loss": curve[-1]["loss"], "images": len(data.labels), "scale": text_tower.scale.item()},
    }


def forget_unsaid(tower: TextTower, said: Sequence[str]) -> None:
    """A word that no caption holds has learned nothing: zeros in place of the noise it began as, and a smaller file."""
    known = torch.zeros(tower.text.token_embedding.weight.shape[0], 1)
    known[tower.tokenize(said).unique()] = 1
    tower.text.token_embedding.weight.data *= known


def in_half(image_tower: ImageTower, text_tower: TextTower) -> dict[str, Tensor]:
    """Both towers as open_clip names them, in half precision but for what is counted or statistics."""
    state = {f"visual.{name}": x for name, x in image_tower.visual.state_dict().items()}
    state |= {f"text.{name}": x for name, x in text_tower.text.state_dict().items()}
    state["logit_scale"] = text_tower.log_scale.data
    return {name: (x.half() if x.ndim > 1 else x).contiguous() for name, x in state.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the small CLIP.", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=Path("runs/small_clip"), help="where its folder goes")
    parser.add_argument("--resume", action="store_true", help="carry on from the last whole epoch in it")
    parser.add_argument("--data-root", help="where CIFAR-100 lies; else the variable LONGTAIL_DATA")
    parser.add_argument("--cifar10-root", help="where CIFAR-10 lies, if elsewhere")
    parser.add_argument("--imbalance", type=float, default=100, help="of the CIFAR-100-LT subset that it may see")
    parser.add_argument("--epochs", type=int, default=12, help="over both training sets together")
    parser.add_argument("--lr", type=float, default=1e-3, help="of AdamW, at its highest")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order, views and captions; not of the subset")
    given = parser.parse_args(arguments)
    try:
        train(given)
    except LongtailError as error:
        print(f"longtail: {error}", file=sys.stderr)
        return 2
    return 0


def train(given: argparse.Namespace) -> None:
    tail = benchmarks.load("cifar100-lt", root=given.data_root, imbalance=given.imbalance)
    cifar10 = benchmarks.load("cifar10-lt", root=given.cifar10_root or given.data_root, imbalance=1)
    data = captioned([replace(cifar10, name="cifar10"), tail], test=tail)
    print(f"{len(data.labels):,} captioned images of {len(data.classes)} classes", flush=True)
    optim = Optim(kind="adamw", lr=given.lr, weight_decay=0.1, decay_norm_and_bias=False)
    stage = Stage("pretrain", "small_clip", model="clip", epochs=given.epochs, batch_size=BATCH, optim=optim)
    seen = Data("cifar10 and cifar100-lt", imbalance=given.imbalance)
    with RunFolder(given.out, resume=given.resume) as run:
        run.describe(to_dict(Recipe(seen, (stage,), name="small_clip", seed=given.seed)))
        if (given.out / "result.json").exists():
            return
        said = [{"class": name, "sentence": line} for name in tail.classes for line in sentences(name)]
        with atomic(given.out / "corpus.jsonl") as file:
            file.write("".join(json.dumps(row) + "\n" for row in said).encode())
        done = pretrain(data, given.out, epochs=given.epochs, lr=given.lr, seed=given.seed)
        about = {"stage": "pretrain", "method": "small_clip", "model": "clip", "epochs": given.epochs}
        write_json(given.out / "result.json", about | done | {"reused": False})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the folder is let go
    sys.exit(main())
