"""Summaries against scikit-learn and torchmetrics where the definitions agree, and by hand where they do not."""

import numpy as np
import pytest
import torch
from random_answers import count, random_answers
from sklearn import metrics as sk
from torchmetrics.functional import classification as tm

from longtail.measure import metrics
from longtail.measure.counters import Counters
from longtail.measure.groups import by_terciles, by_threshold
from longtail.measure.metrics import Spread, render, spread, summarise
from longtail.measure.per_class import PerClass

TRAIN_COUNTS = np.array([500, 300, 200, 101, 100, 60, 40, 20, 19, 10, 5, 1])


def table_of(n, correct, predicted=None):
    n, correct = np.array(n), np.array(correct)
    return PerClass(n, correct, correct, correct if predicted is None else np.array(predicted), np.zeros(len(n)))


@pytest.fixture
def all_present():
    scores, labels = random_answers()
    labels[-1] = 11
    return scores, labels


def test_agrees_with_scikit_learn_where_every_class_is_present(all_present):
    scores, labels = all_present
    table, answers = count(scores, labels).per_class(), scores.argmax(1)
    assert metrics.accuracy(table) == pytest.approx(sk.accuracy_score(labels, answers))
    assert metrics.balanced_accuracy(table) == pytest.approx(sk.balanced_accuracy_score(labels, answers))
    assert metrics.macro_f1(table) == pytest.approx(sk.f1_score(labels, answers, average="macro"))
    assert metrics.top5(table) == pytest.approx(sk.top_k_accuracy_score(labels, scores, k=5))


def test_agrees_with_torchmetrics_where_every_class_is_present(all_present):
    scores, labels = all_present
    table = count(scores, labels).per_class()
    multi = {"num_classes": 12}
    expected = {
        "accuracy": tm.multiclass_accuracy(scores, labels, average="micro", **multi),
        "balanced_accuracy": tm.multiclass_accuracy(scores, labels, average="macro", **multi),
        "macro_f1": tm.multiclass_f1_score(scores, labels, average="macro", **multi),
        "top5": tm.multiclass_accuracy(scores, labels, average="micro", top_k=5, **multi),
        "ece": tm.multiclass_calibration_error(scores, labels, n_bins=15, **multi),
    }
    summary = summarise(table, TRAIN_COUNTS)
    assert {name: summary[name] for name in expected} == pytest.approx(
        {k: v.item() for k, v in expected.items()}, rel=1e-5
    )


def test_differs_from_both_where_an_absent_class_is_answered():
    labels, answers = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 2, 1, 1])
    table = count(torch.eye(3)[answers], labels).per_class()
    assert metrics.balanced_accuracy(table) == pytest.approx((2 / 3 + 1) / 2)
    assert tm.multiclass_accuracy(answers, labels, num_classes=3, average="macro").item() == pytest.approx(
        (2 / 3 + 1) / 3
    )
    with pytest.warns(UserWarning, match="y_pred contains classes not in y_true"):
        assert metrics.balanced_accuracy(table) == pytest.approx(sk.balanced_accuracy_score(labels, answers))
    assert metrics.macro_f1(table) == pytest.approx(sk.f1_score(labels, answers, labels=[0, 1], average="macro"))
    assert sk.f1_score(labels, answers, average="macro") == pytest.approx(2 / 3 * metrics.macro_f1(table))


def test_not_measured_is_none_never_zero():
    nothing = summarise(Counters(12).per_class(), TRAIN_COUNTS)
    assert {name for name, value in nothing.items() if value is not None} == {"images", "classes_measured"}
    only_head = table_of([10] * 4 + [0] * 8, [7] * 4 + [0] * 8, [9] * 12)
    summary = summarise(only_head, TRAIN_COUNTS)
    assert (summary["many"], summary["medium"], summary["few"]) == (pytest.approx(0.7), None, None)
    assert summary["worst_class"] == pytest.approx(0.7)
    assert summary["classes_measured"] == 4
    assert metrics.top5(table_of([9] * 5, [3] * 5)) is None  # five classes: always among the top five


def test_means_by_hand():
    r = np.array([1.0, 0.5, 0.25, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    n = np.array([4, 4, 4, 2, 4, 4, 4, 4, 4, 4, 0])
    table = table_of(n, n * r)
    assert metrics.worst_decile(table) == pytest.approx(0.25)  # ten measured classes: the lowest one
    assert metrics.harmonic_mean(table) == pytest.approx(10 / (1 * 7 + 2 * 2 + 4))
    assert metrics.geometric_mean(table) == pytest.approx(0.5 ** (4 / 10))
    assert metrics.worst_decile(table_of(np.full(11, 2), [0, 1] + [2] * 9)) == pytest.approx(0.25)  # rounded up: two
    zero = table_of([3, 3], [0, 3])
    assert metrics.harmonic_mean(zero) == metrics.geometric_mean(zero) == metrics.worst_class(zero) == 0


def test_accuracy_under_another_class_mix():
    table = table_of([10, 10, 0], [9, 4, 0])
    assert metrics.expected_accuracy(table, np.array([0.75, 0.25, 0])) == pytest.approx(0.75 * 0.9 + 0.25 * 0.4)
    assert metrics.expected_accuracy(table, np.array([0.5, 0.25, 0.25])) is None
    n = np.array([30, 5, 15])
    table = table_of(n, [21, 2, 9])
    assert metrics.expected_accuracy(table, n / n.sum()) == pytest.approx(metrics.accuracy(table))
    assert metrics.expected_accuracy(table, np.ones(3) / 3) == pytest.approx(metrics.balanced_accuracy(table))


def test_a_calibrated_model_has_no_calibration_error_in_any_group():
    # Labels are drawn from the model's own probabilities, rare classes rarely: it is calibrated by construction.
    generator = torch.Generator().manual_seed(0)
    scores = 2 * torch.randn(60_000, 12, generator=generator) + torch.linspace(3, -1, 12)
    labels = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    table = count(scores, labels, batch=10_000).per_class()
    summary = summarise(table, TRAIN_COUNTS)
    errors = [summary[name] for name in ("ece", "ece_many", "ece_medium", "ece_few")]
    assert max(e for e in errors if e is not None) < 0.03
    assert None not in errors
    # Grouped by true class the same model would look wrong: too modest on the head, too bold on the tail.
    head, tail = table.n > 5000, table.n < 1000
    assert table.correct[head].sum() > 1.05 * table.confidence[head].sum()
    assert table.correct[tail].sum() < 0.9 * table.confidence[tail].sum()


def test_group_errors_add_up_to_no_less_than_the_overall_one(all_present):
    table = count(*all_present).per_class()
    groups = by_threshold(TRAIN_COUNTS)
    parts = [metrics.reliability(table, groups.codes == code) for code in range(3)]
    np.testing.assert_allclose(sum(parts), metrics.reliability(table))


def test_where_answers_go():
    labels = torch.tensor([0, 0, 0, 0, 2, 2, 3, 3, 3])
    answers = torch.tensor([0, 0, 1, 3, 2, 0, 3, 2, 0])
    groups = by_threshold(np.array([500, 400, 50, 3]))
    counters = Counters(4, groups=torch.from_numpy(groups.codes))
    counters.update(torch.eye(4)[answers], labels)
    shares = metrics.where_answers_go(counters.per_class(), groups)
    expected = [[2 / 4, 1 / 4, 0, 1 / 4], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]]
    np.testing.assert_allclose(shares, expected)


def test_benchmark_thresholds_are_exclusive_at_100_and_inclusive_at_20():
    assert by_threshold(np.array([101, 100, 20, 19])).codes.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("counts", "codes"),
    [
        ([9, 8, 7, 6, 5, 4, 3, 2, 1], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
        ([500] * 5 + [5] * 5, [0] * 5 + [2] * 5),  # two sizes: a head and a tail
        ([50] * 7, [1] * 7),  # balanced: neither
        ([1, 1000, 10], [2, 0, 1]),
        ([3000], [1]),
    ],
)
def test_terciles_keep_equal_counts_together(counts, codes):
    groups = by_terciles(np.array(counts))
    assert groups.codes.tolist() == codes
    assert "none" in groups.bounds or len(set(codes)) == 3


def test_spread_over_seeds():
    runs = [{"accuracy": 0.5, "few": 0.2}, {"accuracy": 0.6, "few": None}]
    assert spread(runs) == {"accuracy": Spread(pytest.approx(0.55), pytest.approx(0.1 / 2**0.5)), "few": None}
    assert spread(runs[:1])["accuracy"] == Spread(0.5, None)


def test_table_marks_single_seeds_and_dashes_what_was_not_measured():
    columns = {"accuracy": "accuracy", "few": "few"}
    text = render(
        {"plain": {"accuracy": Spread(0.4561, 0.0032), "few": None}, "gml": {"accuracy": Spread(0.5, None)}}, columns
    )
    assert text.splitlines() == [
        "         accuracy  few",
        "plain  45.6 ± 0.3    -",
        "gml         50.0*    -",
        "* one seed",
    ]
