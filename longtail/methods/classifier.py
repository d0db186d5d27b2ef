"""The one-view objective: cross-entropy of a likelihood plus tau log p. Most baselines are an argument of it."""

from collections.abc import Sequence

from torch import Tensor, nn

from longtail.prior import log_prior
from longtail.template import add_prior, cross_entropy
from longtail.types import Losses


class Classifier(nn.Module):
    """L = -log softmax_c( log s(x|c) + tau log p_c )[y], per sample.

    tau = 0 learns the training set's class mix into the scores, tau = 1 keeps it out of them.
    """

    student_views = ("class",)
    key_views = ()
    log_added: Tensor
    log_mass: Tensor

    def __init__(self, likelihood: nn.Module, counts: Sequence[int] | Tensor, tau: float = 1.0) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.register_buffer("log_added", log_prior(counts, tau))
        self.register_buffer("log_mass", log_prior(counts))

    def forward(self, features: Tensor, labels: Tensor, ids: Tensor | None = None) -> Losses:
        loss_b = cross_entropy(add_prior(self.likelihood(features), self.log_added), labels)
        return Losses(loss_b, {"cls": loss_b.detach().mean()})

    def scores(self, features: Tensor) -> Tensor:
        """What was trained, [B, C]; `prior.prior_free` makes it a log-likelihood."""
        return self.likelihood(features)
