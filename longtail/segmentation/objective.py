"""The losses of pixels: any classifier's, at every labelled pixel, and L_GML at some of them.

    L_cls  cross-entropy of the scores, resized to the labels, plus log_added; the mean over all pixels of an image,
           where one without a label counts 0: a labelled pixel has the same weight in every crop, batch and rank
    L_aux  the same for the auxiliary head, with a likelihood of its own
    L_GML  of `queries` labelled pixels an image, against the bank; weighted as L_cls is
    L      gamma L_cls + auxiliary_weight L_aux + beta L_GML

The inner objective is an ordinary one, built with pixel counts in place of image counts. So the prior is the share of
pixels, and a pixel's id is its image's: "without the query's own sample" leaves the query's whole image out.

The paper says: FCN, both heads cosine classifiers, the auxiliary one under L_cls, k = 8192, k_m = 27, tau_s = 0.05,
tau_g = 0.07. It does not say which pixels are compared, what the teacher is, or whether alpha also multiplies the prior
in L_cls. Here the teacher is the same network under L_cls; and recipes let L_cls follow alpha unless told otherwise,
because the classifier is what answers, and with alpha in L_GML alone it would answer as at alpha = 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.methods import build_objective
from longtail.methods.classifier import Classifier
from longtail.methods.gml import GML
from longtail.recipe import nearest
from longtail.segmentation.networks import resize
from longtail.segmentation.sampling import draw, evenly_by_class, features_at, labelled
from longtail.template import add_prior, at_least_float32, cross_entropy
from longtail.types import Counts, Losses

NO_LABEL = -100  # what torch's cross-entropy leaves out
METHODS = ("cross_entropy", "balanced_softmax", "logit_adjusted", "gml")


def score_map(likelihood: nn.Module, maps: Tensor) -> Tensor:
    """A likelihood [N, D] -> [N, C] at every place: [B, D, h, w] -> [B, C, h, w]."""
    rows = maps.permute(0, 2, 3, 1)
    return likelihood(rows.flatten(0, 2)).unflatten(0, rows.shape[:3]).permute(0, 3, 1, 2)


class PerPixel(nn.Module):
    """The same as a module, for key encoders. Channels beyond `dim` are the auxiliary head's."""

    def __init__(self, likelihood: nn.Module, dim: int) -> None:
        super().__init__()
        self.likelihood, self.dim = likelihood, dim

    def forward(self, maps: Tensor) -> Tensor:
        return score_map(self.likelihood, maps[:, : self.dim])


class PixelObjective(nn.Module):
    """features [B, D (+ D'), h, w], labels [B, H, W], ids [B] -> losses per image.

    In training the last D' channels are the auxiliary head's. Labels are negative where there is none.
    """

    student_views = ("image",)
    wants_key_scores = False

    def __init__(
        self,
        inner: Classifier | GML,
        dim: int,
        auxiliary: Classifier | None = None,
        *,
        auxiliary_weight: float = 0.4,
        queries: int = 64,
        keys: int = 32,
    ) -> None:
        super().__init__()
        self.inner, self.auxiliary, self.dim = inner, auxiliary, dim
        self.auxiliary_weight, self.queries, self.keys = auxiliary_weight, queries, keys
        self.key_views = inner.key_views

    @property
    def likelihood(self) -> nn.Module:
        return self.inner.likelihood

    @property
    def log_added(self) -> Tensor:
        return self.inner.log_added

    @property
    def log_mass(self) -> Tensor:
        return self.inner.log_mass

    @property
    def bank(self) -> nn.Module | None:
        return self.inner.bank if isinstance(self.inner, GML) else None

    def pick_keys(self, maps: Tensor, labels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the key encoder's maps, `keys` pixels an image, evenly over the classes it shows: [B, n, D], [B, n], [B].

        Picked before ranks exchange them: they send each other pixels and not maps, and all have the same in the bank.
        """
        assert isinstance(self.inner, GML) and self.inner.bank is not None
        width = self.inner.bank.features.shape[1]  # a moving average of a student has its auxiliary head's channels too
        size, labels = labels.shape[1:], labels.flatten(1)
        pixels = draw(evenly_by_class(labels, len(self.log_mass)), self.keys)
        return features_at(maps[:, :width], pixels, size), labels.gather(1, pixels), ids

    def enqueue(self, keys: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Picked keys, or whole maps with their images' labels."""
        assert isinstance(self.inner, GML)
        if keys.dim() == 4:
            keys, labels, ids = self.pick_keys(keys, labels, ids)
        known = labels >= 0  # none in an image without any label
        self.inner.enqueue(keys[known], labels[known], ids[:, None].expand_as(labels)[known])

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor) -> Losses:
        labels = labels.masked_fill(labels < 0, NO_LABEL)
        gamma, beta = (self.inner.gamma, self.inner.beta) if isinstance(self.inner, GML) else (1.0, 1.0)
        main, rest = features[:, : self.dim], features[:, self.dim :]
        cls_b = _classify(self.inner, main, labels)
        loss_b, parts = gamma * cls_b, {"cls": cls_b.detach().mean()}
        if self.auxiliary is not None:
            aux_b = _classify(self.auxiliary, rest, labels)
            loss_b, parts = loss_b + self.auxiliary_weight * aux_b, parts | {"aux": aux_b.detach().mean()}
        if isinstance(self.inner, GML) and self.inner.bank is not None and self.inner.bank.any_filled:
            gml_b, gml_parts = self._contrast(self.inner, main, labels, ids)
            loss_b, parts = loss_b + beta * gml_b, parts | gml_parts
        return Losses(loss_b, parts)

    def _contrast(self, gml: GML, maps: Tensor, labels: Tensor, ids: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        size, labels = labels.shape[1:], labels.flatten(1)
        weights = labelled(labels)
        pixels = draw(weights, self.queries)
        query = features_at(maps, pixels, size).flatten(0, 1)
        own = labels.gather(1, pixels).flatten().clamp(min=0)  # of an image without labels, which then weighs 0
        loss, parts = gml.contrast(query, own, ids.repeat_interleave(self.queries))
        share_b = weights.float().mean(1)
        return loss.view(-1, self.queries).mean(1) * share_b, parts

    def scores(self, features: Tensor) -> Tensor:
        """What was trained, [B, C, h, w]: resize it to the image (`infer.py` does)."""
        return score_map(self.likelihood, features[:, : self.dim])


def _classify(objective: Classifier | GML, maps: Tensor, labels: Tensor) -> Tensor:
    """[B]: the mean over an image's pixels of the classifier's loss."""
    scores = resize(at_least_float32(score_map(objective.likelihood, maps)), labels.shape[1:])
    return cross_entropy(add_prior(scores, objective.log_added), labels).mean((1, 2))


def build(
    method: str,
    counts: Counts,
    dim: int,
    settings: dict[str, Any],
    *,
    key_dim: int | None = None,
    auxiliary_dim: int | None = None,
    auxiliary_weight: float = 0.4,
    queries: int = 64,
    keys: int = 32,
) -> PixelObjective:
    """A published method for pixels. The auxiliary head has the same kind of classifier and the same prior."""
    if method not in METHODS:
        raise LongtailError(f"segmentation has no method {method!r}{nearest(method, METHODS)}")
    if settings.get("bank", "ring") != "ring" or settings.get("kd_weight", 0):
        raise LongtailError("segmentation has no full bank and no distillation: leave bank and kd_weight out")
    if settings.get("keys_of", "key") != "key" or settings.get("mixup", 0) or settings.get("both_views", False):
        raise LongtailError("of an image's views a segmentation has its own: leave keys_of, mixup and both_views out")
    inner = build_objective(method, counts, dim, settings, key_dim)
    auxiliary = None
    if auxiliary_dim is not None and method == "gml":
        like_cls = {"tau_s": settings.get("tau_s", 1 / 30), "tau": settings.get("alpha_cls", 1.0)}
        auxiliary = build_objective("logit_adjusted", counts, auxiliary_dim, like_cls)
    elif auxiliary_dim is not None:
        auxiliary = build_objective(method, counts, auxiliary_dim, settings)
    return PixelObjective(
        inner,  # type: ignore[arg-type]
        dim,
        auxiliary,  # type: ignore[arg-type]
        auxiliary_weight=auxiliary_weight,
        queries=queries,
        keys=keys,
    )
