import numpy as np
import pyarrow as pa
import pytest
from pictures import encode
from PIL import Image

from longtail.data.decode import BadImage
from longtail.data.lists import load
from longtail.data.table import BytesStore, FileStore, ImageTable, PixelStore, in_memory
from longtail.errors import LongtailError


def table(images, labels=(0, 0, 2, 0), split=(0, 0, 0, 2)) -> ImageTable:
    return ImageTable(("a", "b", "c"), np.array(labels, np.int32), np.array(split, np.uint8), images, name="mine")


@pytest.fixture
def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)


@pytest.fixture(params=["pixels", "files", "bytes"])
def store(request, pixels, tmp_path):
    encoded = [encode(Image.fromarray(image), "PNG") for image in pixels]
    names = [f"d/ü {i}.png" for i in range(4)]
    if request.param == "files":
        (tmp_path / "d").mkdir()
        for name, data in zip(names, encoded, strict=True):
            (tmp_path / name).write_bytes(data)
        return FileStore(tmp_path, pa.array(names))
    if request.param == "bytes":
        return BytesStore(pa.chunked_array([encoded[:1], encoded[1:]]), pa.chunked_array([names]))
    return PixelStore(pixels, "x")


def test_stores_agree(store, pixels):
    assert len(store) == 4
    for i in range(4):
        assert (store.decode(i) == pixels[i]).all()
    some = store.take(np.array([3, 1])).take(np.array([1, 0, 0]))
    assert len(some) == 3
    assert [some.content(i) for i in range(3)] == [store.content(i) for i in (1, 3, 3)]
    assert (some.decode(0) == pixels[1]).all()
    assert (in_memory(table(store)).images.pixels == pixels).all()  # pyright: ignore[reportAttributeAccessIssue]


def test_class_list_decides_the_order_not_the_labels(pixels):
    t = table(PixelStore(pixels, "x"))
    assert t.num_classes == 3
    assert t.counts().tolist() == [2, 0, 1]
    assert t.counts("test").tolist() == [1, 0, 0]
    assert t.counts("val").tolist() == [0, 0, 0]
    assert t.rows("train").tolist() == [0, 1, 2]
    only_c = t.take(np.array([2]))
    assert only_c.classes == t.classes
    assert only_c.counts().tolist() == [0, 0, 1]


def test_summary_names_the_classes_that_are_missing(pixels):
    text = table(PixelStore(pixels, "x")).summary()
    assert "3 classes, 3 train, 1 test" in text
    assert "imbalance 2x" in text
    assert "no train image of b" in text
    assert "no test image of 2 classes: b, c" in text


def test_in_memory_refuses_mixed_sizes():
    encoded = [encode(Image.new("RGB", size), "PNG") for size in ((3, 3), (3, 4))]
    store = BytesStore(pa.chunked_array([encoded]), pa.chunked_array([["one", "two"]]))
    with pytest.raises(LongtailError, match="two is 3 x 4 but one is 3 x 3"):
        in_memory(table(store, labels=(0, 0), split=(0, 0)))


def test_images_that_cannot_be_decoded_are_left_out_where_that_is_asked_for(pixels):
    encoded = [encode(Image.fromarray(image), "PNG") for image in pixels]
    encoded[0] = encoded[2] = b"no image"
    whole = table(BytesStore(pa.chunked_array([encoded]), pa.chunked_array([list("wxyz")])))
    with pytest.raises(BadImage, match=r"^[wy] cannot be decoded"):
        in_memory(whole)
    bad = {}
    held = in_memory(whole, bad)
    assert {row: reason[0] for row, reason in bad.items()} == {0: "w", 2: "y"}
    assert held.classes == whole.classes
    assert (held.labels.tolist(), held.split.tolist()) == ([0, 0], [0, 2])
    assert (held.images.pixels == pixels[[1, 3]]).all()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BadImage, match="w cannot be decoded"):
        in_memory(table(BytesStore(pa.chunked_array([[b"x"] * 4]), pa.chunked_array([list("wxyz")]))), {})


def test_a_million_rows_cost_under_100_bytes_each_beyond_the_path(tmp_path):
    """As a list with classes, splits and groups; and no more after rows have been taken."""
    n = 1_000_000
    paths = [f"n{i % 8142:08d}/{i}.jpg" for i in range(n)]
    rows = (f"{path},class {i % 8142},train,camera {i % 999}\n" for i, path in enumerate(paths))
    (tmp_path / "list.csv").write_text("path,label,split,group\n" + "".join(rows))
    text = sum(map(len, paths))
    before = pa.total_allocated_bytes()
    table = load(tmp_path / "list.csv")
    assert (len(table), table.num_classes) == (n, 8142)
    for _ in range(2):
        assert table.groups is not None
        columns = table.labels.nbytes + table.split.nbytes + table.groups.nbytes
        assert (pa.total_allocated_bytes() - before - text + columns) / n < 20
        table = table.take(np.arange(n)[::-1])
