"""Counters against direct counting, and the properties they are built for."""

import numpy as np
import pytest
import torch
from random_answers import count, random_answers

from longtail.errors import LongtailError
from longtail.measure.counters import BINS, Counters
from longtail.measure.groups import by_threshold


def test_counts_equal_direct_counting():
    scores, labels = random_answers()
    groups = by_threshold(np.array([500, 300, 200, 101, 100, 60, 40, 20, 19, 10, 5, 1]))
    table = count(scores, labels, groups=torch.from_numpy(groups.codes), confusion=True).per_class()
    probabilities = scores.double().softmax(1).numpy()
    answers, labels = scores.argmax(1).numpy(), labels.numpy()
    top5 = np.argsort(-probabilities, axis=1)[:, :5]
    confidence = probabilities.max(1)
    assert table.bins is not None
    assert table.confusion is not None
    assert table.to_group is not None
    for c in range(12):
        of_class, as_class = labels == c, answers == c
        assert table.n[c] == of_class.sum()
        assert table.correct[c] == (of_class & as_class).sum()
        assert table.correct5[c] == (top5[of_class] == c).sum()
        assert table.predicted[c] == as_class.sum()
        assert table.confidence[c] == pytest.approx(confidence[of_class].sum(), rel=1e-5)
        np.testing.assert_array_equal(table.confusion[c], np.bincount(answers[of_class], minlength=12))
        np.testing.assert_array_equal(table.to_group[c], np.bincount(groups.codes[answers[of_class]], minlength=3))
        for b in range(BINS):
            inside = as_class & (np.floor(confidence * BINS).astype(int) == b)
            expected = [inside.sum(), (inside & of_class).sum(), confidence[inside].sum()]
            np.testing.assert_allclose(table.bins[c, b], expected, rtol=1e-5)


def test_batches_order_and_merging_change_no_bit():
    scores, labels = random_answers()
    whole = count(scores, labels, batch=len(labels)).state
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    ranks = [count(scores[shuffled[r::3]], labels[shuffled[r::3]], batch=17 + r) for r in range(3)]
    assert torch.equal((ranks[0] + ranks[1] + ranks[2]).state, whole)


def test_update_never_reads_from_the_device():
    # A meta tensor has no values: anything that would wait for a GPU (item, nonzero, bincount) fails here.
    counters = Counters(10, groups=torch.zeros(10, dtype=torch.int64), confusion=True, device="meta")
    counters.update(torch.empty(4, 10, device="meta"), torch.empty(4, dtype=torch.int64, device="meta"))


def test_memory_is_linear_in_classes():
    assert Counters(8142, groups=torch.zeros(8142, dtype=torch.int64)).state.nbytes < 4 * 2**20
    with pytest.raises(AssertionError):
        Counters(8142, confusion=True)


def test_negative_labels_are_not_counted():
    scores, labels = random_answers()
    void = labels % 3 == 0
    masked = labels.where(~void, torch.full_like(labels, -1))
    assert torch.equal(count(scores, masked).state, count(scores[~void], labels[~void]).state)


def test_equal_scores_go_to_the_lower_index_for_every_rank():
    table = count(torch.zeros(8, 8), torch.arange(8)).per_class()
    np.testing.assert_array_equal(table.correct, [1, 0, 0, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(table.correct5, [1, 1, 1, 1, 1, 0, 0, 0])


def test_a_class_ruled_out_by_the_prior_is_never_answered_nor_in_the_top_five():
    scores, labels = random_answers(num_classes=8)
    scores[:, 2:] = -torch.inf
    table = count(scores, labels).per_class()
    assert table.predicted[2:].sum() == table.correct5[2:].sum() == 0
    np.testing.assert_array_equal(table.correct5[:2], table.n[:2])


def test_bfloat16_scores_are_counted_in_float32():
    scores, labels = random_answers()
    low = scores.bfloat16()
    assert torch.equal(count(low, labels).state, count(low.float(), labels).state)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scores_that_are_not_numbers_are_refused(value):
    scores, labels = random_answers()
    scores[5, 3] = value
    scores[9] = -torch.inf
    with pytest.raises(LongtailError, match="2 of 700 images are not numbers"):
        count(scores, labels).per_class()
