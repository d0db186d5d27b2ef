"""A slowly moving average of weights, to answer with in place of the last step's (Polyak averaging).

    mine <- d mine + (1 - d) theirs after every step,   d = min(decay, (1 + t) / (10 + t)) at step t

so that the random start is soon forgotten. Batch statistics are averaged like weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage(nn.Module):
    """Of all floating-point tensors of some modules, buffers included."""

    steps: Tensor

    def __init__(self, modules: list[nn.Module], decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.modules_averaged = modules  # in a list: their state is their owner's
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        for number, theirs in enumerate(self._theirs()):
            self.register_buffer(f"average_{number}", theirs.detach().clone())

    def _theirs(self) -> list[Tensor]:
        tensors = [t for m in self.modules_averaged for t in (*m.parameters(), *m.buffers())]
        return [tensor for tensor in tensors if tensor.is_floating_point()]

    def _mine(self) -> list[Tensor]:
        return [buffer for name, buffer in self.named_buffers() if name != "steps"]

    @torch.no_grad()
    def update(self) -> None:
        self.steps += 1
        decay = torch.clamp((1 + self.steps) / (10 + self.steps), max=self.decay)
        for mine, theirs in zip(self._mine(), self._theirs(), strict=True):
            mine.lerp_(theirs, (1 - decay).to(mine.dtype))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The modules have the averages for as long as this lasts."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for mine, theirs in zip(self._mine(), self._theirs(), strict=True):
            kept = theirs.clone()
            theirs.copy_(mine)
            mine.copy_(kept)
