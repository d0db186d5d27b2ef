"""The objective of a stage that trains nothing: a head made from an earlier stage's, which only answers."""

from __future__ import annotations

from torch import Tensor, nn


class PostHoc(nn.Module):
    """`likelihood.inherit(earlier)` makes the head; scores are its answers. There is no loss."""

    student_views = ("class",)
    key_views = ()
    wants_key_scores = False
    log_added: Tensor
    log_mass: Tensor

    def __init__(self, likelihood: nn.Module, log_added_c: Tensor, log_mass_c: Tensor) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.register_buffer("log_added", log_added_c)
        self.register_buffer("log_mass", log_mass_c)

    def scores(self, features: Tensor) -> Tensor:
        return self.likelihood(features)
