"""One embedding of every training sample, as last seen: CRD's memory (Tian et al., ICLR 2020), sorted by class.

Sorted, the samples outside a class are two ranges of rows, so that drawing from them needs no list of a class's
others.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Memory(nn.Module):
    """Two embeddings a sample: the student's and the teacher's, both random at first."""

    ids: Tensor
    row_of_id: Tensor
    offsets: Tensor
    student: Tensor
    teacher: Tensor

    def __init__(self, counts_c: Tensor, dim: int) -> None:
        super().__init__()
        size, bound = int(counts_c.sum()), (3 / dim) ** 0.5
        self.named = False
        self.register_buffer("offsets", F.pad(counts_c.cumsum(0), (1, 0)), persistent=False)
        # Ids in ascending order, and which row each of them has.
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("row_of_id", torch.arange(size))
        self.register_buffer("student", torch.empty(size, dim).uniform_(-bound, bound))
        self.register_buffer("teacher", torch.empty(size, dim).uniform_(-bound, bound))

    def name_rows(self, labels_n: Tensor, ids_n: Tensor) -> None:
        """Which samples there are, once: all of the training set, or a few of it for a trial."""
        labels, order = labels_n.sort(stable=True)
        within_class = torch.arange(len(labels), device=labels.device) - torch.searchsorted(labels, labels)
        ids, place = ids_n[order].sort()
        self.ids.fill_(torch.iinfo(torch.int64).max)
        self.ids[: len(ids)] = ids
        self.row_of_id[: len(ids)] = (self.offsets[labels] + within_class)[place]
        self.named = True

    def rows(self, ids_b: Tensor) -> Tensor:
        return self.row_of_id[torch.searchsorted(self.ids, ids_b)]

    def draw_others(self, labels_b: Tensor, k: int) -> Tensor:
        """[B, k] rows of other classes, with replacement; of any class where there is no other."""
        start_b1, end_b1 = self.offsets[labels_b][:, None], self.offsets[labels_b + 1][:, None]
        own_b1 = end_b1 - start_b1
        own_b1 = torch.where(own_b1 == len(self.ids), 0, own_b1)
        # The host's generator: the same draws on every device.
        place_bk = (torch.rand(len(labels_b), k).to(labels_b.device) * (len(self.ids) - own_b1)).long()
        place_bk = torch.minimum(place_bk, len(self.ids) - own_b1 - 1)  # where rounding took a draw up to the end
        return torch.where(place_bk < start_b1, place_bk, place_bk + own_b1)

    @torch.no_grad()
    def update(self, ids_b: Tensor, student_bd: Tensor, teacher_bd: Tensor, momentum: float) -> None:
        row = self.rows(ids_b)
        for memory, new in ((self.student, student_bd), (self.teacher, teacher_bd)):
            memory[row] = F.normalize(momentum * memory[row] + (1 - momentum) * new.to(memory.dtype), dim=1)
