"""Which samples a loader yields, and that their pixels depend on seed, epoch, position and view alone."""

import pickle

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.transforms.v2 import functional

from longtail.data.augment import ImageFormat, centred
from longtail.data.batch_augment import VIEWS, normalise
from longtail.data.batch_crop import crop_boxes
from longtail.data.decode import BadImage
from longtail.data.disk_loader import DiskLoader
from longtail.data.loader import MemoryLoader, Shard, pixel_tensor
from longtail.data.randomness import keys, uniforms
from longtail.data.table import ImageTable, PixelStore
from longtail.errors import LongtailError

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


class Encoded:
    """A store of photographs of several sizes, some of them broken."""

    def __init__(self, n: int, broken=()):
        self.images = [_photograph(i) for i in range(n)]
        self.broken = set(broken)

    def __len__(self) -> int:
        return len(self.images)

    def name(self, i: int) -> str:
        return f"photo{i}.jpg"

    def content(self, i: int) -> bytes:
        return self.images[i].tobytes()

    def take(self, rows):
        raise NotImplementedError

    def decode(self, i: int) -> np.ndarray:
        if i in self.broken:
            raise BadImage(f"{self.name(i)} cannot be decoded.")
        return self.images[i]


def _photograph(i: int) -> np.ndarray:
    rng = np.random.default_rng(i)
    coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.array(Image.fromarray(coarse).resize((60 + 7 * (i % 5), 50 + 11 * (i % 4)), Image.Resampling.BICUBIC))


FORMAT = ImageFormat(32, MEAN, STD, "bicubic", 0.875)


def disk_loader(shard: Shard, views=("sim", "none", "crop"), *, n=30, broken=(), workers=0, **options) -> DiskLoader:
    labels = (np.arange(n) % 3).astype(np.int32)
    data = ImageTable(tuple("abc"), labels, np.zeros(n, np.uint8), Encoded(n, broken))
    order = options.pop("order", lambda epoch: np.random.default_rng(epoch).permutation(n))
    return DiskLoader(data, order, shard, views=views, seed=3, format=FORMAT, workers=workers, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_no_bit(workers):
    alone = disk_loader(Shard(8, drop_last=False))
    loader = disk_loader(Shard(8, drop_last=False), workers=workers)
    assert len(loader) == len(alone) == 4
    next(iter(loader.epoch(5)))  # abandoned, as a preflight does
    for epoch in (0, 1):
        assert_same(joined(loader.epoch(epoch)), joined(alone.epoch(epoch)))
    assert_same(joined(loader.epoch(1, start_step=2)), [part[16:] for part in joined(alone.epoch(1))])
    ranks = [list(disk_loader(Shard(8, rank, 3, drop_last=False)).epoch(1)) for rank in range(3)]
    assert_same(joined(batch for step in zip(*ranks, strict=True) for batch in step), joined(alone.epoch(1)))


def test_loader_leaves_everybodys_random_numbers_alone():
    loader, before = disk_loader(Shard(10)), torch.get_rng_state()
    list(loader.epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_worker_can_be_sent_to_a_fresh_process():
    decoder = disk_loader(Shard(10), views=sorted(VIEWS)).decoded.dataset
    assert pickle.loads(pickle.dumps(decoder)).views == decoder.views


@pytest.mark.parametrize("loader", [memory_loader, disk_loader])
def test_rank_without_images_gets_an_empty_batch(loader):
    (batch,) = loader(Shard(30, 1, 2, drop_last=False), order=lambda epoch: np.array([7])).epoch(0)
    (other,) = loader(Shard(30, 0, 2, drop_last=False), order=lambda epoch: np.array([7])).epoch(0)
    assert sorted([len(batch.labels), len(other.labels)]) == [0, 1]
    assert all(view.shape[0] == len(batch.labels) for view in batch.views)


def test_where_the_views_are_finished_changes_no_bit():
    loader, other = disk_loader(Shard(10)), disk_loader(Shard(10))
    other.augment_here, other.decoded.dataset.augment = True, False
    assert_same(joined(other.epoch(0)), joined(loader.epoch(0)))


def test_files_and_memory_give_the_same_batches():
    data = table()
    format = ImageFormat(16, MEAN, STD, crop_pct=1.0)
    views = ("weak", "autoaugment", "none")
    disk = DiskLoader(data, shuffled, Shard(12), views=views, seed=3, format=format, workers=0)
    assert_same(joined(disk.epoch(1)), joined(memory_loader(Shard(12), views).epoch(1)))


def test_crops_are_those_of_the_numbers():
    loader = disk_loader(Shard(5), views=("crop",), order=lambda epoch: np.arange(30))
    batch = next(iter(loader.epoch(0)))
    u = uniforms(keys(3, 0, torch.arange(5), 0), VIEWS["crop"].draws)
    for i in range(5):
        image = _photograph(i)
        top, left, height, width = crop_boxes(u[i : i + 1, :22], *image.shape[:2], (0.08, 1.0))[0].tolist()
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        want = functional.resized_crop(tensor, top, left, height, width, [32, 32])[None]
        want = want.flip(3) if u[i, 22] < 0.5 else want
        assert torch.equal(batch.views[0][i : i + 1], normalise(want, MEAN, STD))


@pytest.mark.parametrize("model", ["resnet50.a1_in1k", "vit_base_patch16_224.augreg_in21k"])
def test_evaluation_is_timms(model):
    config = timm.get_pretrained_cfg(model).to_dict()
    format = ImageFormat.of_timm(config)
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, pretrained_cfg=config))
    for i in range(6):
        image = Image.fromarray(_photograph(i)).resize((301 + 40 * i, 420 - 50 * i))
        ours = normalise(centred(np.array(image), format)[None], format.mean, format.std)
        torch.testing.assert_close(ours[0], transform(image))


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_image_stops_with_its_name(workers):
    loader = disk_loader(Shard(10), broken={7}, workers=workers)
    with pytest.raises(LongtailError, match=r"^photo7\.jpg cannot be decoded\.$"):
        list(loader.epoch(0))


def test_bad_images_are_skipped_or_replaced():
    order = {"order": lambda epoch: np.arange(30)}
    broken = {4, 5, 19}
    plain = joined(disk_loader(Shard(10), **order).epoch(0))
    skipping = disk_loader(Shard(10), broken=broken, on_bad_image="skip", **order)
    good = [i for i in range(30) if i not in broken]
    assert_same(joined(skipping.epoch(0)), [part[good] for part in plain])
    assert sorted(skipping.bad) == sorted(broken)
    assert skipping.bad[4] == "photo4.jpg cannot be decoded."
    replacing = disk_loader(Shard(10), broken=broken, on_bad_image="replace", **order)
    stand_in = [{4: 6, 5: 6, 19: 18}.get(i, i) for i in range(30)]
    assert_same(joined(replacing.epoch(0)), [part[stand_in] for part in plain])
    assert len(list(disk_loader(Shard(2), broken={4, 5}, on_bad_image="skip", **order).epoch(0))) == 14
    hopeless = disk_loader(Shard(10), broken=range(30), on_bad_image="replace", **order)
    with pytest.raises(LongtailError, match="photo0"):
        list(hopeless.epoch(0))


def test_unknown_augmentation_is_named():
    with pytest.raises(LongtailError, match="'strong'; choose from none"):
        memory_loader(Shard(10), views=("strong",))


@pytest.mark.parametrize(("loader", "views"), [(memory_loader, ("weak", "weak")), (disk_loader, ("crop", "crop"))])
def test_a_few_class_views_return_in_turn_whatever_the_order(loader, views):
    made = loader(Shard(6), views=views, pictures=2)

    def views_of_ids(epoch):
        batches = list(made.epoch(epoch))
        assert {batch.picture for batch in batches} == {epoch % 2}
        first, second, _, ids = joined(batches)
        return {i: (a, b) for i, a, b in zip(ids.tolist(), first, second, strict=True)}

    zero, one, two = (views_of_ids(epoch) for epoch in range(3))
    both = zero.keys() & two.keys()
    assert len(both) > 5
    assert all(torch.equal(zero[i][0], two[i][0]) for i in both)
    assert not all(torch.equal(zero[i][1], two[i][1]) for i in both)  # the other view is new every time
    assert not all(torch.equal(zero[i][0], one[i][0]) for i in zero.keys() & one.keys())
