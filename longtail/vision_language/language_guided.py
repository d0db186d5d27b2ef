"""The language-guided head: the second stage of VL-LTR (Tian et al., ECCV 2022), on frozen towers.

Two branches on the image feature x: an MLP, and attention to the M anchor sentences k of each class, those that fit its
training images best, which then asks how near what it found is:

    a = softmax_m( Wq LN(x) . Wk LN(k_cm) / sqrt(D) ),   v_c = sum_m a_m k_cm,   z_c = s cos(x, v_c)
    L = CE(MLP(x)) + CE(z),    p = w softmax(MLP(x)) + (1 - w) softmax(z),   w = 0.2 (0.7 on iNaturalist)

v_c is never formed: its length and its product with x follow from a, x . k and the Gram matrix of the class's anchors,
in an eighth of the memory at M = 64, D = 512.

Differs from the authors' code: their anchors are in some configurations chosen on held-out images, here always on the
training images; their Wq and Wk learn a thousand times more slowly than the MLP, here so only where `optim.rates` says
so. Their groups (many, medium, few) are of z + MLP(x), their accuracy of p; here all is of p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.prior import log_prior
from longtail.segments import Segments
from longtail.template import at_least_float32, cross_entropy
from longtail.types import Losses
from longtail.vision_language.anchors import select_anchors
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import TextBank, text_bank


class LanguageGuided(nn.Module):
    """The second stage's head: [B, D] -> the log of both branches' mixed probabilities [B, C]."""

    anchors: Tensor
    present: Tensor
    scale: Tensor

    def __init__(self, dim: int, num_classes: int, anchors: int, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self.visual = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, num_classes))
        self.norm_query, self.norm_key = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        for linear in (self.visual[0], self.visual[2]):
            nn.init.trunc_normal_(linear.weight, std=0.02)  # type: ignore[arg-type]
            nn.init.zeros_(linear.bias)  # type: ignore[arg-type]
        for linear in (self.query, self.key):
            nn.init.eye_(linear.weight)
        self.register_buffer("anchors", torch.zeros(num_classes, anchors, dim))
        self.register_buffer("present", torch.zeros(num_classes, anchors, dtype=torch.bool))
        self.register_buffer("scale", torch.tensor(100.0))

    def take(self, bank: TextBank) -> None:
        """The first sentences of each class in the bank become its anchors."""
        segments = Segments.of(torch.bincount(bank.class_of, minlength=bank.num_classes))
        place = torch.arange(len(bank.class_of), device=bank.class_of.device) - segments.offsets[bank.class_of]
        fits = place < self.anchors.shape[1]
        self.anchors.zero_()[bank.class_of[fits], place[fits]] = bank.features[fits]
        self.present.zero_()[bank.class_of[fits], place[fits]] = True

    def branches(self, x: Tensor) -> tuple[Tensor, Tensor]:
        visual_bc = self.visual(x)
        with torch.autocast(x.device.type, enabled=False):  # a bfloat16 cosine times 100 is off by half a logit
            x = at_least_float32(x)
            keys_cmd = self.key(self.norm_key(self.anchors))
            fit_bcm = torch.einsum("bd,cmd->bcm", self.query(self.norm_query(x)), keys_cmd) * x.shape[1] ** -0.5
            attention_bcm = fit_bcm.masked_fill(~self.present, -torch.inf).softmax(dim=2)
            similarity_bcm = torch.einsum("bd,cmd->bcm", F.normalize(x, dim=1), self.anchors)
            gram_cmm = self.anchors @ self.anchors.mT
            square_bc = (torch.einsum("bcm,cmn->bcn", attention_bcm, gram_cmm) * attention_bcm).sum(2)
            cosine_bc = (attention_bcm * similarity_bcm).sum(2) * square_bc.clamp_min(1e-12).rsqrt()
        return visual_bc, self.scale * cosine_bc

    def forward(self, x: Tensor) -> Tensor:
        visual, language = (at_least_float32(z).log_softmax(1) for z in self.branches(x))
        return torch.logaddexp(visual + math.log(self.weight), language + math.log(1 - self.weight))


class LanguageGuidedRecognition(nn.Module):
    """Features [N, D] -> the cross-entropies of both branches, per sample."""

    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    wants_full_bank = True
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        sentences: str = "",
        templates: str | Sequence[str] = "openai",
        anchors: int = 64,
        visual_weight: float = 0.2,
    ) -> None:
        super().__init__()
        self.sentences, self.templates = sentences, templates
        self.likelihood = LanguageGuided(dim, len(counts), anchors, visual_weight)
        self.bank: TextBank | None = None
        self.register_buffer("log_added", torch.zeros(len(counts)))
        self.register_buffer("log_mass", log_prior(counts))

    def read(self, classes: Sequence[str], tower: TextTower) -> None:
        self.bank = text_bank(read_corpus(classes, self.sentences, self.templates), tower)
        self.likelihood.scale.copy_(tower.scale.detach())
        self.likelihood.take(self.bank)

    def fill(self, features: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Anchors are the sentences that fit the training images best."""
        assert self.bank is not None
        number, scale = self.likelihood.anchors.shape[1], self.likelihood.scale.item()
        self.likelihood.take(select_anchors(self.bank, features, labels, scale, number))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        visual_b, language_b = (cross_entropy(z, labels) for z in self.likelihood.branches(features))
        return Losses(
            visual_b + language_b, {"visual": visual_b.detach().mean(), "language": language_b.detach().mean()}
        )

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)
