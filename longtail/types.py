"""What travels between the loader, a method and the loop."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

Counts = Sequence[int] | Sequence[float] | np.ndarray | Tensor  # [C] training samples of each class


class Batch(NamedTuple):
    """One step's samples. A sample's id is its row in the image table: what "the same sample" means everywhere."""

    views: tuple[Tensor, ...]  # as many [B, 3, H, W] as the method asked for
    labels: Tensor  # [B] int64
    ids: Tensor  # [B] int64
    picture: int | None = None  # which of an image's few class views this is, where there are few


class Losses(NamedTuple):
    """What an objective returns. The loop minimises the mean of `per_sample`; `parts` is for the log."""

    per_sample: Tensor  # [N]
    parts: dict[str, Tensor]  # name -> detached scalar
