"""A method is a backbone, an objective, and the views the objective wants.

`engine/` knows a method by what stands here and nothing else. An objective knows no image; this is the only place
where images become features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from longtail.prior import prior_free
from longtail.types import Batch, Losses


class Objective(Protocol):
    """Features, labels and ids -> per-sample losses. Liftable into anybody's loop."""

    student_views: tuple[str, ...]  # views that pass through the student; the first one is scored
    key_views: tuple[str, ...]  # views that pass through the key encoder
    likelihood: nn.Module  # the head that answers
    log_added: Tensor
    log_mass: Tensor

    def __call__(self, features: Tensor, labels: Tensor, ids: Tensor, **extras: Any) -> Losses: ...
    def scores(self, features: Tensor) -> Tensor: ...


class Method(nn.Module):
    """Backbone + objective (+ a key encoder: a frozen teacher, or a momentum copy)."""

    def __init__(self, backbone: nn.Module, objective: nn.Module, key_encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.objective = objective
        self.key_encoder = key_encoder
        # Replaced under torch.distributed by a gather over ranks, so that every bank sees every key in the same order.
        self.exchange: Callable[..., tuple[Tensor, ...]] = lambda *tensors: tensors

    @property
    def views(self) -> tuple[str, ...]:
        return self.objective.student_views + self.objective.key_views  # type: ignore[operator, return-value]

    def forward(self, batch: Batch) -> Losses:
        names: tuple[str, ...] = self.objective.student_views  # type: ignore[assignment]
        student, others = batch.views[: len(names)], batch.views[len(names) :]
        # One pass over all student views, as the authors do: they share their batch statistics.
        features = self.backbone(torch.cat(student) if len(student) > 1 else student[0]).chunk(len(names))
        extras: dict[str, Any] = dict(zip(names[1:], features[1:], strict=True))
        if self.key_encoder is not None:
            extras |= self._ask_key_encoder(batch, others)
        return self.objective(features[0], batch.labels, batch.ids, **extras)

    def _ask_key_encoder(self, batch: Batch, key_views: tuple[Tensor, ...]) -> dict[str, Any]:
        """Key features enter the bank before the batch is scored; scores of the class view serve distillation."""
        assert self.key_encoder is not None
        wanted = (batch.views[:1] if self.objective.wants_key_scores else ()) + key_views
        if not wanted:
            return {}
        features, scores = self.key_encoder(torch.cat(wanted) if len(wanted) > 1 else wanted[0])
        size = len(batch.labels)
        if key_views:
            self.objective.enqueue(*self.exchange(features[-size:], batch.labels, batch.ids))  # type: ignore[operator]
        return {"key_scores": scores[:size]} if self.objective.wants_key_scores else {}

    @torch.no_grad()
    def prepare(self, batches: Iterable[Batch]) -> None:
        """Before the first step: a full bank takes the teacher's features of the whole training set."""
        if not getattr(self.objective, "wants_full_bank", False):
            return
        assert self.key_encoder is not None
        rows = [(self.key_encoder(batch.views[0])[0], batch.labels, batch.ids) for batch in batches]
        self.objective.fill(*(torch.cat(column) for column in zip(*rows, strict=True)))  # type: ignore[operator]

    def after_step(self) -> None:
        if self.key_encoder is not None:
            self.key_encoder.follow(self.backbone, self.objective.likelihood)  # type: ignore[operator]

    def set_progress(self, progress: float) -> None:
        """How far the training is, in [0, 1], for objectives that change over time (deferred weights)."""
        if hasattr(self.objective, "progress"):
            self.objective.progress = progress

    def scores(self, images: Tensor) -> Tensor:
        """What was trained, [B, C]. A published row is answered with these."""
        return self.objective.scores(self.backbone(images))  # type: ignore[operator]

    def loglik(self, images: Tensor) -> Tensor:
        """log p(x|c) up to a constant a sample, [B, C]: add the prior of wherever the answer is used."""
        return prior_free(self.scores(images), self.objective.log_mass, self.objective.log_added)  # type: ignore[arg-type]

    def resume_state(self) -> dict[str, Tensor]:
        """All that must survive a restart. A frozen teacher is on disk already, in its own run folder."""
        frozen = self.key_encoder is not None and not self.key_encoder.momentum
        return {k: v for k, v in self.state_dict().items() if not (frozen and k.startswith("key_encoder."))}

    def load_resume_state(self, state: dict[str, Tensor]) -> None:
        missing, unexpected = self.load_state_dict(state, strict=False)
        assert not unexpected and all(key.startswith("key_encoder.") for key in missing), (missing, unexpected)
