"""Per-class counters: the only state of an evaluation, O(C) memory, filled without waiting for the device.

All state is one flat int64 tensor: merging two passes is an addition, merging ranks is one all-reduce of `state`, and
the result does not depend on batch size, order or number of ranks, to the bit: confidences are summed in fixed point.
"""

import torch
from torch import Tensor

from longtail.errors import LongtailError
from longtail.measure.groups import NAMES
from longtail.measure.per_class import PerClass
from longtail.template import at_least_float32

BINS = 15
_NOT_A_NUMBER = BINS  # one more bin, for rows whose confidence is none: seen when the counters are read, not per batch
_ONE = 2**30  # fixed point: 1e-9 resolution, room for 8e9 samples


class Counters:
    """Counts answers to `scores`, [B, C] log-likelihoods plus the log prior they are answered under.

    With `groups` (`Groups.codes` as a tensor) it also counts which group the answers to each class fall in. `confusion`
    keeps the full [C, C] matrix, which is no longer O(C) and therefore refused above 2,048 classes.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        groups: Tensor | None = None,
        confusion: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        assert not (confusion and num_classes > 2048), "at this size count answers by `groups`"
        self.num_classes = num_classes
        self.groups = None if groups is None else groups.to(device)
        columns = (3, (BINS + 1) * 3, 0 if groups is None else len(NAMES), num_classes if confusion else 0)
        self.state = torch.zeros(num_classes * sum(columns), dtype=torch.int64, device=device)
        parts = self.state.split([num_classes * width for width in columns])
        views = [part.view(num_classes, width) for part, width in zip(parts, columns, strict=True)]
        self._by_label, self._bins, self._to_group, self._confusion = views
        # _by_label: images, in the top five, confidence.  _bins: images, correct, confidence, of the class answered

    @torch.no_grad()
    def update(self, scores_bc: Tensor, labels: Tensor) -> None:
        """Count a batch. Rows with a negative label (void pixels, padding) are left out.

        Of equal scores the class of lower index comes first; a class of probability zero is never among the top five.
        """
        scores_bc = at_least_float32(scores_bc)
        counted = labels >= 0
        labels = labels.clamp(min=0)
        true = scores_bc.gather(1, labels[:, None])
        earlier = torch.arange(self.num_classes, device=labels.device) < labels[:, None]
        ahead = ((scores_bc > true) | ((scores_bc == true) & earlier)).sum(1)
        in_top5 = (ahead < 5) & (true[:, 0] > -torch.inf)
        top, answer = scores_bc.max(1)
        confidence = (top - scores_bc.logsumexp(1)).exp()
        bins = (confidence * BINS).nan_to_num().long().clamp(max=BINS - 1)
        bins = bins.where(confidence.isfinite(), _NOT_A_NUMBER)
        confidence = (confidence.nan_to_num() * _ONE).round().long()

        rows = torch.stack([counted, labels, answer, in_top5, bins, confidence]).to(self.state.device)
        counted, labels, answer, in_top5, bins, confidence = rows
        correct = (answer == labels).long()
        self._by_label.index_add_(0, labels, torch.stack([counted, counted * in_top5, counted * confidence], 1))
        self._bins.view(-1, 3).index_add_(
            0, answer * (BINS + 1) + bins, torch.stack([counted, counted * correct, counted * confidence], 1)
        )
        if self.groups is not None:
            self._to_group.view(-1).index_add_(0, labels * len(NAMES) + self.groups[answer], counted)
        if self._confusion.numel():
            self._confusion.view(-1).index_add_(0, labels * self.num_classes + answer, counted)

    def __add__(self, other: "Counters") -> "Counters":
        assert self.state.shape == other.state.shape
        confusion = bool(self._confusion.numel())
        total = Counters(self.num_classes, groups=self.groups, confusion=confusion, device=self.state.device)
        total.state.copy_(self.state + other.state.to(self.state.device))
        return total

    def per_class(self) -> PerClass:
        """The counts as arrays. The only place that waits for the device."""
        by_label, bins, to_group, confusion = (
            view.cpu().numpy().copy() for view in (self._by_label, self._bins, self._to_group, self._confusion)
        )
        bins = bins.reshape(self.num_classes, BINS + 1, 3)
        if bad := int(bins[:, _NOT_A_NUMBER, 0].sum()):
            raise LongtailError(
                f"the scores of {bad} of {by_label[:, 0].sum()} images are not numbers: the model has diverged "
                "(look for the first NaN in metrics.jsonl) or the prior rules out every class."
            )
        return PerClass(
            n=by_label[:, 0],
            correct=bins[..., 1].sum(1),
            correct5=by_label[:, 1],
            predicted=bins[..., 0].sum(1),
            confidence=by_label[:, 2] / _ONE,
            bins=bins[:, :BINS] * [1.0, 1.0, 1 / _ONE],
            to_group=to_group if to_group.size else None,
            confusion=confusion if confusion.size else None,
        )
