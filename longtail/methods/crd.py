"""Contrastive representation distillation, CRD (Tian et al., ICLR 2020): student and teacher embed an image alike.

    v_s = W_s x_s / |.|,  v_t = W_t x_t / |.|         linear maps of both features of the same view to 128 numbers
    L   = gamma L_cls + crd_weight ( NCE(v_s against the teacher's memory) + NCE(v_t against the student's) )
        + kd_weight L_KD

NCE tells a sample's own memory from k = 16,384 others', drawn outside its class (`losses/crd.py`). The memories have
an entry for every training image and side, momentum 0.5, random at first. Defaults gamma = 1, crd_weight = 0.8, tau =
0.07, kd_weight = 0 are the authors'. L_cls and the teacher as in `kd.py`.

Where this differs from the authors' code: they gather the B x (k + 1) negatives' embeddings twice a step (0.5 GB at B
= 64); here all N similarities are one product of which those drawn are taken, the same numbers at B x N. Their 1e-7
inside the logarithms is left out. It needs to know who the training images are, and reads the whole set once before
the first step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.contrast.memory import Memory
from longtail.losses.contrastive import similarities
from longtail.losses.crd import log_normaliser, noise_contrast
from longtail.losses.kd import distillation
from longtail.methods.kd import head_of, stages
from longtail.methods.published import Published
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.template import add_prior, cross_entropy
from longtail.types import Losses


class CRD(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_keys = True
    wants_full_bank = True
    log_added: Tensor
    log_mass: Tensor
    log_z: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        key_dim: int | None = None,
        head: str = "cosine",
        k: int = 16384,
        tau: float = 0.07,
        memory_momentum: float = 0.5,
        embed: int = 128,
        gamma: float = 1.0,
        crd_weight: float = 0.8,
        kd_weight: float = 0.0,
        kd_temperature: float = 4.0,
    ) -> None:
        super().__init__()
        self.likelihood = head_of(head, dim, len(counts))
        self.embed_student, self.embed_teacher = nn.Linear(dim, embed), nn.Linear(key_dim or dim, embed)
        self.memory = Memory(torch.as_tensor(counts), embed)
        self.k, self.tau, self.memory_momentum = k, tau, memory_momentum
        self.gamma, self.crd_weight = gamma, crd_weight
        self.kd_weight, self.kd_temperature = kd_weight, kd_temperature
        self.wants_key_scores = kd_weight > 0
        self.ranks: Ranks = ALONE
        self.pending: list[tuple[Tensor, ...]] = []
        self.register_buffer("log_z", torch.full((2,), torch.nan))  # of either side, from the first batch
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def fill(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        self.memory.name_rows(labels, ids)

    def forward(
        self, features: Tensor, labels: Tensor, ids: Tensor, *, keys: Tensor, key_scores: Tensor | None = None
    ) -> Losses:
        """`keys` are the teacher's features of the same view."""
        scores_bc = self.likelihood(features)
        cls_b = cross_entropy(add_prior(scores_bc, self.log_added), labels)
        loss_b, parts = self.gamma * cls_b, {"cls": cls_b.detach().mean()}
        if self.memory.named:  # before `fill` nobody knows whose the memories are, and the log has no such term
            crd_b = self._contrast(features, keys, labels, ids)
            loss_b, parts = loss_b + self.crd_weight * crd_b, parts | {"crd": crd_b.detach().mean()}
        if self.kd_weight > 0:
            assert key_scores is not None, "give the teacher's scores of the class view: key_scores="
            kd_b = distillation(scores_bc, key_scores, self.kd_temperature)
            loss_b, parts = loss_b + self.kd_weight * kd_b, parts | {"kd": kd_b.detach().mean()}
        return Losses(loss_b, parts)

    def _contrast(self, features: Tensor, keys: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        memory, size = self.memory, len(self.memory.ids)
        student_bd = F.normalize(self.embed_student(features), dim=1)
        teacher_bd = F.normalize(self.embed_teacher(keys), dim=1)
        drawn = torch.cat([memory.rows(ids)[:, None], memory.draw_others(labels, self.k)], dim=1)
        sides = [
            similarities(student_bd, memory.teacher, self.tau).gather(1, drawn),
            similarities(teacher_bd, memory.student, self.tau).gather(1, drawn),
        ]
        with torch.no_grad():
            here = torch.stack([log_normaliser(side, size) for side in sides]).to(self.log_z.dtype)
            everywhere = self.ranks.gather(here[None]).logsumexp(dim=0) - torch.tensor(self.ranks.world).log()
            self.log_z.copy_(torch.where(self.log_z.isnan(), everywhere, self.log_z))
        loss_b = sum(noise_contrast(side, z, size) for side, z in zip(sides, self.log_z.unbind(), strict=True))
        # Not now: the memory that was scored against is needed for the gradient.
        self.pending.append(tuple(self.ranks.gather(x) for x in (ids, student_bd.detach(), teacher_bd.detach())))
        assert isinstance(loss_b, Tensor)
        return loss_b

    def after_step(self) -> None:
        """The step's embeddings enter the memory."""
        for ids, student_bd, teacher_bd in self.pending:
            self.memory.update(ids, student_bd, teacher_bd, self.memory_momentum)
        self.pending.clear()

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


METHOD = Published(
    "crd",
    CRD,
    paper="Tian et al., ICLR 2020",
    likelihood="linear or cosine",
    samples="memory of every training sample",
    prior="log p",
    numerator="exact; noise contrast beside it",
    weight="-",
    stages=stages,
)
