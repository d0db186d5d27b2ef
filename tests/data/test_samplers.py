import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data.loader import Shard
from longtail.data.samplers import SAMPLERS, class_shares, order
from longtail.errors import LongtailError

COUNTS = np.array([60, 0, 25, 10, 4, 1])
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(6), COUNTS)).astype(np.int32)


def drawn(kind, epoch, **options):
    return order(kind, LABELS, 6, seed=3, epoch=epoch, **options)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_pure_function_of_seed_and_epoch(kind):
    first = drawn(kind, epoch=1, epochs=5)
    assert first.dtype == np.int64
    assert (first == drawn(kind, epoch=1, epochs=5)).all()
    other_epoch, other_seed = drawn(kind, epoch=2, epochs=5), order(kind, LABELS, 6, 4, 1, epochs=5)
    for other in (other_epoch, other_seed):
        assert len(other) != len(first) or (other != first).any()


@pytest.mark.parametrize("kind", [k for k in SAMPLERS if k != "k-per-class"])
def test_classes_get_their_share_and_images_take_turns(kind):
    """Every epoch to within one image; and over epochs the mean is the share itself."""
    epochs, total = 60, np.zeros(6)
    for epoch in range(epochs):
        at = 0 if kind == "progressive" else epoch  # its share moves with the epoch; here the share is held
        rows = order(kind, LABELS, 6, seed=epoch, epoch=at, epochs=epochs)
        expected = class_shares(kind, COUNTS, at, epochs) * len(rows)
        got = np.bincount(LABELS[rows], minlength=6)
        assert (np.abs(got - expected) < 1).all()
        total += got - expected
        times = np.bincount(rows, minlength=len(LABELS))
        for c in np.flatnonzero(COUNTS):
            assert np.ptp(times[c == LABELS]) <= 1
    assert np.abs(total / epochs).max() < 0.25


def test_shares_are_what_the_kinds_promise():
    n, present = COUNTS / COUNTS.sum(), COUNTS > 0
    uniform = present / 5
    assert class_shares("instance", COUNTS) == pytest.approx(n)
    assert class_shares("class-balanced", COUNTS) == pytest.approx(uniform)
    assert class_shares("k-per-class", COUNTS) == pytest.approx(uniform)
    assert class_shares("square-root", COUNTS) == pytest.approx(np.sqrt(COUNTS) / np.sqrt(COUNTS).sum())
    assert class_shares("reversed", COUNTS)[0] * 60 == pytest.approx(class_shares("reversed", COUNTS)[5])
    assert class_shares("progressive", COUNTS, 0, 11) == pytest.approx(n)
    assert class_shares("progressive", COUNTS, 5, 11) == pytest.approx((n + uniform) / 2)
    assert class_shares("progressive", COUNTS, 10, 11) == pytest.approx(uniform)
    # p = .6 .25 .1 .04 .01 against an equal share of .2: the last three are repeated sqrt(.2 / p) times.
    repeated = class_shares("repeat-factor", COUNTS) / n.clip(1e-9)
    assert repeated / repeated[0] == pytest.approx([1, 0, 1, 2**0.5, 5**0.5, 20**0.5])
    for kind in SAMPLERS:
        assert class_shares(kind, COUNTS, 3, 7).sum() == pytest.approx(1)


def test_instance_sees_every_image_once():
    assert sorted(drawn("instance", epoch=0)) == list(range(100))


def test_repeat_factor_never_drops_an_image():
    rows = drawn("repeat-factor", epoch=0)
    assert set(rows) == set(range(100))
    assert len(rows) == round(60 + 25 + 10 * 2**0.5 + 4 * 5**0.5 + 20**0.5)


def test_k_per_class_comes_in_blocks():
    rows = drawn("k-per-class", epoch=0, per_class=3).reshape(-1, 3)
    assert len(rows) == 33
    classes = LABELS[rows]
    assert (classes == classes[:, :1]).all()
    for cycle in np.split(classes[:30, 0], 6):
        assert sorted(cycle) == [0, 2, 3, 4, 5], "a class came again before all had come"
    for block, c in zip(rows, classes[:, 0], strict=True):
        assert len(set(block)) == min(3, COUNTS[c])
    head = rows[classes[:, 0] == 0].ravel()
    assert len(set(head)) == len(head)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_ranks_together_see_exactly_the_global_batches(kind, world):
    rows = drawn(kind, epoch=0, epochs=3)
    shards = [Shard(16, rank, world, drop_last=False) for rank in range(world)]
    assert len(rows) % 16, "the last batch is to be a part of one"
    for step in range(shards[0].steps(len(rows))):
        # A resumed run, or another rank, computes the list anew.
        parts = [drawn(kind, epoch=0, epochs=3)[shard.positions(len(rows), step)] for shard in shards]
        assert np.ptp([len(part) for part in parts]) <= 1
        assert (np.concatenate(parts) == rows[step * 16 : (step + 1) * 16]).all()


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    kind=st.sampled_from(SAMPLERS),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 9),
)
@settings(max_examples=150, deadline=None)
def test_any_class_sizes(counts, kind, seed, epoch):
    labels = np.repeat(np.arange(len(counts)), counts)
    rows = order(kind, labels, len(counts), seed, epoch, epochs=10, per_class=2)
    assert len(rows) == (len(labels) // 2 * 2 if kind == "k-per-class" else max(len(rows), len(labels)))
    if kind not in ("repeat-factor", "k-per-class"):
        assert len(rows) == len(labels)
    assert len(rows) == 0 or (rows.min() >= 0 and rows.max() < len(labels))


def test_unknown_sampler_is_answered_with_the_list():
    with pytest.raises(LongtailError, match="square-root"):
        drawn("balanced", epoch=0)
