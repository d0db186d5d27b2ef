"""A trained segmentation on disk and back: model.safetensors and its card, without bank and teacher."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from longtail.engine import checkpoint
from longtail.errors import LongtailError
from longtail.methods.method import Method
from longtail.models.teacher import Teacher
from longtail.recipe import Pixels, Stage, from_dict
from longtail.segmentation import networks, objective
from longtail.segmentation.infer import Score, score_pixels
from longtail.segmentation.objective import PerPixel, PixelObjective
from longtail.segmentation.table import PixelTable

BANK = "objective.inner.bank."


class PixelModel(nn.Module):
    """images [B, 3, H, W], normalised as the card says -> prior-free log-likelihoods [B, C, H, W]."""

    def __init__(self, method: Method, pixels: Pixels, card: dict[str, Any]) -> None:
        super().__init__()
        self.method, self.pixels, self.card = method, pixels, card
        self.classes: tuple[str, ...] = tuple(card["classes"])
        self.palette = np.array(card["palette"], np.uint8)

    def forward(self, images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        return answers(self.method, self.method.loglik, images, size, self.pixels)

    def scores(self, images: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """As trained: what a published row is answered with."""
        return answers(self.method, self.method.scores, images, size, self.pixels)


def answers(method: Method, score: Score, images: Tensor, size: tuple[int, int] | None, pixels: Pixels) -> Tensor:
    """Scores of every pixel, at the images' size or another; -inf for a class that had no training pixel."""
    scores = score_pixels(score, images, size or (images.shape[2], images.shape[3]), pixels)
    log_mass: Tensor = method.objective.log_mass  # type: ignore[assignment, union-attr]
    return scores.masked_fill_((log_mass == -torch.inf)[:, None, None], -torch.inf)


def build_method(
    stage: Stage, pixels: Pixels, counts: np.ndarray, teacher: PixelModel | None = None, *, pretrained: bool = False
) -> Method:
    """The network of a stage under its losses, with the frozen network that makes its keys."""
    network = networks.build(
        stage.model,
        pixels.architecture,
        output_stride=pixels.output_stride,
        auxiliary=pixels.auxiliary > 0,
        pretrained=pretrained,
    )
    key_encoder = None
    if teacher is not None:
        backbone, inner = teacher.method.backbone, teacher.method.objective.likelihood
        key_encoder = Teacher(backbone, PerPixel(inner, backbone.dim))  # type: ignore[arg-type]
    losses = objective.build(
        stage.method,
        counts.tolist(),
        network.dim,
        stage.settings,
        key_dim=key_encoder.dim if key_encoder is not None else network.dim,
        auxiliary_dim=network.auxiliary_dim,
        auxiliary_weight=pixels.auxiliary,
        queries=pixels.queries,
        keys=pixels.keys,
    )
    return Method(network, losses, key_encoder)


def save(folder: Path, method: Method, stage: Stage, pixels: Pixels, table: PixelTable, mean: Any, std: Any) -> None:
    losses = method.objective
    assert isinstance(losses, PixelObjective)
    state = {k: v for k, v in method.state_dict().items() if not k.startswith(("key_encoder.", BANK))}
    card = {
        "task": "segmentation",
        "classes": list(table.classes),
        "palette": table.palette.tolist(),
        "counts": table.counts().tolist(),
        "mean": list(mean),
        "std": list(std),
        "method": stage.method,
        "settings": stage.settings,
        "model": stage.model,
        "pixels": dataclasses.asdict(pixels),
        "log_added": losses.log_added.tolist(),
        "log_mass": losses.log_mass.tolist(),
    }
    checkpoint.save_model(folder, state, card)


def load(folder: str | Path) -> PixelModel:
    """The model of a run folder, in evaluation mode on the CPU."""
    folder = Path(folder)
    tensors, card = checkpoint.load_model(folder)
    if card.get("task") != "segmentation":
        raise LongtailError(f"{folder} holds a classifier of images: give the folder of a segmentation")
    trained = {key: card.get(key) for key in ("method", "model", "settings")}
    values = {"data": {"source": ""}, "stages": [trained], "pixels": card.get("pixels") or {}}
    recipe = from_dict(values, f"{folder}/model.json")
    pixels = recipe.pixels
    assert pixels is not None
    method = build_method(recipe.stages[0], pixels, np.array(card["counts"]))
    try:
        missing, unexpected = method.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise LongtailError(f"{folder}/model.safetensors does not fit its model.json: {error}") from None
    missing = [name for name in missing if not name.startswith(BANK)]
    if missing or unexpected:
        raise LongtailError(
            f"{folder}/model.safetensors does not fit its model.json: {(missing or unexpected)[0]!r} differs"
        )
    return PixelModel(method, pixels, card).eval().requires_grad_(False)
