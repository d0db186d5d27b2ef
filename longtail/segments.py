"""A set of rows sorted by class: where each class's rows lie, and reductions over them without a one-hot matrix.

A bank of contrasts has this layout and a mixture likelihood reduces over it, so it belongs to neither. Matrices are
[K, B], rows first: a class is then a block of contiguous memory, and a reduction adds whole rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LOWEST = -1e30  # "nothing here" among scores: finite, so that differences of it are 0 and never NaN


class Segments(NamedTuple):
    """Class c owns rows offsets[c] to offsets[c + 1]; a class may own none."""

    offsets: Tensor  # [C + 1] int64
    class_of_row: Tensor  # [K] int64, non-decreasing
    longest: int  # rows of the largest class, known on the host so that no step waits for the device

    @classmethod
    def of(cls, lengths_c: Tensor) -> "Segments":
        offsets = torch.cat([lengths_c.new_zeros(1), lengths_c.cumsum(0)])
        classes = torch.arange(len(lengths_c), device=lengths_c.device)
        return cls(offsets, classes.repeat_interleave(lengths_c), int(lengths_c.max()))

    @property
    def num_classes(self) -> int:
        return len(self.offsets) - 1

    def blocks(self, rows: int) -> "list[tuple[slice, Segments]]":
        """The same rows, so many at a time. A class may begin in one block and end in another."""
        total = len(self.class_of_row)
        if total <= rows:
            return [(slice(0, total), self)]
        cuts = [slice(i, min(i + rows, total)) for i in range(0, total, rows)]
        return [
            (cut, Segments(self.offsets.clamp(cut.start, cut.stop) - cut.start, self.class_of_row[cut], self.longest))
            for cut in cuts
        ]

    def maxima_(self, into_cb: Tensor, x_kb: Tensor) -> None:
        """Raise each class's entry to the largest among its rows."""
        if x_kb.is_cuda:
            here_cb = torch.segment_reduce(x_kb, "max", offsets=self.offsets, axis=0, unsafe=True, initial=LOWEST)
            torch.maximum(into_cb, here_cb, out=into_cb)
        else:
            into_cb.scatter_reduce_(0, self.class_of_row[:, None].expand_as(x_kb), x_kb, "amax")

    def sums_(self, into_cb: Tensor, x_kb: Tensor) -> None:
        """Add each class's rows to its entry.

        index_add_ is atomic on CUDA: it rounds differently from run to run. segment_reduce is slow on CPU, not on MPS.
        """
        if x_kb.is_cuda:
            into_cb.add_(torch.segment_reduce(x_kb, "sum", offsets=self.offsets, axis=0, unsafe=True))
        else:
            into_cb.index_add_(0, self.class_of_row, x_kb)

    def expand(self, x_cb: Tensor, out_kb: Tensor) -> Tensor:
        """Every row gets its class's entry."""
        return torch.index_select(x_cb, 0, self.class_of_row, out=out_kb)
