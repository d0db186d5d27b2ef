"""Zero-shot CLIP (Radford et al., ICML 2021): the mean text feature of a class is its centre, and nothing is learned.

    log s(x|c) = s cos( x, t_c ),   t_c = mean of the unit-length features of its sentences, s CLIP's scale

Nothing of the training set's class mix is in these scores, so there is nothing to take out of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from longtail.likelihood.prototypes import Prototypes
from longtail.template import cross_entropy
from longtail.types import Losses
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import text_bank


class ZeroShot(nn.Module):
    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        sentences: str = "",  # a corpus: JSON lines, or a folder in VL-LTR's layout
        templates: str | Sequence[str] = "simple",
    ) -> None:
        super().__init__()
        self.sentences, self.templates = sentences, templates
        self.likelihood = Prototypes(torch.zeros(len(counts), dim))
        self.register_buffer("log_added", torch.zeros(len(counts)))
        self.register_buffer("log_mass", torch.zeros(len(counts)))

    def read(self, classes: Sequence[str], tower: TextTower) -> None:
        bank = text_bank(read_corpus(classes, self.sentences, self.templates), tower)
        self.likelihood = Prototypes(bank.means(), tau=1 / tower.scale.item())

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        loss_b = cross_entropy(self.likelihood(features), labels)
        return Losses(loss_b, {"cls": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)
