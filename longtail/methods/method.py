"""A method is a backbone, an objective, and the views the objective wants.

`engine/` knows a method by what stands here and nothing else. An objective knows no image; this is the only place
where images become features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from longtail.losses.mixup import mixed
from longtail.models.average import WeightAverage
from longtail.prior import prior_free
from longtail.ranks import ALONE, Ranks
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


def alone(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


def together(views: tuple[Tensor, ...]) -> Tensor:
    """All views as one batch; a single one is not copied."""
    return views[0] if len(views) == 1 else torch.cat(views)


class Method(nn.Module):
    """Backbone + objective (+ a key encoder: a frozen teacher, or a momentum copy)."""

    backbone: Any  # a module that says its width, `dim`
    objective: Any  # an `Objective` that is a module
    key_encoder: Any  # a `Teacher`, a `MomentumEncoder` or None

    def __init__(self, backbone: nn.Module, objective: nn.Module, key_encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.objective = objective
        self.key_encoder = key_encoder
        self.average: WeightAverage | None = None
        self.ranks: Ranks = ALONE
        # Replaced under torch.distributed by a gather over ranks, so that every bank sees every key in the same order.
        self.exchange: Callable[..., tuple[Tensor, ...]] = alone

    def join(self, ranks: Ranks) -> None:
        """Train as one of several; everything inside that has to see over its own share is told."""
        for module in self.modules():
            if hasattr(module, "ranks"):
                module.ranks = ranks  # type: ignore[assignment]

    @property
    def views(self) -> tuple[str, ...]:
        return self.objective.student_views + self.objective.key_views

    def forward(self, batch: Batch) -> Losses:
        names: tuple[str, ...] = self.objective.student_views
        extras: dict[str, Any] = {}
        if alpha := getattr(self.objective, "mixup", 0.0):
            mixed_images, extras["target"] = mixed(batch.views[0], batch.labels, len(self.objective.log_mass), alpha)
            batch = batch._replace(views=(mixed_images, *batch.views[1:]))
        student, others = batch.views[: len(names)], batch.views[len(names) :]
        # One pass over all student views, as the authors do: they share their batch statistics.
        features = self.backbone(together(student)).chunk(len(names))
        extras |= dict(zip(names[1:], features[1:], strict=True))
        if self.key_encoder is not None:
            extras |= self._ask_key_encoder(batch, others)
        return self.objective(features[0], batch.labels, batch.ids, **extras)

    def _ask_key_encoder(self, batch: Batch, key_views: tuple[Tensor, ...]) -> dict[str, Any]:
        """Key features enter the bank before the batch is scored; scores of the class view serve distillation.

        An objective that contrasts with the batch's own keys is given them: of the key view, or where it has none of
        the class view. A teacher that has been asked about this picture of an image is not asked again.
        """
        assert self.key_encoder is not None
        objective, size = self.objective, len(batch.labels)
        features: Any
        scores: Any
        extras: dict[str, Any] = {}
        wants_keys, wants_scores = getattr(objective, "wants_keys", False), objective.wants_key_scores
        class_keys = getattr(objective, "class_keys", False) or (wants_keys and not key_views)
        wants_class = wants_scores or class_keys
        knows = wants_class and batch.picture is not None and getattr(self.key_encoder, "memory", None) is not None
        asked = (batch.views[:1] if wants_class and not knows else ()) + key_views
        features, scores = self.key_encoder(together(asked)) if asked else (None, None)
        if knows:
            class_features, class_scores = self.key_encoder.recall(batch.ids, batch.picture)
            features, scores = class_features if class_keys else features, class_scores
        if wants_keys:
            extras["keys"] = features[-size:]
        elif key_views or class_keys:
            mine = features[-size:], batch.labels, batch.ids
            if hasattr(objective, "pick_keys"):  # pixels: a few of an image's, which then are all that ranks exchange
                mine = objective.pick_keys(*mine)
            objective.enqueue(*self.exchange(*mine))
        if wants_scores:
            extras["key_scores"] = scores[:size]
        return extras

    @torch.no_grad()
    def remember(self, pictures: Callable[[int], Iterable[Batch]], number: int) -> None:
        """Before the first step: ask a frozen teacher about all the class views there will be, and never again."""
        objective: Any = self.objective
        wants = (
            getattr(objective, "class_keys", False) or getattr(objective, "bank_views", 0),
            objective.wants_key_scores,
        )
        said: tuple[list[Tensor], list[Tensor]] = ([], [])
        ids = labels = None
        for picture in range(number):
            mine = [(b.ids, b.labels, *self.key_encoder(b.views[0])) for b in pictures(picture)]
            ids, labels, *outputs = (self.ranks.gather(torch.cat(column)) for column in zip(*mine, strict=True))
            order = ids.argsort()
            ids, labels = ids[order], labels[order]
            for kept, output, wanted in zip(said, outputs, wants, strict=True):
                if wanted:
                    kept.append(output[order])
        assert ids is not None and labels is not None
        self.key_encoder.remember(ids, labels, said[0] or None, said[1] or None)

    @torch.no_grad()
    def prepare(self, batches: Iterable[Batch]) -> None:
        """Before the first step: a full bank takes the teacher's features of the whole training set.

        Without a teacher they are the backbone's own, for class means of what an earlier stage has trained.
        """
        if not getattr(self.objective, "wants_full_bank", False):
            return

        def features(images: Tensor) -> Tensor:
            return self.backbone(images) if self.key_encoder is None else self.key_encoder(images)[0]

        views, memory = getattr(self.objective, "bank_views", 0), getattr(self.key_encoder, "memory", None)
        if views and memory is not None:  # a trial step asks nothing beforehand
            keys = memory.features[:views].flatten(0, 1)
            self.objective.fill(keys, memory.labels.repeat(views), memory.ids.repeat(views))
            return
        mine = [(features(batch.views[0]), batch.labels, batch.ids) for batch in batches]
        keys, labels, ids = (self.ranks.gather(torch.cat(column)) for column in zip(*mine, strict=True))
        order = ids.argsort()  # in which all ranks agree, whatever share each had
        self.objective.fill(keys[order], labels[order], ids[order])

    def after_step(self) -> None:
        if self.key_encoder is not None:
            self.key_encoder.follow(self.backbone, self.objective.likelihood)
        if hasattr(self.objective, "after_step"):
            self.objective.after_step()
        if self.average is not None:
            self.average.update()

    def keep_average(self, decay: float) -> None:
        """From now on a moving average of what answers is kept, see `answering`."""
        second = [
            getattr(self.objective, name) for name in ("embed_query", "embed_key") if hasattr(self.objective, name)
        ]
        self.average = WeightAverage([self.backbone, self.objective.likelihood, *second], decay)

    def answering(self) -> AbstractContextManager[None]:
        """With the averaged weights, where there are some."""
        return nullcontext() if self.average is None else self.average.in_place()

    def set_progress(self, progress: float) -> None:
        """How far the training is, in [0, 1], for objectives that change over time (deferred weights)."""
        if hasattr(self.objective, "progress"):
            self.objective.progress = progress

    def scores(self, images: Tensor) -> Tensor:
        """What was trained, [B, C]. A published row is answered with these."""
        return self.objective.scores(self.backbone(images))

    def loglik(self, images: Tensor) -> Tensor:
        """log p(x|c) up to a constant a sample, [B, C]: add the prior of wherever the answer is used."""
        return prior_free(self.scores(images), self.objective.log_mass, self.objective.log_added)

    def resume_state(self) -> dict[str, Tensor]:
        """All that must survive a restart. A frozen teacher is on disk already, in its own run folder."""
        frozen = self.key_encoder is not None and not self.key_encoder.momentum
        return {k: v for k, v in self.state_dict().items() if not (frozen and k.startswith("key_encoder."))}

    def load_resume_state(self, state: dict[str, Tensor]) -> None:
        missing, unexpected = self.load_state_dict(state, strict=False)
        assert not unexpected and all(key.startswith("key_encoder.") for key in missing), (missing, unexpected)
