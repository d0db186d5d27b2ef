"""Class-wise contrast of images with sentences: the first stage of VL-LTR (Tian et al., ECCV 2022); both towers learn.

Each image of a batch brings one sentence about its class, and every sentence of its class in the batch is a right one,
in both directions, with smoothed labels, beside a distillation from the CLIP that training began with:

    L = (1 - b) CE( smooth(same class) || s x . t ) + b CE( frozen CLIP || s x . t ),   b = 1/2, smoothing 0.1

Under torch.distributed the batch is that of all ranks, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.likelihood.prototypes import Prototypes
from longtail.prior import log_prior
from longtail.ranks import ALONE, Ranks
from longtail.segments import Segments
from longtail.template import at_least_float32, cross_entropy
from longtail.types import Losses
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import TextBank, encode


def smoothed_classes(labels_b: Tensor, labels_n: Tensor, smoothing: float) -> Tensor:
    """[B, N]: for each row, all columns of its class alike, and a little for every column."""
    same_bn = (labels_b[:, None] == labels_n).float()
    return (1 - smoothing) * same_bn / same_bn.sum(1, keepdim=True) + smoothing / len(labels_n)


class ImageTextContrast(nn.Module):
    """The first stage. It owns the text tower, which learns with the image tower."""

    student_views = ("class",)
    key_views = ()
    wants_key_scores = True  # from the frozen CLIP, whose "scores" are its features
    log_added: Tensor
    log_mass: Tensor
    frozen_text: Tensor

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
        self.ranks: Ranks = ALONE
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
        target_bn = smoothed_classes(labels, self.ranks.gather(labels), self.smoothing)
        both = self._both_ways(features, self.tower(self.tokens[row]), self.tower.scale)
        contrast_b = (cross_entropy(both[0], target_bn) + cross_entropy(both[1], target_bn)) / 2
        parts = {"contrast": contrast_b.detach().mean(), "scale": self.tower.scale.detach()}
        if key_scores is None or self.distil == 0:
            return Losses(contrast_b, parts)
        frozen = self._both_ways(key_scores, self.frozen_text[row.to(labels.device)], self.frozen_scale)
        distil_b = (cross_entropy(both[0], frozen[0].softmax(1)) + cross_entropy(both[1], frozen[1].softmax(1))) / 2
        parts["distil"] = distil_b.detach().mean()
        return Losses((1 - self.distil) * contrast_b + self.distil * distil_b, parts)

    def _both_ways(self, image: Tensor, text: Tensor, scale: float | Tensor) -> tuple[Tensor, Tensor]:
        """Each image against the sentences of all ranks, and each sentence against all their images: [B, N] twice."""
        with torch.autocast(image.device.type, enabled=False):  # a bfloat16 cosine times 100 is off by half a logit
            image, text = (F.normalize(at_least_float32(x), dim=1) for x in (image, text))
            return scale * image @ self.ranks.gather(text).T, scale * text @ self.ranks.gather(image).T

    def _draw(self, labels: Tensor) -> Tensor:
        """A sentence about each image's class. On the host, whose generator every checkpoint holds."""
        start, number = self.segments.offsets[labels], self.segments.offsets.diff()[labels]
        return start + (torch.rand(len(labels)) * number).long()

    def scores(self, features: Tensor) -> Tensor:
        """By the frozen CLIP's text: a stage without a head does not answer, but a curve can be watched."""
        return self.likelihood(features)
