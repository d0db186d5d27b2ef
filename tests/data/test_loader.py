"""Which samples a loader yields, and that their pixels depend on seed, epoch, position and view alone."""

import numpy as np
import pytest
import torch

from longtail.data.batch_augment import VIEWS, normalise
from longtail.data.loader import MemoryLoader, Shard, pixel_tensor
from longtail.data.randomness import keys, uniforms
from longtail.data.table import ImageTable, PixelStore

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
N = 53


def table() -> ImageTable:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (N, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 5, N).astype(np.int32)
    return ImageTable(tuple("abcde"), labels, np.zeros(N, np.uint8), PixelStore(pixels, "noise"))


def shuffled(epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).permutation(N)[:50]


def memory_loader(shard: Shard, views=("weak", "autoaugment"), order=shuffled, **options) -> MemoryLoader:
    data = table()
    labels = torch.from_numpy(data.labels).long()
    return MemoryLoader(pixel_tensor(data), labels, order, shard, views=views, seed=3, mean=MEAN, std=STD, **options)


def joined(batches) -> tuple[torch.Tensor, ...]:
    batches = list(batches)
    views = (torch.cat([b.views[v] for b in batches]) for v in range(len(batches[0].views)))
    return *views, torch.cat([b.labels for b in batches]), torch.cat([b.ids for b in batches])


def assert_same(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("length", [0, 1, 5, 12, 50])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_ranks_share_every_batch(length, world, drop_last):
    shards = [Shard(12, rank, world, drop_last) for rank in range(world)]
    steps = shards[0].steps(length)
    assert steps == (length // 12 if drop_last else (length + 11) // 12)
    seen = []
    for step in range(steps):
        parts = [list(range(length)[shard.positions(length, step)]) for shard in shards]
        shares = shards[0].shares(length, step)
        assert max(shares) - min(shares) <= 1
        assert shares == tuple(len(part) for part in parts)
        seen += [position for part in parts for position in part]
    assert seen == list(range(min(length, steps * 12)))


def test_batch_is_what_it_says():
    loader = memory_loader(Shard(12, drop_last=False))
    data, order = table(), shuffled(2)
    assert (len(loader), loader.images_per_epoch, loader.shares(4)) == (5, 50, (2,))
    assert memory_loader(Shard(12)).images_per_epoch == 48
    for step, batch in enumerate(loader.epoch(2)):
        rows = order[step * 12 : (step + 1) * 12]
        assert batch.ids.tolist() == rows.tolist()
        assert batch.labels.tolist() == data.labels[rows].tolist()
        assert batch.labels.dtype == batch.ids.dtype == torch.int64
        images = pixel_tensor(data)[rows]
        for number, name in enumerate(("weak", "autoaugment")):
            key = keys(3, 2, torch.arange(step * 12, step * 12 + len(rows)), number)
            want = normalise(VIEWS[name](images, uniforms(key, VIEWS[name].draws)), MEAN, STD)
            assert torch.equal(batch.views[number], want)


def test_pixels_do_not_depend_on_ranks_batch_size_or_resumption():
    whole = joined(memory_loader(Shard(10)).epoch(1))
    assert_same(joined(memory_loader(Shard(25)).epoch(1)), whole)
    ranks = [list(memory_loader(Shard(10, rank, 3)).epoch(1)) for rank in range(3)]
    assert_same(joined(batch for step in zip(*ranks, strict=True) for batch in step), whole)
    resumed = joined(memory_loader(Shard(10)).epoch(1, start_step=3))
    assert_same(resumed, [part[30:] for part in whole])


def test_views_and_epochs_differ():
    loader = memory_loader(Shard(10), views=("weak", "weak"), order=lambda epoch: np.arange(50))
    first, second = joined(loader.epoch(0)), joined(loader.epoch(1))
    changed = [(first[0] != other).flatten(1).any(1).float().mean() for other in (first[1], second[0])]
    assert min(changed) > 0.9
    assert torch.equal(first[-1], second[-1])


def test_evaluation_sees_every_image_once_and_unchanged():
    rows = np.arange(7, 40)
    loader = memory_loader(Shard(8, drop_last=False), views=("none",), order=lambda epoch: rows, channels_last=True)
    images, _, ids = joined(loader.epoch(0))
    assert ids.tolist() == rows.tolist()
    torch.testing.assert_close(images, normalise(loader.pixels[7:40], MEAN, STD))
