"""The same pixels, whoever reads them: workers, ranks, resumption."""

import numpy as np
import pytest
import torch
from scenes import write_pairs

from longtail.data.loader import Shard
from longtail.segmentation import sources
from longtail.segmentation.augment import Crops, Whole
from longtail.segmentation.loader import IGNORE, IMAGENET_MEAN, IMAGENET_STD, PixelLoader, endless


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return sources.load(write_pairs(tmp_path_factory.mktemp("scenes"), 7, 3))


def loader(table, shard=None, **options) -> PixelLoader:
    order = endless(table.rows("train"), 12, seed=5)
    return PixelLoader(table, order, shard or Shard(4), Crops((32, 40), (0.5, 2.0), None), seed=5, **options)


def joined(batches):
    batches = list(batches)
    return tuple(torch.cat(part) for part in zip(*((b.views[0], b.labels, b.ids) for b in batches)))  # noqa: B905


def test_a_batch(table):
    batch = next(loader(table, views=2).epoch(0))
    assert batch.views[0] is batch.views[1]  # a teacher sees what its student sees
    assert batch.views[0].shape == (4, 3, 32, 40)
    assert batch.labels.shape == (4, 32, 40)
    assert batch.labels.dtype == torch.int64
    assert set(batch.labels.unique().tolist()) <= {IGNORE, 0, 1, 2, 3}


def test_pixels_depend_on_seed_epoch_and_place_alone(table):
    whole = joined(loader(table).epoch(1))
    for other in (
        joined(loader(table, workers=2).epoch(1)),
        joined([*list(loader(table).epoch(1))[:1], *loader(table).epoch(1, start_step=1)]),
    ):
        assert all(torch.equal(a, b) for a, b in zip(whole, other, strict=True))
    ranks = [list(loader(table, Shard(4, rank, 2)).epoch(1)) for rank in range(2)]
    shared = joined([batch for step in zip(*ranks, strict=True) for batch in step])
    assert all(torch.equal(a, b) for a, b in zip(whole, shared, strict=True))
    assert not torch.equal(whole[0], joined(loader(table).epoch(2))[0])


def test_reading_leaves_the_generator_alone(table):
    before = torch.get_rng_state()
    list(loader(table).epoch(0))
    assert torch.equal(before, torch.get_rng_state())


def test_endless_goes_pass_after_pass():
    rows = np.array([3, 5, 8, 13, 21])
    order = endless(rows, 7, seed=0)
    stream = np.concatenate([order(epoch) for epoch in range(5)])
    assert all(sorted(stream[i : i + 5]) == rows.tolist() for i in range(0, 35, 5))
    assert len({tuple(stream[i : i + 5]) for i in range(0, 35, 5)}) > 1


def test_outside_is_zero_and_not_labelled(table):
    small = PixelLoader(table, endless(table.rows("train"), 4, 0), Shard(4), Crops((64, 80), (0.5, 0.5), None))
    batch = next(small.epoch(0))
    outside = torch.ones(64, 80, dtype=torch.bool)
    outside[:24, :32] = False
    assert (batch.views[0].permute(0, 2, 3, 1)[:, outside] == 0).all()
    assert (batch.labels[:, outside] == IGNORE).all()


def test_whole_images(table):
    rows = table.rows("test")
    plain = PixelLoader(table, lambda epoch: rows, Shard(1, drop_last=False), Whole(None))
    for row, batch in zip(rows, plain.epoch(0), strict=True):
        image, mask = table.pair(int(row))
        back = batch.views[0][0].permute(1, 2, 0) * torch.tensor(IMAGENET_STD) + torch.tensor(IMAGENET_MEAN)
        assert torch.equal((back * 255).round().to(torch.uint8), torch.from_numpy(image))
        assert np.array_equal(batch.labels[0], np.where(mask == 255, IGNORE, mask.astype(np.int64)))
    ranks = [PixelLoader(table, lambda epoch: rows, Shard(2, r, 2, drop_last=False), Whole(24)) for r in range(2)]
    batches = [list(ranked.epoch(0)) for ranked in ranks]
    assert sorted(int(b.ids) for part in batches for b in part) == rows.tolist()
    assert batches[0][0].views[0].shape[2:] == (24, 32)  # the image is scaled, its mask is not
    assert batches[0][0].labels.shape[1:] == (48, 64)
