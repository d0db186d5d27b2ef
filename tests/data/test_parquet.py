import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pictures import encode, picture, write

from longtail.data import parquet
from longtail.data.columns import Columns
from longtail.data.decode import BadImage
from longtail.data.sources import load
from longtail.errors import LongtailError

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def images(seeds):
    return pa.array([{"bytes": encode(picture(s), "PNG"), "path": f"{s}.png"} for s in seeds], IMAGE)


def class_names(column, names):
    features = {"img": {"_type": "Image"}, column: {"names": names, "_type": "ClassLabel"}}
    return {"huggingface": json.dumps({"info": {"features": features}})}


def test_hugging_face_layout(tmp_path):
    """Splits from the files' names, class names from the schema, a class without images in its place."""
    (tmp_path / "data").mkdir()
    for split, seeds, labels in [("train", [0, 1, 2], [2, 0, 2]), ("validation", [3], [0]), ("test", [4], [2])]:
        rows = pa.table({"img": images(seeds), "fine_label": labels})
        rows = rows.replace_schema_metadata(class_names("fine_label", ["cat", "dog", "7"]))
        pq.write_table(rows, tmp_path / "data" / f"{split}-00000-of-00001.parquet")
    table = load(tmp_path)
    assert table.classes == ("cat", "dog", "7")
    assert [table.counts(split).tolist() for split in ("train", "val", "test")] == [[1, 0, 2], [1, 0, 0], [0, 0, 1]]
    for row in range(5):
        seed = int(table.images.name(row).removesuffix(".png"))
        assert (table.images.decode(row) == np.array(picture(seed))).all()


def test_indices_stay_indices_where_classes_are_named_by_digits(tmp_path):
    rows = pa.table({"img": images([0]), "label": [0]}).replace_schema_metadata(class_names("label", ["2", "1", "0"]))
    pq.write_table(rows, tmp_path / "x.parquet")
    table = load(tmp_path / "x.parquet")
    assert table.classes[table.labels[0]] == "2"


def test_plain_bytes_names_splits_and_groups(tmp_path):
    encoded = [encode(picture(s), "PNG") for s in range(3)]
    rows = {"image": encoded, "species": ["b", "a", "b"], "split": ["train", "dev", "test"], "site": ["x", "x", "y"]}
    pq.write_table(pa.table(rows), tmp_path / "x.parquet")
    table = load(tmp_path / "x.parquet", columns=Columns(group="site"))
    assert table.classes == ("a", "b")
    assert (table.labels.tolist(), table.split.tolist(), table.groups.tolist()) == ([1, 0, 1], [0, 1, 2], [0, 0, 1])
    assert (table.images.decode(2) == np.array(picture(2))).all()
    assert table.images.name(2) == "row 2"


def test_paths_instead_of_images(tmp_path):
    write(tmp_path / "a" / "1.png", 1)
    pq.write_table(pa.table({"path": ["a/1.png"], "label": ["cat"]}), tmp_path / "x.parquet")
    assert (load(tmp_path / "x.parquet").images.decode(0) == np.array(picture(1))).all()
    pq.write_table(pa.table({"path": ["../1.png"], "label": ["cat"]}), tmp_path / "x.parquet")
    with pytest.raises(LongtailError, match="does not lead"):
        load(tmp_path / "x.parquet")


def test_a_row_without_bytes_is_a_bad_image(tmp_path):
    column = pa.array(
        [{"bytes": encode(picture(0), "PNG"), "path": "0"}, {"bytes": None, "path": "/etc/passwd"}], IMAGE
    )
    pq.write_table(pa.table({"img": column, "label": [0, 1]}), tmp_path / "x.parquet")
    with pytest.raises(BadImage, match="/etc/passwd has no image bytes"):
        load(tmp_path / "x.parquet").images.decode(1)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"img": images([0]), "label": [[1, 2]]}, "column 'label' has lists.* exactly one class"),
        ({"img": images([0]), "weight": [1]}, "no column for the label"),
        ({"pixels": images([0]), "label": [1]}, "no column for the image"),
        ({"img": [1], "label": [1]}, "neither encoded images nor paths"),
        ({"img": images([0]), "label": [-1]}, "has no label"),
        ({"img": images([]), "label": pa.array([], pa.int64())}, "no rows"),
    ],
)
def test_what_cannot_be_a_table_is_one_sentence(tmp_path, columns, says):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    with pytest.raises(LongtailError, match=says):
        load(tmp_path / "x.parquet")


def test_damaged_files_and_files_larger_than_memory(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(LongtailError, match="cannot be read as parquet"):
        load(tmp_path / "x.parquet")
    pq.write_table(pa.table({"img": images([0]), "label": [0]}), tmp_path / "x.parquet")
    monkeypatch.setattr(parquet.os, "sysconf", lambda _: 1)
    with pytest.raises(LongtailError, match="save_to_disk"):
        load(tmp_path / "x.parquet")


def test_hugging_face_data_sets(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])})
    parts = {
        split: datasets.Dataset.from_dict({"image": [picture(s) for s in seeds], "label": labels}, features=features)
        for split, seeds, labels in [("train", [0, 1, 2], [2, 0, 2]), ("test", [3, 4], [0, 2])]
    }
    parts["train"] = parts["train"].select([2, 0])
    data = datasets.DatasetDict(parts)
    data.save_to_disk(str(tmp_path / "saved"))
    data["test"].save_to_disk(str(tmp_path / "one"))
    for table in (load(data), load(tmp_path / "saved")):
        assert table.classes == ("cat", "dog", "owl")
        assert (table.labels.tolist(), table.split.tolist()) == ([2, 2, 0, 2], [0, 0, 2, 2])
        for row, seed in enumerate([2, 0, 3, 4]):
            assert (table.images.decode(row) == np.array(picture(seed))).all()
    assert load(tmp_path / "one").counts("train").tolist() == [1, 0, 1]

    for i, name in enumerate(["cat/1.png", "dog/2.png"]):
        write(tmp_path / "files" / name, i)
    by_path = load(
        datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "files"), cache_dir=str(tmp_path / "c"))
    )
    assert by_path.classes == ("cat", "dog")
    assert (by_path.images.decode(1) == np.array(picture(1))).all()
