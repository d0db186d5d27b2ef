from collections import deque
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.contrast.bank import Bank, segment_lengths
from longtail.errors import LongtailError

COUNTS = torch.tensor([50, 20, 8, 3, 1])


@given(
    counts=st.lists(st.integers(0, 5000), min_size=1, max_size=40).filter(any),
    k_m=st.integers(0, 5),
    free=st.integers(0, 500),
)
def test_lengths_sum_to_k_and_none_is_under_k_m(counts, k_m, free):
    k = max(1, k_m * len(counts) + free)
    lengths = segment_lengths(torch.tensor(counts), k, k_m)
    exact = k_m + (k - k_m * len(counts)) * torch.tensor(counts).double() / sum(counts)
    assert lengths.sum() == k
    assert (lengths >= k_m).all()
    assert ((lengths - exact).abs() < 1).all()


def test_lengths_are_proportional_where_they_can_be():
    assert segment_lengths(torch.tensor([6, 3, 1]), 20, 0).tolist() == [12, 6, 2]


@pytest.mark.parametrize(("k", "k_m"), [(9, 2), (0, 0)])
def test_a_bank_too_small_says_what_to_change(k, k_m):
    with pytest.raises(LongtailError, match="raise k to at least"):
        segment_lengths(COUNTS, k, k_m)


class Deques:
    """The plain definition of a class-wise queue."""

    def __init__(self, lengths):
        self.rings = [deque(maxlen=length) for length in lengths]

    def enqueue(self, features, labels, ids):
        for feature, label, row in zip(features.tolist(), labels.tolist(), ids.tolist(), strict=True):
            self.rings[label].append((row, feature))

    def contents(self):
        return [sorted(ring) for ring in self.rings]


def contents(bank):
    offsets = bank.segments.offsets.tolist()
    rows = list(zip(bank.ids.tolist(), bank.features.tolist(), bank.filled.tolist(), strict=True))
    return [sorted(row[:2] for row in rows[a:b] if row[2]) for a, b in pairwise(offsets)]


@settings(max_examples=25)
@given(data=st.data(), k_m=st.integers(0, 3), seed=st.integers(0, 2**16))
def test_rings_are_deques(data, k_m, seed):
    torch.manual_seed(seed)
    bank = Bank.ring(COUNTS, 16, k_m, dim=3)
    deques = Deques(bank.segments.offsets.diff().tolist())
    start = 0
    for size in data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=12)):
        labels = (
            torch.multinomial(COUNTS.double(), size, replacement=True) if size else torch.empty(0, dtype=torch.int64)
        )
        batch = torch.randn(size, 3), labels, torch.arange(start, start + size)
        bank.enqueue(*batch)
        deques.enqueue(*batch)
        start += size
        assert contents(bank) == deques.contents()
        assert bank.filled_counts().tolist() == [len(ring) for ring in deques.rings]
        assert bank.any_filled == any(deques.rings)
        assert bank.all_filled == all(len(ring) == ring.maxlen for ring in deques.rings)
        assert (bank.mask is None) == bank.all_filled


def test_of_too_many_the_last_stay():
    bank = Bank.ring(COUNTS, 10, 2, dim=1)
    bank.enqueue(torch.arange(7.0)[:, None], torch.full((7,), 4), torch.arange(7))
    assert contents(bank)[4] == [(5, [5.0]), (6, [6.0])]


def test_filled_is_not_read_from_ids():
    bank = Bank.ring(COUNTS, 10, 2, dim=1)
    bank.enqueue(torch.ones(1, 1), torch.tensor([0]), torch.tensor([-1]))
    assert bank.filled.sum() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restart_goes_on_as_if_nothing_had_happened(dtype):
    def batch():
        return torch.randn(9, 4), torch.randint(0, 5, (9,)), torch.randint(0, 100, (9,))

    torch.manual_seed(0)
    first, second = (Bank.ring(COUNTS, 20, 2, 4, dtype) for _ in range(2))
    for _ in range(7):
        first.enqueue(*batch())
    second.load_state_dict(first.state_dict())
    assert (second.any_filled, second.all_filled) == (first.any_filled, first.all_filled)
    for _ in range(7):
        step = batch()
        first.enqueue(*step)
        second.enqueue(*step)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_checkpoint_of_another_layout_is_refused():
    saved = Bank.ring(COUNTS, 20, 2, 4).state_dict()
    with pytest.raises(LongtailError, match="other class counts"):
        Bank.ring(COUNTS.flip(0), 20, 2, 4).load_state_dict(saved)


def test_a_full_bank_is_the_training_set_sorted_by_class():
    labels = torch.tensor([2, 0, 2, 1, 0, 4])
    features, ids = torch.randn(6, 3, dtype=torch.float16), torch.arange(6) + 10
    bank = Bank.full(features, labels, ids, num_classes=5)
    assert bank.ids.tolist() == [11, 14, 13, 10, 12, 15]
    assert bank.filled_counts().tolist() == [2, 1, 2, 0, 1]
    assert bank.segments.class_of_row.tolist() == [0, 0, 1, 2, 2, 4]
    assert torch.equal(bank.features, features[bank.ids - 10])
    assert bank.mask is None
    assert not any(value.numel() >= 6 * 3 for value in bank.state_dict().values())
    with pytest.raises(AssertionError):
        bank.enqueue(features, labels, ids)
