"""A trained model on disk, and back: weights in safetensors, everything else in a JSON card, nothing executed.

model.safetensors     backbone and objective, without the bank
model.json            the card: method, architecture, classes, counts, log_added, log_mass, normalisation
backbone.safetensors  the backbone alone, under its library's own names
bank.safetensors      the bank, for the second answer
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from longtail.engine import checkpoint
from longtail.errors import LongtailError
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.recipe import Stage

BANK = "objective.bank."


class Model(nn.Module):
    """images [B, 3, H, W], normalised as the card says -> prior-free log-likelihoods [B, C]."""

    def __init__(self, method: Method, card: dict[str, Any]) -> None:
        super().__init__()
        self.method = method
        self.card = card
        self.classes: tuple[str, ...] = tuple(card["classes"])

    def forward(self, images: Tensor) -> Tensor:
        return self.method.loglik(images)

    def scores(self, images: Tensor) -> Tensor:
        """As trained: what a published row is answered with."""
        return self.method.scores(images)


def save(folder: Path, method: Method, stage: Stage, card: dict[str, Any]) -> None:
    """Write a finished stage. `card` brings what the method does not know: classes, counts, normalisation, size."""
    state = {k: v for k, v in method.state_dict().items() if not k.startswith("key_encoder.")}
    bank = {k.removeprefix(BANK): v for k, v in state.items() if k.startswith(BANK)}
    objective = method.objective
    key_dim = method.key_encoder.dim if method.key_encoder is not None else None
    card = card | {
        "method": stage.method,
        "settings": stage.settings,
        "model": stage.model,
        "dim": method.backbone.dim,
        "key_dim": key_dim,
        "log_added": objective.log_added.tolist(),  # type: ignore[union-attr, operator]
        "log_mass": objective.log_mass.tolist(),  # type: ignore[union-attr, operator]
    }
    checkpoint.write_tensors(folder / "backbone.safetensors", _backbone_of(method).state_dict())
    if bank:
        checkpoint.write_tensors(folder / "bank.safetensors", bank)
    checkpoint.save_model(folder, {k: v for k, v in state.items() if not k.startswith(BANK)}, card)


def load(folder: str | Path) -> Model:
    """The model of a run folder, in evaluation mode on the CPU."""
    folder = Path(folder)
    tensors, card = checkpoint.load_model(folder)
    backbone = backbones.build(card["model"])
    objective = build_objective(card["method"], card["counts"], backbone.dim, card["settings"], card["key_dim"])  # type: ignore[arg-type]
    method = Method(backbone, objective)
    try:
        missing, unexpected = method.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise LongtailError(
            f"{folder}/model.safetensors does not fit its model.json: {str(error).splitlines()[-1].strip()}"
        ) from None
    missing = [key for key in missing if not key.startswith(BANK)]
    if missing or unexpected:
        raise LongtailError(
            f"{folder}/model.safetensors does not fit its model.json: {(missing or unexpected)[0]!r} differs"
        )
    return Model(method, card).eval().requires_grad_(False)


def load_backbone(backbone: nn.Module, path: str | Path) -> None:
    """Start from weights in a safetensors file, or from a run's own backbone. A classifier in the file is left out."""
    from safetensors.torch import load_file

    path = Path(path)
    path = path / "backbone.safetensors" if path.is_dir() else path
    try:
        tensors = load_file(path)
    except Exception as error:  # safetensors and the operating system have exceptions of their own
        raise LongtailError(f"cannot read the weights {path}: {str(error).splitlines()[0]}") from None
    inner = backbone.model if isinstance(backbone, backbones.TimmBackbone) else backbone
    missing, _ = inner.load_state_dict({k: v for k, v in tensors.items() if k in inner.state_dict()}, strict=False)
    if missing:
        raise LongtailError(
            f"the weights {path} lack {missing[0]!r} and {len(missing) - 1} more: another architecture?"
        )


def same_classes(mine: Sequence[str], theirs: Sequence[str], where: str | Path) -> None:
    """A teacher of another class list would teach the wrong names."""
    if tuple(mine) != tuple(theirs):
        first = next(
            (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
        )
        raise LongtailError(
            f"the teacher in {where} knows {len(theirs)} classes and the data {len(mine)}, and they differ first at "
            f"number {first}; train a teacher on this class list (leave --teacher out)"
        )


def _backbone_of(method: Method) -> nn.Module:
    backbone = method.backbone
    return backbone.model if isinstance(backbone, backbones.TimmBackbone) else backbone
