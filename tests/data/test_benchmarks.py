import json
import pickle

import numpy as np
import pytest

from longtail.data import tails
from longtail.data.benchmarks import cifar, load, unpickle
from longtail.data.table import PixelStore
from longtail.errors import LongtailError


def test_digits():
    table = load("digits-lt")
    assert table.num_classes == 10
    assert (table.counts("test") == 50).all()
    assert table.counts().tolist() == [124, 80, 51, 33, 21, 14, 9, 5, 3, 2]
    assert isinstance(table.images, PixelStore)
    assert table.images.pixels.shape[1:] == (16, 16, 3)
    train, test = ({table.images.content(i) for i in table.rows(split)} for split in ("train", "test"))
    assert not train & test
    again, other = load("digits-lt"), load("digits-lt", subset_seed=1)
    assert (again.images.pixels == table.images.pixels).all()
    assert (other.images.pixels[: len(train)] != table.images.pixels[: len(train)]).any()
    assert {other.images.content(i) for i in other.rows("test")} == test, "the subset's seed moved the test split"
    assert (load("digits-lt", imbalance=1).counts() == 124).all()


@pytest.fixture(scope="module")
def from_parquet(shared_data):
    return load("cifar100-lt", root=shared_data)


def test_cifar100_lt_from_parquet(from_parquet):
    table = from_parquet
    assert table.classes[:2] == ("apple", "aquarium_fish")
    assert len(table.rows("train")) == 10_847
    assert (table.counts("test") == 100).all()
    assert table.counts().max() / table.counts().min() == 100


def write_python(root, num_classes, pixels, labels, classes):
    """The 60,000 images [N, 3072] in the folder that torchvision downloads."""
    folder = root / ("cifar-10-batches-py" if num_classes == 10 else "cifar-100-python")
    folder.mkdir(parents=True)
    kind = b"" if num_classes == 10 else b"fine_"
    files = [f"data_batch_{i}" for i in range(1, 6)] if num_classes == 10 else ["train"]
    rows = [*np.array_split(np.arange(50_000), len(files)), np.arange(50_000, 60_000)]
    for file, part in zip([*files, "test_batch" if num_classes == 10 else "test"], rows, strict=True):
        content = {b"data": pixels[part], kind + b"labels": labels[part].tolist()}
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
    names = {kind + b"label_names": [name.encode() for name in classes]}
    (folder / ("batches.meta" if num_classes == 10 else "meta")).write_bytes(pickle.dumps(names, protocol=2))


def write_binary(root, num_classes, pixels, labels, classes):
    folder = root / ("cifar-10-batches-bin" if num_classes == 10 else "cifar-100-binary")
    folder.mkdir(parents=True)
    heading = labels[:, None] if num_classes == 10 else np.stack([labels // 5, labels], axis=1)
    rows = np.concatenate([heading.astype(np.uint8), pixels], axis=1)
    if num_classes == 10:
        for i in range(5):
            rows[i * 10_000 : (i + 1) * 10_000].tofile(folder / f"data_batch_{i + 1}.bin")
    else:
        rows[:50_000].tofile(folder / "train.bin")
    rows[50_000:].tofile(folder / ("test_batch.bin" if num_classes == 10 else "test.bin"))
    (folder / ("batches.meta.txt" if num_classes == 10 else "fine_label_names.txt")).write_text(
        "\n".join(classes) + "\n\n"
    )


@pytest.mark.parametrize("num_classes", [10, 100])
def test_python_and_binary_folders_give_the_same_table(tmp_path, num_classes):
    pixels, labels = np.zeros((60_000, 3072), np.uint8), np.arange(60_000) % num_classes
    pixels[:, ::512] = np.random.default_rng(0).integers(0, 256, (60_000, 6))
    classes = [f"class{c}" for c in range(num_classes)]
    write_python(tmp_path / "p", num_classes, pixels, labels, classes)
    write_binary(tmp_path / "b", num_classes, pixels, labels, classes)
    with pytest.warns(UserWarning, match="not in their original order"):
        python, binary = (load(f"cifar{num_classes}-lt", root=tmp_path / root, imbalance=500) for root in "pb")
    assert_same(python, binary)
    assert python.classes == tuple(classes)
    kept = tails.subset(labels[:50_000], python.counts())
    assert (as_stored(python.images.pixels)[: len(kept)] == pixels[kept]).all()


def test_parquet_and_python_folder_give_the_same_cifar100_lt(shared_data, from_parquet, tmp_path):
    full = cifar(100, shared_data)
    train, test = full.rows("train"), full.rows("test")
    used = np.concatenate([train[tails.subset(full.labels[train], from_parquet.counts())], test])
    pixels = np.zeros((60_000, 3072), np.uint8)  # a subset must not look at images outside of it
    pixels[np.argsort(np.concatenate([train, test]))[used]] = as_stored(from_parquet.images.pixels)
    labels = full.labels[np.concatenate([train, test])]
    write_python(tmp_path, 100, pixels, labels, full.classes)
    assert_same(from_parquet, load("cifar100-lt", root=tmp_path / "cifar-100-python"))


def as_stored(pixels):
    return pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)


def assert_same(one, other):
    assert one.classes == other.classes
    assert (one.labels == other.labels).all()
    assert (one.split == other.split).all()
    assert (one.images.pixels == other.images.pixels).all()


def test_what_is_chosen_by_sees_no_test_image(shared_data, from_parquet):
    table = load("cifar100-lt-dev", root=shared_data)
    train, test, real = table.rows("train"), table.rows("test"), from_parquet
    assert (len(train), len(test), len(table)) == (10_847, 39_153, 50_000)
    assert (table.images.pixels[train] == real.images.pixels[real.rows("train")]).all()
    assert (table.counts() + table.counts("test") == 500).all()
    seen = {image.tobytes() for image in table.images.pixels}
    assert sum(image.tobytes() in seen for image in real.images.pixels[real.rows("test")]) < 20  # CIFAR's own copies
    with pytest.raises(LongtailError, match="leaves no training image"):
        load("cifar100-lt-dev", root=shared_data, imbalance=1)


def test_missing_data_says_what_to_put_where(tmp_path, monkeypatch):
    with pytest.raises(LongtailError, match=r"cifar-100-python .* LONGTAIL_DATA"):
        load("cifar100-lt", root=tmp_path)
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(LongtailError, match="elsewhere"):
        load("cifar10-lt")


class _Evil:
    def __reduce__(self):
        import os

        return os.system, ("echo harm",)


def test_a_pickle_may_hold_arrays_and_nothing_else(tmp_path):
    good = {b"data": np.arange(6, dtype=np.uint8), b"labels": [1, 2], b"name": "x"}
    for protocol in range(2, 6):
        (tmp_path / "good").write_bytes(pickle.dumps(good, protocol=protocol))
        assert (unpickle(tmp_path / "good")[b"data"] == good[b"data"]).all()
    for evil in (_Evil(), {b"data": [_Evil()]}, json.loads, np.load):
        (tmp_path / "evil").write_bytes(pickle.dumps(evil))
        with pytest.raises(pickle.UnpicklingError, match="wants to call"):
            unpickle(tmp_path / "evil")


@pytest.mark.parametrize(
    "content", [pickle.dumps(_Evil()), b"", b"\x80\x02}q", pickle.dumps({b"data": 3}), b"cos\nsystem\n"]
)
def test_a_damaged_folder_is_one_sentence(tmp_path, content):
    (tmp_path / "cifar-100-python").mkdir()
    for file in ("train", "test", "meta"):
        (tmp_path / "cifar-100-python" / file).write_bytes(content)
    with pytest.raises(LongtailError, match=r"cifar-100-python is damaged .* fetch it again"):
        load("cifar100-lt", root=tmp_path)


def test_a_cut_off_binary_file_is_one_sentence(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(LongtailError, match="cifar-10-batches-bin is damaged"):
        load("cifar10-lt", root=tmp_path)
