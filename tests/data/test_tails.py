from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longtail.data import tails
from longtail.data.table import ImageTable, PixelStore
from longtail.errors import LongtailError


def balanced(per_class: int, num_classes: int, test: int = 2) -> ImageTable:
    labels = np.tile(np.arange(num_classes, dtype=np.int32), per_class + test)
    split = np.where(np.arange(len(labels)) < per_class * num_classes, 0, 2).astype(np.uint8)
    pixels = np.zeros((len(labels), 1, 1, 3), np.uint8)
    return ImageTable(tuple(f"c{c}" for c in range(num_classes)), labels, split, PixelStore(pixels, "x"))


@pytest.mark.parametrize(
    ("num_classes", "factor", "images", "groups"),
    [
        (100, 100, 10_847, (35, 35, 30)),
        (100, 50, 12_608, (41, 41, 18)),
        (100, 10, 19_573, (69, 31, 0)),
        (10, 100, 12_406, (8, 2, 0)),
        (10, 50, 13_996, (9, 1, 0)),
        (10, 10, 20_431, (10, 0, 0)),
    ],
)
def test_exponential_profile_has_the_published_sizes(num_classes, factor, images, groups):
    counts = tails.exponential(50_000 // num_classes, num_classes, factor)
    assert counts.sum() == images
    assert ((counts > 100).sum(), ((counts >= 20) & (counts <= 100)).sum(), (counts < 20).sum()) == groups


@pytest.mark.parametrize(
    ("factor", "digest"),
    [
        (100, "e0d58a4d2700c46062da852554e5d185bbee74d3c612b052ea2a839bdadf939e"),
        (50, "561fa940cc7d3551d441643e310c7e439bf84f86b7863a3f7364963522d2984a"),
        (10, "b4fbf1bf0a7f33381467493f50b953ce21b03a2b6d45b0d5e8da5d95d9ffd736"),
    ],
)
def test_published_cifar100_subset(shared_data, factor, digest):
    import pyarrow.parquet as pq

    file = shared_data / "cifar100" / "train-00000-of-00001.parquet"
    labels = pq.read_table(file, columns=["fine_label"])["fine_label"].to_numpy()
    kept = tails.subset(labels, tails.exponential(500, 100, factor))
    assert sha256(kept.astype("<i8").tobytes()).hexdigest() == digest


@given(
    profile=st.sampled_from(sorted(tails.PROFILES)),
    largest=st.integers(1, 3000),
    num_classes=st.integers(2, 400),
    imbalance=st.floats(1, 1000),
)
def test_profiles_fall_from_the_largest_to_the_smallest(profile, largest, num_classes, imbalance):
    counts = tails.PROFILES[profile](largest, num_classes, imbalance)
    assert counts.shape == (num_classes,)
    assert counts[0] == largest
    assert (np.diff(counts) <= 0).all()
    assert abs(counts[-1] - largest / imbalance) <= 1


def test_pareto_is_near_imagenet_lt():
    counts = tails.pareto(1280, 1000, 256)
    assert (counts.max(), counts.min()) == (1280, 5)
    assert abs(counts.sum() / 115_846 - 1) < 0.05
    assert np.abs([(counts > 100).mean() - 0.385, (counts < 20).mean() - 0.136]).max() < 0.02


def test_subset_is_a_pure_function_of_its_seed():
    labels = np.arange(1000) % 10
    counts = tails.exponential(100, 10, 20)
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = tails.subset(labels, counts)
    assert (first == tails.subset(labels, counts)).all()
    assert (np.random.get_state()[1] == state).all(), "the global generator was touched"  # noqa: NPY002
    assert (first != tails.subset(labels, counts, seed=1)).any()
    assert (np.bincount(labels[first]) == counts).all()
    assert len(set(first)) == len(first)


def test_cut_touches_the_training_split_alone():
    table = balanced(per_class=50, num_classes=4)
    tail = tails.cut(table, imbalance=10)
    assert tail.counts().tolist() == [50, 23, 10, 5]
    assert tail.counts("test").tolist() == table.counts("test").tolist() == [2, 2, 2, 2]
    assert tails.cut(table, imbalance=1).counts().tolist() == [50] * 4
    assert tails.cut(table, imbalance=5, profile="step").counts().tolist() == [50, 50, 10, 10]


@pytest.mark.parametrize(
    ("imbalance", "profile", "says"),
    [(51, "exp", "50 is the most"), (0.5, "exp", "1 or more"), (2, "x", "exp, step, pareto")],
)
def test_impossible_tails_are_refused(imbalance, profile, says):
    with pytest.raises(LongtailError, match=says):
        tails.cut(balanced(per_class=50, num_classes=4), imbalance, profile)
