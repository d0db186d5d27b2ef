"""Class-wise contrast of images with sentences: the first stage of VL-LTR (Tian et al., ECCV 2022); both towers learn.

Each image of a batch brings one sentence about its class, and every sentence of its class in the batch is a right one,
in both directions, with smoothed labels, beside a distillation from the CLIP that training began with:

    L = (1 - b) CE( smooth(same class) || s x . t ) + b CE( frozen CLIP || s x . t ),   b = 1/2, smoothing 0.1

Differs from the authors' code: the batch is contrasted within each device, theirs over all eight.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.likelihood.prototypes import Prototypes
from longtail.prior import log_prior
from longtail.segments import Segments
from longtail.template import at_least_float32, cross_entropy
from longtail.types import Losses
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import TextBank, encode


def image_text_contrast(logits_bb: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross-entropy with everything of the row's class right, rows and columns, per sample [B]."""
    same = (labels[:, None] == labels).float()
    target = (1 - smoothing) * same / same.sum(1, keepdim=True) + smoothing / len(labels)
    return (cross_entropy(logits_bb, target) + cross_entropy(logits_bb.T, target)) / 2


class ImageTextContrast(nn.Module):
    """The first stage. It owns the text tower, which learns with the image tower."""

    student_views = ("class",)
    key_views = ()
    wants_key_scores = True  # from the frozen CLIP, whose "scores" are its features
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        model: str = "",  # the CLIP, given by the engine
        sentences: str = "",
        templates: str | Sequence[str] = "openai",
        distil: float = 0.5,
        smoothing: float = 0.1,
    ) -> None:
        super().__init__()
        self.sentences, self.templates = sentences, templates
        self.distil, self.smoothing = distil, smoothing
        self.tower = TextTower(model, pretrained=False)
        self.likelihood = Prototypes(torch.zeros(len(counts), dim))
        self.register_buffer("log_added", torch.zeros(len(counts)))
        self.register_buffer("log_mass", log_prior(counts))
        self.register_buffer("frozen_text", None, persistent=False)

    def read(self, classes: Sequence[str], tower: TextTower) -> None:
        corpus = read_corpus(classes, self.sentences, self.templates)
        said = [corpus.of_class(c) for c in range(len(classes))]
        flat = [sentence for own in said for sentence in own]
        self.tower.load_state_dict(tower.state_dict())
        self.tokens = tower.tokenize(flat)  # on the host, as towers want them
        self.segments = Segments.of(torch.tensor([len(own) for own in said]))
        self.frozen_text, self.frozen_scale = encode(tower, flat), tower.scale.item()
        bank = TextBank(self.frozen_text, self.segments.class_of_row, len(classes))
        self.likelihood = Prototypes(bank.means(), tau=1 / self.frozen_scale)

    def forward(
        self, features: Tensor, labels: Tensor, ids: Tensor | None = None, *, key_scores: Tensor | None = None
    ) -> Losses:
        row = self._draw(labels.cpu())
        image, text = F.normalize(features, dim=1), F.normalize(self.tower(self.tokens[row]), dim=1)
        logits_bb = at_least_float32(self.tower.scale * image @ text.T)
        contrast_b = image_text_contrast(logits_bb, labels, self.smoothing)
        parts = {"contrast": contrast_b.detach().mean(), "scale": self.tower.scale.detach()}
        if key_scores is None or self.distil == 0:
            return Losses(contrast_b, parts)
        frozen_text = self.frozen_text[row.to(labels.device)]
        frozen_bb = at_least_float32(self.frozen_scale * F.normalize(key_scores, dim=1) @ frozen_text.T)
        pairs = (logits_bb, frozen_bb), (logits_bb.T, frozen_bb.T)
        distil_b = sum(cross_entropy(ours, theirs.softmax(1)) for ours, theirs in pairs) / 2
        parts["distil"] = distil_b.detach().mean()
        return Losses((1 - self.distil) * contrast_b + self.distil * distil_b, parts)

    def _draw(self, labels: Tensor) -> Tensor:
        """A sentence about each image's class. On the host, whose generator every checkpoint holds."""
        start, number = self.segments.offsets[labels], self.segments.offsets.diff()[labels]
        return start + (torch.rand(len(labels)) * number).long()

    def scores(self, features: Tensor) -> Tensor:
        """By the frozen CLIP's text: a stage without a head does not answer, but a curve can be watched."""
        return self.likelihood(features)
