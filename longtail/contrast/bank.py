"""The contrasts of every class, as one tensor sorted by class.

A ring bank keeps the newest features of each class in a segment of fixed length, the paper's class-wise queues:

    |Z_c| = k_m + (k - k_m C) p_c                                                              (eq. 6)

rounded by largest remainder, so that the lengths sum to k. A full bank holds a feature of every training sample and
never changes: with a frozen teacher nothing in it grows old.

Whether a row is filled is a flag of its own, and a row that is not is no contrast. The authors begin with random
vectors instead, and round the cumulative sum of the lengths, which can end one past k.
"""

import torch
from torch import Tensor, nn

from longtail.errors import LongtailError
from longtail.segments import Segments
from longtail.types import Counts


def _poll(device: torch.device) -> int:
    """Enqueues between two looks at whether the bank is full, for a look makes the host wait for the device."""
    return 1 if device.type == "cpu" else 64


def segment_lengths(counts_c: Counts, k: int, k_m: int) -> Tensor:
    """[C] int64: k_m rows for every class and the rest in proportion to the counts, k in all."""
    counts = torch.as_tensor(counts_c, dtype=torch.int64, device="cpu")
    num_classes, total = len(counts), int(counts.sum())
    least = max(1, k_m * num_classes)
    if k < least:
        raise LongtailError(
            f"A bank of k={k} rows cannot hold k_m={k_m} rows for each of {num_classes} classes: "
            f"raise k to at least {least} or lower k_m to at most {k // num_classes}."
        )
    if total == 0:
        raise LongtailError("The class counts given to the bank are all zero: give those of the training set.")
    share = (k - k_m * num_classes) * counts  # in units of 1/total: whole numbers, so nothing is rounded but on purpose
    lengths = k_m + share // total
    left = k - int(lengths.sum())
    lengths[(share % total).argsort(descending=True, stable=True)[:left]] += 1
    return lengths


class Bank(nn.Module):
    """Build one with `Bank.ring` or `Bank.full`.

    The buffers have one row more than the bank: whatever finds no place goes there, as zeros, and is never read.
    """

    _offsets: Tensor
    _class_of_row: Tensor
    _features: Tensor
    _ids: Tensor
    _filled: Tensor
    _pointers: Tensor

    def __init__(self, lengths_c: Tensor, features: Tensor, ids: Tensor, *, frozen: bool):
        super().__init__()
        segments = Segments.of(lengths_c)
        self.frozen = frozen
        self.any_filled = self.all_filled = frozen  # known on the host, see `enqueue`
        self._enqueues = 0
        self._longest = segments.longest
        self.register_buffer("_offsets", segments.offsets, persistent=False)
        self.register_buffer("_class_of_row", segments.class_of_row, persistent=False)
        # A frozen bank comes from the training set or its cache, and would only swell every checkpoint.
        self.register_buffer("_features", features, persistent=not frozen)
        self.register_buffer("_ids", ids, persistent=not frozen)
        self.register_buffer("_filled", torch.full_like(ids, frozen, dtype=torch.bool), persistent=not frozen)
        self.register_buffer("_pointers", torch.zeros_like(lengths_c), persistent=not frozen)

    @classmethod
    def ring(cls, counts_c: Counts, k: int, k_m: int, dim: int, dtype: torch.dtype = torch.float32) -> "Bank":
        """k empty rows, at least k_m of them for each class, for `enqueue` to fill."""
        features, ids = torch.zeros(k + 1, dim, dtype=dtype), torch.full((k + 1,), -1)
        return cls(segment_lengths(counts_c, k, k_m), features, ids, frozen=False)

    @classmethod
    def full(cls, features_nd: Tensor, labels_n: Tensor, ids_n: Tensor, num_classes: int) -> "Bank":
        """The whole training set, in the dtype and on the device of its features."""
        order = labels_n.argsort(stable=True)
        lengths = torch.bincount(labels_n, minlength=num_classes)
        return cls(lengths, features_nd.detach()[order], ids_n[order], frozen=True)

    def __len__(self) -> int:
        return len(self._class_of_row)

    @property
    def features(self) -> Tensor:
        return self._features[: len(self)]

    @property
    def ids(self) -> Tensor:
        return self._ids[: len(self)]

    @property
    def filled(self) -> Tensor:
        return self._filled[: len(self)]

    @property
    def mask(self) -> Tensor | None:
        """The filled rows; None once all are, which saves every reader a pass."""
        return None if self.all_filled else self.filled

    @property
    def segments(self) -> Segments:
        return Segments(self._offsets, self._class_of_row, self._longest)

    def filled_counts(self) -> Tensor:
        """[C] int64."""
        offsets = self._offsets
        filled = torch.cat([offsets.new_zeros(1), self.filled.cumsum(0)])
        return filled[offsets].diff()

    @torch.no_grad()
    def enqueue(self, features_bd: Tensor, labels_b: Tensor, ids_b: Tensor) -> Tensor:
        """Each class's ring takes its samples in batch order, new over old; of too many, the last stay.

        -> [B] the rows that were written, in no particular order; `len(self)` for each sample that found no place.
        """
        assert not self.frozen, "a full bank does not change"
        labels, order = labels_b.sort(stable=True)
        bounds = torch.searchsorted(labels, torch.arange(len(self._pointers) + 1, device=labels.device))
        first_c, number_c = bounds[:-1], bounds.diff()
        length_c = self._offsets.diff()

        rank = torch.arange(len(labels), device=labels.device) - first_c[labels]
        stays = number_c[labels] - rank <= length_c[labels]
        cycle_c = length_c.clamp(min=1)  # a class without rows keeps nothing, but must not divide by zero
        row = self._offsets[labels] + (self._pointers[labels] + rank) % cycle_c[labels]
        row = torch.where(stays, row, len(self))
        self._features[row] = torch.where(stays[:, None], features_bd[order], 0).to(self._features.dtype)
        self._ids[row] = torch.where(stays, ids_b[order], -1)
        self._filled[row] = stays
        self._pointers.copy_((self._pointers + number_c) % cycle_c)

        self._enqueues += 1
        if not self.any_filled:
            self.any_filled = bool(self._filled.any())
        if not self.all_filled and self._enqueues % _poll(self._filled.device) == 0:
            self.all_filled = bool(self.filled.all())
        return row

    def with_spare_row(self) -> tuple[Tensor, Tensor]:
        """Features and flags of the bank and of the row behind it, which is never filled."""
        return self._features, torch.cat([self.filled, self.filled.new_zeros(1)])

    def stored(self) -> dict[str, Tensor]:
        """All of it, a frozen one's rows too, for `Bank.of_stored`."""
        names = ("_features", "_ids", "_filled", "_pointers")
        return {name: getattr(self, name) for name in names} | {"_extra_state": self.get_extra_state()}

    @classmethod
    def of_stored(cls, tensors: dict[str, Tensor], *, frozen: bool) -> "Bank":
        bank = cls(tensors["_extra_state"][3:].diff(), tensors["_features"], tensors["_ids"], frozen=frozen)
        bank._filled, bank._pointers = tensors["_filled"], tensors["_pointers"]
        bank.set_extra_state(tensors["_extra_state"])
        return bank

    def get_extra_state(self) -> Tensor:
        """What the host knows, and the layout, as a tensor so that any checkpoint format takes it."""
        return torch.cat([torch.tensor([self.any_filled, self.all_filled, self._enqueues]), self._offsets.cpu()])

    def set_extra_state(self, state: Tensor) -> None:
        if not torch.equal(state[3:].cpu(), self._offsets.cpu()):
            raise LongtailError(
                "The bank in the checkpoint was laid out for other class counts, k or k_m: "
                "use the data and settings it was trained with."
            )
        any_filled, all_filled, self._enqueues = state[:3].tolist()
        self.any_filled, self.all_filled = bool(any_filled), bool(all_filled)
