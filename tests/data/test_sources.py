"""One door: whatever the form, the same images are the same table."""

import json
import sys
from io import StringIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encode, write
from PIL import Image
from torchvision.datasets import FakeData

from longtail.data import benchmarks, lists
from longtail.data.columns import Columns
from longtail.data.sources import load
from longtail.engine import device as devices
from longtail.engine import stages
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.recipe import Data, Optim, Recipe, Stage


def test_forms_of_the_same_images_give_the_same_table(tmp_path):
    folder = tmp_path / "folder"
    names = [f"train/{c}/{i}.png" for c in "ab" for i in range(3)] + ["test/b/9.png"]
    for seed, name in enumerate(names):
        write(folder / name, seed)
    from_folder = load(folder)
    lists.save(from_folder, folder / "list.csv")
    image = [{"bytes": from_folder.images.content(i), "path": from_folder.images.name(i)} for i in range(7)]
    split = [name.split("/")[0] for name in map(from_folder.images.name, range(7))]
    labels = [from_folder.classes[c] for c in from_folder.labels]
    pq.write_table(pa.table({"image": image, "label": labels, "split": split}), tmp_path / "x.parquet")
    for other in (load(folder / "list.csv"), load(str(tmp_path / "x.parquet"))):
        assert other.classes == from_folder.classes
        assert (other.labels == from_folder.labels).all()
        assert (other.split == from_folder.split).all()
        assert all((other.images.decode(i) == from_folder.images.decode(i)).all() for i in range(7))
        assert all(other.images.content(i) == from_folder.images.content(i) for i in range(7))


def test_a_folder_trains_to_the_same_loss_curve_as_parquet(tmp_path):
    """The parquet has the images in their original order, the folder class by class: a tail cut from either is one."""
    digits = benchmarks.load("digits-lt", imbalance=1)
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for split in ("train", "test"):
        rows = np.random.default_rng(0).permutation(digits.rows(split))[:400]
        encoded = [encode(Image.fromarray(digits.images.decode(i)), "PNG") for i in rows]
        for i, (row, data) in enumerate(zip(rows, encoded, strict=True)):
            file = tmp_path / "folder" / split / str(digits.labels[row]) / f"{i:05d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        images = pa.array([{"bytes": data, "path": None} for data in encoded], image_type)
        (tmp_path / "parquet").mkdir(exist_ok=True)
        columns = {"image": images, "label": pa.array(digits.labels[rows])}
        pq.write_table(pa.table(columns), tmp_path / "parquet" / f"{split}-00000-of-00001.parquet")

    stage = Stage(model="small", epochs=2, batch_size=32, augment="shift", optim=Optim(lr=0.05))
    curves = []
    for source in ("folder", "parquet"):
        data = Data(str(tmp_path / source), imbalance=5)
        recipe = Recipe(data, (stage,), evaluate_every=9)
        device = devices.choose("float32", "cpu")
        stages.run(recipe, stages.load_data(data), tmp_path / "run" / source, device, progress=Progress(StringIO()))
        lines = (tmp_path / "run" / source / "metrics.jsonl").read_text().splitlines()
        curves.append([json.loads(line)["loss"] for line in lines])
    assert curves[0] == curves[1]
    assert len(curves[0]) == 2


def test_own_data_may_be_cut_to_a_tail(tmp_path):
    for i in range(40):
        write(tmp_path / "ab"[i % 2] / f"{i}.png", i)
    table = benchmarks.load(tmp_path, imbalance=10)
    assert table.counts().tolist() == [20, 2]
    assert len(np.unique(table.labels)) == 2


def test_a_column_of_data_without_columns_is_an_error(tmp_path):
    """To leave a group column out without a word would leak."""
    write(tmp_path / "a" / "1.png", 1)
    for source in (tmp_path, "digits-lt", FakeData(2)):
        with pytest.raises(LongtailError, match=r"no columns, so --group-column camera says nothing: give a list"):
            benchmarks.load(source, columns=Columns(group="camera"))


def test_no_such_data():
    with pytest.raises(LongtailError, match=r"no/such/place does not exist: give a folder"):
        benchmarks.load("no/such/place")
    with pytest.raises(LongtailError, match=r"no benchmark and no file 'cifar1000-lt'; .* cifar100-lt"):
        benchmarks.load("cifar1000-lt")


def test_a_file_that_is_no_list(tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(LongtailError, match="no folder, CSV, TSV, TXT or parquet"):
        load(tmp_path / "x.zip")


def test_hugging_face_sets_need_their_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(LongtailError, match="pip install datasets"):
        load("hf:someone/something")
