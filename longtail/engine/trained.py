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

import torch
from torch import Tensor, nn

from longtail.contrast.bank import Bank
from longtail.engine import checkpoint, second_answer
from longtail.errors import LongtailError
from longtail.methods import build_objective
from longtail.methods.method import Method
from longtail.models import backbone as backbones
from longtail.prior import prior_free
from longtail.recipe import Stage

BANK = "objective.bank."
# What a model can answer without.
FOR_TRAINING = (BANK, "objective.reembedding.", "objective.queue.", "objective.memory.")


class Model(nn.Module):
    """images [B, 3, H, W], normalised as the card says -> prior-free log-likelihoods [B, C]."""

    answer_log_prior: Tensor  # [C], of an adjusted model alone

    def __init__(self, method: Method, card: dict[str, Any], path: Path) -> None:
        super().__init__()
        self.method = method
        self.card = card
        self.path = path  # the run folder or the file it was read from
        self.classes: tuple[str, ...] = tuple(card["classes"])
        self.adjusted: dict[str, Any] = card.get(
            "adjusted", {}
        )  # by `longtail adjust`: temperature and log_prior, or tau
        if "log_prior" in self.adjusted:
            self.register_buffer("answer_log_prior", torch.tensor(self.adjusted["log_prior"]), persistent=False)

    @property
    def heads(self) -> tuple[str, ...]:
        """What can answer: the classifier (called cosine, as GML's is), the mixture over the bank, their average."""
        bank = getattr(self.method.objective, "bank", None)
        if not isinstance(bank, Bank) or not bank.any_filled:
            return ("cosine",)
        return ("cosine", "kernel", "both")

    @property
    def kernel_weight(self) -> float:
        """The mixture's share in their average."""
        return self.card.get("kernel_weight", second_answer.UNFITTED)

    def forward(self, images: Tensor, head: str = "cosine") -> Tensor:
        if "tau" in self.adjusted:
            raise LongtailError(
                "this model was tau-normalised, so its scores are no log-likelihood and take no prior: "
                "answer as-trained, or adjust the original run in another way"
            )
        temperature = self.adjusted.get("temperature", 1.0)
        if head == "cosine":
            return self.method.loglik(images) / temperature
        objective: Any = self.method.objective
        features_bd = self.method.backbone(images)
        kernel_bc = objective.kernel_loglik(features_bd)
        if head == "kernel":
            return kernel_bc
        loglik_bc = prior_free(objective.scores(features_bd), objective.log_mass, objective.log_added) / temperature
        return second_answer.average(loglik_bc, kernel_bc, self.kernel_weight)

    def carried(self) -> Tensor:
        """[C] what `scores` have over the log-likelihood: the prior that they answer under."""
        if "log_prior" in self.adjusted:
            return self.answer_log_prior
        objective: Any = self.method.objective
        return -prior_free(torch.zeros(1, len(self.classes)), objective.log_mass.cpu(), objective.log_added.cpu())[0]

    def scores(self, images: Tensor) -> Tensor:
        """As trained, what a published row is answered with; or as adjusted."""
        return self(images) + self.answer_log_prior if "log_prior" in self.adjusted else self.method.scores(images)


def save(folder: Path, method: Method, stage: Stage, card: dict[str, Any]) -> None:
    """Write a finished stage. `card` brings what the method does not know: classes, counts, normalisation, size."""
    state = {k: v for k, v in method.state_dict().items() if not k.startswith(("key_encoder.", "average."))}
    objective: Any = method.objective
    bank = getattr(objective, "bank", None)
    key_dim = method.key_encoder.dim if method.key_encoder is not None else None
    card = card | {
        "method": stage.method,
        "settings": stage.settings,
        "model": stage.model,
        "dim": method.backbone.dim,
        "key_dim": key_dim,
        "log_added": objective.log_added.tolist(),
        "log_mass": objective.log_mass.tolist(),
    }
    checkpoint.write_tensors(folder / "backbone.safetensors", _backbone_of(method).state_dict())
    if isinstance(bank, Bank):
        checkpoint.write_tensors(folder / "bank.safetensors", bank.stored())
    checkpoint.save_model(folder, {k: v for k, v in state.items() if not k.startswith(FOR_TRAINING)}, card)


def load(folder: str | Path) -> Model:
    """The model of a run folder, or of one exported safetensors file, in evaluation mode on the CPU."""
    folder = Path(folder).expanduser()
    tensors, card = checkpoint.load_single(folder) if folder.is_file() else checkpoint.load_model(folder)
    if card.get("task") == "segmentation":
        raise LongtailError(
            f"{folder} holds a segmentation of pixels: `longtail evaluate`, predict, report and export take it, and "
            "Python by longtail.segmentation.model.load"
        )
    try:
        return Model(_rebuilt(folder, tensors, card), card, folder).eval().requires_grad_(False)
    except LongtailError:
        raise
    except Exception as error:  # the card may come from anybody, and be wrong in any way
        why = (str(error).splitlines() or [""])[0]
        raise LongtailError(
            f"{folder} does not describe a model that can be built ({type(error).__name__}: {why})"
        ) from error


def _rebuilt(folder: Path, tensors: dict[str, Tensor], card: dict[str, Any]) -> Method:
    backbone: Any = backbones.build(card["model"])
    objective: Any = build_objective(
        card["method"], card["counts"], backbone.dim, card["settings"], card["key_dim"], card["model"]
    )
    method = Method(backbone, objective)
    try:
        missing, unexpected = method.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise LongtailError(
            f"{folder}/model.safetensors does not fit its model.json: {str(error).splitlines()[-1].strip()}"
        ) from None
    missing = [key for key in missing if not key.startswith(FOR_TRAINING)]
    if missing or unexpected:
        raise LongtailError(
            f"{folder}/model.safetensors does not fit its model.json: {(missing or unexpected)[0]!r} differs"
        )
    if (folder / "bank.safetensors").exists():
        objective.bank = _load_bank(folder / "bank.safetensors", frozen=card["settings"].get("bank") == "full")
    return method


def _load_bank(path: Path, frozen: bool) -> Bank:
    return Bank.of_stored(_read_tensors(path, "the bank"), frozen=frozen)


def _read_tensors(path: Path, what: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # safetensors and the operating system have exceptions of their own
        raise LongtailError(f"cannot read {what} {path}: {str(error).splitlines()[0]}") from None


def load_backbone(backbone: nn.Module, path: str | Path) -> None:
    """Start from weights in a safetensors file, or from a run's own backbone. A classifier in the file is left out."""
    path = Path(path).expanduser()
    path = path / "backbone.safetensors" if path.is_dir() else path
    tensors = _read_tensors(path, "the weights")
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
