"""Knowledge distillation (Hinton et al., 2015) with this project's prior-free scores.

    L = gamma L_cls + kd_weight T^2 KL( softmax(t / T) || softmax(s / T) )

t and s are the teacher's and the student's scores of the same view, without the prior, so that a teacher of a long
tail teaches likelihoods and not its class mix. gamma = 0.1, kd_weight = 0.9, T = 4 are RepDistiller's, whose protocol
the paper follows; GML's own term has gamma = kd_weight = 1 and T = 4.

L_cls is logit-adjusted: on a cosine head as everywhere in the paper, or with `head="linear"` balanced softmax, which
on balanced data is RepDistiller's plain cross-entropy. The teacher is trained first, under the same L_cls; its head
and the student's should be of one kind, or their scores differ in scale. KL is summed over classes and averaged over
samples ("batchmean"): PyTorch's "mean" would divide it by C as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.likelihood.cosine import Cosine
from longtail.likelihood.linear import Linear
from longtail.losses.kd import distillation
from longtail.methods.published import Published
from longtail.prior import log_prior
from longtail.recipe import Stage
from longtail.template import add_prior, cross_entropy
from longtail.types import Losses

TEACHERS = {"cosine": "logit_adjusted", "linear": "balanced_softmax"}


class KD(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_key_scores = True
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        head: str = "cosine",
        gamma: float = 0.1,
        kd_weight: float = 0.9,
        kd_temperature: float = 4.0,
    ) -> None:
        super().__init__()
        self.likelihood = head_of(head, dim, len(counts))
        self.gamma, self.kd_weight, self.kd_temperature = gamma, kd_weight, kd_temperature
        self.register_buffer("log_added", log_prior(counts))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None, *, key_scores: Tensor) -> Losses:
        scores_bc = self.likelihood(features)
        cls_b = cross_entropy(add_prior(scores_bc, self.log_added), labels)
        kd_b = distillation(scores_bc, key_scores, self.kd_temperature)
        parts = {"cls": cls_b.detach().mean(), "kd": kd_b.detach().mean()}
        return Losses(self.gamma * cls_b + self.kd_weight * kd_b, parts)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)


def head_of(kind: str, dim: int, num_classes: int) -> nn.Module:
    if kind not in TEACHERS:
        raise LongtailError(f"head is cosine or linear, not {kind!r}")
    return Cosine(dim, num_classes) if kind == "cosine" else Linear(dim, num_classes)


def stages(base: Stage) -> tuple[Stage, ...]:
    """A teacher under the same L_cls, then the student."""
    if base.keys:
        return (base,)
    head = base.settings.get("head", "cosine")
    teacher = replace(base, name="teacher", method=TEACHERS.get(head, "logit_adjusted"), settings={})
    return (teacher, replace(base, name="student", keys="teacher"))


METHOD = Published(
    "kd",
    KD,
    paper="Hinton et al., 2015",
    likelihood="linear or cosine",
    samples="one learned centre a class",
    prior="log p",
    numerator="exact",
    weight="-",
    stages=stages,
)
