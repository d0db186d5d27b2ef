"""The EM estimate against its own theory and a model whose Bayes rule is known; the resampled tests by counting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from random_answers import gaussians

from longtail.errors import LongtailError
from longtail.measure.priors import (
    SHIFTS,
    answers,
    estimate_prior,
    render_shifts,
    resample,
    shifted_prior,
    under_shifts,
    under_strengths,
)


def interval_of(estimate):
    assert estimate.interval is not None
    return estimate.interval


@given(arrays(np.float64, (12, 4), elements=st.floats(-30, 30)))
@settings(deadline=None, max_examples=60)
def test_em_never_falls_and_ends_at_the_maximum(loglik):
    estimate = estimate_prior(loglik, replicates=0)
    assert np.all(np.diff(estimate.loglik) > -1e-12)
    assert estimate.prior.sum() == pytest.approx(1)
    best = 12 * estimate.loglik[-1] + 0.1
    assert estimate.gap < 0.1
    random = np.random.default_rng(0)
    rivals = np.concatenate([random.dirichlet(np.full(4, a), 50) for a in (0.1, 1.0)] + [np.eye(4)])
    likelihood = np.logaddexp.reduce(loglik[None] + np.log(rivals + 1e-300)[:, None], axis=2).sum(1)
    assert likelihood.max() <= best + 1e-9


def test_a_constant_of_the_image_changes_nothing():
    loglik = gaussians(np.arange(300) % 7, 7)
    shifted = loglik + np.linspace(-500, 500, 300)[:, None]
    np.testing.assert_allclose(
        estimate_prior(loglik, replicates=0).prior, estimate_prior(shifted, replicates=0).prior, atol=1e-9
    )


@pytest.mark.parametrize("ratio", [50.0, 1 / 50])
def test_recovers_the_class_mix_within_its_interval(ratio):
    true = shifted_prior(np.arange(20, 0, -1), ratio)
    labels = np.random.default_rng(1).choice(20, size=3000, p=true)
    estimate = estimate_prior(gaussians(labels, 20), replicates=60)
    assert np.abs(estimate.prior - true).sum() / 2 < 0.05
    low, high = interval_of(estimate)
    assert np.all((low <= estimate.prior) & (estimate.prior <= high))
    inside = (low <= true) & (true <= high)
    assert inside.mean() >= 0.8


def test_classes_that_cannot_occur_are_exactly_zero_and_never_answered():
    labels = np.arange(400) % 4  # of eight classes
    loglik = gaussians(labels, 8)
    possible = np.arange(8) < 4
    estimate = estimate_prior(loglik, possible, replicates=10)
    assert np.all(estimate.prior[4:] == 0)
    assert np.all(interval_of(estimate)[:, 4:] == 0)
    assert answers(loglik, estimate.prior).max() < 4


def test_a_class_without_images_is_found_to_be_rare_without_being_told():
    loglik = gaussians(np.arange(2000) % 5, 6)
    estimate = estimate_prior(loglik, replicates=40)
    assert estimate.prior[5] < 0.005
    low, high = interval_of(estimate)[:, 5]
    assert low < 0.001
    assert high < 0.02


def test_same_seed_same_interval():
    loglik = gaussians(np.arange(200) % 5, 5)
    first, again, other = (interval_of(estimate_prior(loglik, replicates=20, seed=seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("loglik", "possible", "message"),
    [
        (np.zeros((0, 3)), None, "no images"),
        (np.zeros((5, 3)), np.zeros(3, dtype=bool), "every class is ruled out"),
        (np.full((5, 3), np.nan), None, "5 of 5 images"),
    ],
)
def test_bad_input(loglik, possible, message):
    with pytest.raises(LongtailError, match=message):
        estimate_prior(loglik, possible)


def test_resampled_tests_have_the_wanted_mix():
    train_counts = np.random.default_rng(0).permutation(np.arange(100, 600, 5))
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(100), 100))
    forward = resample(labels, shifted_prior(train_counts, 50))
    counts = np.bincount(labels[forward], minlength=100)[np.argsort(-train_counts)]
    assert counts.tolist() == [int(100 * 50 ** (-rank / 99) + 1e-9) for rank in range(100)]
    assert len(np.unique(forward)) == len(forward)
    backward = resample(labels, shifted_prior(train_counts, 1 / 50))
    assert np.bincount(labels[backward], minlength=100)[np.argsort(train_counts)].tolist() == counts.tolist()
    assert np.array_equal(resample(labels, shifted_prior(train_counts, 1)), np.arange(10_000))


def test_resampling_is_deterministic_and_nested():
    labels = np.repeat(np.arange(10), 30)
    train_counts = np.arange(10, 0, -1)
    mild, strong = (resample(labels, shifted_prior(train_counts, ratio)) for ratio in (2, 10))
    assert np.array_equal(mild, resample(labels, shifted_prior(train_counts, 2)))
    assert not np.array_equal(mild, resample(labels, shifted_prior(train_counts, 2), seed=1))
    assert set(strong) < set(mild)


def test_resampling_an_unbalanced_test_and_ruling_a_class_out():
    labels = np.repeat(np.arange(4), [40, 10, 5, 0])
    kept = resample(labels, np.array([0.5, 0.5, 0, 0]))
    assert np.bincount(labels[kept], minlength=4).tolist() == [10, 10, 0, 0]
    with pytest.raises(LongtailError, match="no image of class 3"):
        resample(labels, np.full(4, 0.25))


def test_knowing_or_estimating_the_mix_gains_what_theory_says():
    labels = np.repeat(np.arange(20), 200)
    rows = under_shifts(gaussians(labels, 20, spread=0.8), labels, np.arange(20, 0, -1))
    table = {row.name: row for row in rows}
    assert list(table) == list(SHIFTS)
    for row in rows:
        assert row.true >= row.uniform - 0.005  # Bayes: the true prior is best, up to the sample
        assert abs(row.estimated - row.true) < 0.02
        assert row.distance < 0.15
    for strong in ("forward 50", "backward 50"):
        assert table[strong].true > table[strong].uniform + 0.03
    assert table["uniform"].true == table["uniform"].uniform
    assert table["forward 50"].train > table["forward 50"].uniform
    assert table["backward 50"].train < table["backward 50"].uniform - 0.03  # the wrong prior costs
    assert len({len(line) for line in render_shifts(rows).splitlines()}) == 1


def test_several_resamples_are_averaged():
    labels = np.repeat(np.arange(10), 60)
    loglik, counts = gaussians(labels, 10, spread=0.8), np.arange(10, 0, -1)
    alone = [under_shifts(loglik, labels, counts, {"forward 10": 10.0}, seeds=(seed,))[0] for seed in (0, 1)]
    (both,) = under_shifts(loglik, labels, counts, {"forward 10": 10.0}, seeds=(0, 1))
    assert alone[0].uniform != alone[1].uniform
    for name in ("train", "uniform", "true", "estimated", "distance"):
        assert getattr(both, name) == pytest.approx(np.mean([getattr(row, name) for row in alone]))


def test_strength_of_the_prior_trades_tail_for_head():
    train_counts = np.repeat([1000, 50, 5], 4)
    labels = np.repeat(np.arange(12), 50)
    loglik = gaussians(labels, 12, spread=0.7)
    rows = under_strengths(loglik, labels, train_counts, (0.0, 0.5, 1.0, 2.0))
    assert [strength for strength, _ in rows] == [0.0, 0.5, 1.0, 2.0]
    many, few = ([summary[name] for _, summary in rows] for name in ("many", "few"))
    assert many == sorted(many)
    assert few == sorted(few, reverse=True)
    assert rows[0][1]["accuracy"] == pytest.approx((loglik.argmax(1) == labels).mean())
    assert rows[2][1]["accuracy"] == pytest.approx(
        (answers(loglik, train_counts / train_counts.sum()) == labels).mean()
    )
