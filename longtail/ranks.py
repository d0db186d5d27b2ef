"""The processes of a run as an objective sees them: how many there are, which one this is, and everybody's rows.

A loss that couples samples needs to see over the edge of its own share: batch statistics of a projection, a bank that
each process embeds a part of. It asks a `Ranks` and knows nothing of processes; alone, it is given `ALONE`.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Ranks(Protocol):
    @property
    def rank(self) -> int: ...
    @property
    def world(self) -> int: ...

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        """Everybody's rows [n_r, ...] in the order of the ranks, and their gradient back to where they came from.

        `sizes` says how many rows each rank brings; where it is not known, it is asked.
        """
        ...


class Alone:
    rank = 0
    world = 1

    def gather(self, rows: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
        return rows


ALONE: Ranks = Alone()
