"""GML with sentences as samples (Suh and Seo, ICML 2023, section 3.4 and table 4).

    s(x|c) = (1/|Z_c|) sum_{t in Z_c} exp( z_x . z_t / tau_g )        Z_c: text features of sentences about class c
    L      = gamma L_cls + beta L_GML

both logit-adjusted as in `methods/gml.py`. z_x and z_t are the image tower's and the frozen text tower's features
behind a linear map each, which begin as the identity, so that training starts at CLIP's own alignment; tau_g is CLIP's
own temperature. The cosine head of L_cls starts at the mean text feature of each class and answers; the mixture over
the sentences is a second answer for free (`kernel_loglik`).

The paper gives this variant a paragraph and no code was released. It names the centres, the source of the sentences and
the settings (VL-LTR's). Not in it, and decided here: the linear maps (the MLPs of the image-only method begin at
random, which would throw the alignment away), tau_g, that L_cls is kept, that one view serves both terms, and that the
text tower is frozen.

With beta = 0 and tau_s = 1/25 on a frozen tower with adapters this is LIFT: see `lift.py`. With beta > 0 on such a
tower (`--clip ViT-B-16/openai+adaptformer8`) it is GML on top of LIFT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail.contrast.bank import Bank
from longtail.likelihood.cosine import Cosine
from longtail.likelihood.mixture import mixture_loglik
from longtail.prior import log_prior
from longtail.template import add_prior, at_least_float32, cross_entropy
from longtail.types import Losses
from longtail.vision_language.anchors import select_anchors
from longtail.vision_language.clip import TextTower
from longtail.vision_language.corpus import read_corpus
from longtail.vision_language.text import TextBank, text_bank


class TextGML(nn.Module):
    """Features [N, D] of an image tower -> per-sample losses, once it has read what is said about the classes."""

    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    tau: Tensor
    log_prior: Tensor
    log_added: Tensor
    log_mass: Tensor

    def __init__(
        self,
        counts: Sequence[int] | Tensor,
        dim: int,
        *,
        sentences: str = "",  # a corpus: JSON lines, or a folder in VL-LTR's layout
        templates: str | Sequence[str] = "simple",
        anchors: int = 64,  # at most so many sentences a class, those that fit its images best
        tau_g: float | None = None,  # CLIP's own temperature if not given
        tau_s: float = 1 / 30,
        alpha: float = 1.0,
        alpha_cls: float = 1.0,
        gamma: float = 1.0,
        beta: float = 1.0,
    ) -> None:
        super().__init__()
        self.sentences, self.templates, self.anchors = sentences, templates, anchors
        self.likelihood = Cosine(dim, len(counts), tau_s)
        self.embed_query, self.embed_text = (_identity(dim).requires_grad_(beta > 0) for _ in range(2))
        self.bank: Bank | None = None
        self.clip_tau = tau_g is None
        self.register_buffer("tau", torch.tensor(tau_g or 0.01))
        self.register_buffer("log_prior", log_prior(counts), persistent=False)
        self.register_buffer("log_added", log_prior(counts, alpha_cls))
        self.register_buffer("log_mass", log_prior(counts))
        self.alpha, self.gamma, self.beta = alpha, gamma, beta

    def read(self, classes: Sequence[str], tower: TextTower) -> None:
        self._take(text_bank(read_corpus(classes, self.sentences, self.templates), tower))
        if self.clip_tau:
            self.tau.copy_(1 / tower.scale.detach())

    @property
    def wants_full_bank(self) -> bool:
        """Only where a class has more sentences than it may keep is there anything to select."""
        return self.bank is not None and self.bank.segments.longest > self.anchors

    def fill(self, features: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Keep the sentences that fit the training images, seen through the tower as it is before training."""
        assert self.bank is not None
        bank = TextBank(self.bank.features, self.bank.segments.class_of_row, len(self.log_mass))
        self._take(select_anchors(bank, features, labels, 1 / self.tau.item(), self.anchors))

    def imagine(self) -> None:
        """As many sentences of every class as it may keep, of noise: what a corpus will cost, without one."""
        class_of = torch.arange(len(self.log_mass)).repeat_interleave(self.anchors)
        noise = F.normalize(torch.randn(len(class_of), self.likelihood.centres.shape[1]), dim=1)
        self._take(TextBank(noise, class_of, len(self.log_mass)))

    def _take(self, bank: TextBank) -> None:
        self.bank = Bank.full(bank.features, bank.class_of, torch.arange(len(bank.class_of)), bank.num_classes)
        self.bank.to(self.log_mass.device)
        self.likelihood.centres.data.copy_(bank.means())

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        scores_bc = self.likelihood(features)
        cls_b = cross_entropy(add_prior(scores_bc, self.log_added), labels)
        loss_b, parts = self.gamma * cls_b, {"cls": cls_b.detach().mean()}
        if self.beta > 0:
            gml_b = cross_entropy(add_prior(self._mixture(features), self.log_prior, self.alpha), labels)
            loss_b, parts = loss_b + self.beta * gml_b, parts | {"gml": gml_b.detach().mean()}
        return Losses(loss_b, parts)

    def _mixture(self, features: Tensor) -> Tensor:
        assert self.bank is not None, "read what is said about the classes first"
        with torch.autocast(features.device.type, enabled=False):  # a bfloat16 cosine over 0.01 is off by half a logit
            query_bd = F.normalize(self.embed_query(at_least_float32(features)), dim=1)
            keys_kd = F.normalize(self.embed_text(self.bank.features), dim=1)
            return mixture_loglik(query_bd, keys_kd, self.bank.segments, self.tau)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)

    @torch.no_grad()
    def kernel_loglik(self, features: Tensor) -> Tensor:
        """The second answer: the mixture over the sentences, prior-free, [B, C]."""
        return self._mixture(features)


def _identity(dim: int) -> nn.Linear:
    linear = nn.Linear(dim, dim, bias=False)
    nn.init.eye_(linear.weight)
    return linear
