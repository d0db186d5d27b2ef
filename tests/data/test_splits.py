import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail.data.splits import hold_out, leaking_groups
from longtail.data.table import ImageTable, PixelStore
from longtail.engine import stages
from longtail.recipe import Data


def table_of(labels, groups=None, contents=None) -> ImageTable:
    """Images of one pixel; equal content where `contents` says so."""
    contents = np.arange(len(labels)) if contents is None else np.asarray(contents)
    pixels = np.stack([contents % 256, contents // 256, contents * 0], axis=-1).astype(np.uint8)
    return ImageTable(
        tuple(f"c{c}" for c in range(max(labels) + 1)),
        np.array(labels, np.int32),
        np.zeros(len(labels), np.uint8),
        PixelStore(pixels.reshape(-1, 1, 1, 3), "x"),
        groups=None if groups is None else np.array(groups, np.int32),
    )


def contents(table, split):
    return sorted(table.images.content(i) for i in table.rows(split))


def test_every_class_gives_its_share():
    counts = np.array([100, 40, 12, 5, 4, 3, 2, 1])
    table, words = hold_out(table_of(np.repeat(np.arange(8), counts)), fraction=0.2)
    assert table.counts("test").tolist() == [20, 8, 2, 1, 1, 1, 1, 0]
    assert (table.counts() + table.counts("test") == counts).all()

    assert "test: 34 of 167 training images held out, 20 % of each class" in words
    assert "classes of 1 image: 1, stay in train and cannot be measured (c7)" in words
    assert "classes of 2 images: 1, give 1 to test (c6)" in words


def test_one_two_and_three_images():
    table = table_of(np.repeat(np.arange(3), [1, 2, 3]))
    for split in ("test", "val"):
        table, _ = hold_out(table, split)
    assert [table.counts(split).tolist() for split in ("train", "val", "test")] == [[1, 1, 1], [0, 0, 1], [0, 1, 1]]


@given(seed=st.integers(0, 1000), shuffle=st.randoms())
@settings(max_examples=30, deadline=None)
def test_content_decides_not_the_order_of_rows(seed, shuffle):
    table = table_of(np.arange(120) % 7, groups=np.arange(120) // 4)
    rows = list(range(120))
    shuffle.shuffle(rows)
    one, _ = hold_out(table, seed=seed)
    other, _ = hold_out(table.take(np.array(rows)), seed=seed)
    assert contents(one, "test") == contents(other, "test")


def test_seed_and_new_images():
    labels = np.zeros(300, int)
    one, other = (hold_out(table_of(labels), seed=seed)[0] for seed in (0, 1))
    assert contents(one, "test") != contents(other, "test")
    grown, _ = hold_out(table_of(np.zeros(330, int)), seed=0)
    stayed = set(contents(one, "test")) & set(contents(grown, "test"))
    assert len(stayed) >= 50, "thirty new images moved more than a few of the sixty"


@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    data=st.data(),
    fraction=st.floats(0.01, 0.9),
    grouped=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_nothing_leaks_and_no_class_loses_its_last_image(labels, data, fraction, grouped):
    draw = lambda high: data.draw(st.lists(st.integers(0, high), min_size=len(labels), max_size=len(labels)))  # noqa: E731
    before = table_of(labels, draw(12) if grouped else None, draw(40))
    table, _ = hold_out(before, "val", fraction)
    assert not set(contents(table, "train")) & set(contents(table, "val"))
    if table.groups is not None:
        assert not set(table.groups[table.rows("train")]) & set(table.groups[table.rows("val")])
    present = before.counts() > 0
    assert (table.counts()[present] > 0).all()
    assert (table.counts() + table.counts("val") == before.counts()).all()


def test_groups_that_share_an_image_are_one():
    # Cameras 0 and 1 saw the same picture (content 3), so all of theirs stays together.
    table, _ = hold_out(table_of([0] * 9, [0, 0, 1, 1, 2, 3, 4, 5, 6], [1, 3, 3, 2, 4, 5, 6, 7, 8]), fraction=0.3)
    sides = table.split[:4]
    assert len(set(sides.tolist())) == 1


def test_large_groups():
    one_group, words = hold_out(table_of([0] * 10 + [1] * 10, [0] * 10 + list(range(1, 11))))
    assert one_group.counts("test").tolist() == [0, 2]
    assert "classes of images that belong together: 1, stay in train (c0)" in words
    two_groups, _ = hold_out(table_of([0] * 10, [0] * 6 + [1] * 4))
    assert two_groups.counts("test").tolist() == [4], "neither fits into two images: the smaller one goes"


def test_other_splits_are_left_alone():
    table = table_of([0] * 10)
    table.split[:4] = 2
    divided, _ = hold_out(table, "val", 0.5)
    assert divided.rows("test").tolist() == [0, 1, 2, 3]
    assert len(divided.rows("val")) == 3
    assert (table.split[4:] == 0).all(), "the table itself was changed"


def test_a_class_of_one_image_repeated_stays_together():
    table, words = hold_out(table_of([0, 0, 0, 1, 1], contents=[5, 5, 5, 6, 7]))
    assert table.counts("test").tolist() == [0, 1]
    assert "belong together" in words


@pytest.mark.parametrize("empty", [[], [2]])
def test_empty_classes(empty):
    table = table_of([0, 2, 2, *empty])
    assert hold_out(table)[0].counts("test")[1] == 0


def test_a_split_that_was_brought_along_and_leaks_is_told_of():
    table = table_of([0, 1] * 5, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    table.split[:3] = 2
    assert leaking_groups(table) == {"groups": 1, "images": 2}
    said = []
    stages.ready(table, Data("mine"), said.append)
    assert said[0].startswith("groups on both sides of a split: 1, with 2 images")
    divided, _ = hold_out(table_of([0, 1] * 5, groups=[0, 0, 1, 1, 2, 2, 3, 3, 4, 4]))
    assert leaking_groups(divided) is None
    assert leaking_groups(table_of([0, 1])) is None
