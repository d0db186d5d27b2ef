import gzip
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import picture, write

from longtail.data import lists
from longtail.data.classes import plain
from longtail.data.columns import Columns
from longtail.data.folders import load as load_folder
from longtail.data.table import SPLITS, FileStore, ImageTable
from longtail.errors import LongtailError


def load(tmp_path, text, name="list.csv", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return lists.load(tmp_path / name, **options)


def rows(table):
    """(path, class, split, group) of each image, whatever its codes."""
    groups = table.groups if table.groups is not None else [None] * len(table)
    return [
        (table.images.name(i), table.classes[table.labels[i]], SPLITS[table.split[i]], groups[i])
        for i in range(len(table))
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.csv", "path,label\na/1.png,cat\nb 2.png,big dog\n"),
        ("list.csv", "\ufefflabel,FileName\r\ncat,a/1.png\r\nbig dog,b 2.png\r\n"),
        ("list.csv", 'file;class\na/1.png;cat\n"b 2.png";"big dog"\n'),
        ("list.csv", "a/1.png,cat\nb 2.png,big dog\n"),
        ("list.tsv", "a/1.png\tcat\nb 2.png\tbig dog\n"),
        ("list.txt", "a/1.png\tcat\nb 2.png\tbig dog\n"),
        ("list.txt", "a/1.png,cat\n\nb 2.png,big dog"),
        ("list.csv.gz", gzip.compress(b"path,label\na/1.png,cat\nb 2.png,big dog\n", mtime=0)),
        ("list.csv", "path,label\na\\1.png,cat\nb 2.png,big dog\n"),
        ("list.csv", "id,image,species,weight\n7,a/1.png,cat,3.5\n8,b 2.png,big dog,20\n"),
    ],
)
def test_forms_of_one_list(tmp_path, name, text):
    table = load(tmp_path, text, name)
    assert table.classes == ("big dog", "cat")
    assert rows(table) == [("a/1.png", "cat", "train", None), ("b 2.png", "big dog", "train", None)]


def test_path_label_lists(tmp_path):
    table = load(tmp_path, "train/a b/1.JPEG 2\ntrain/c/ü.JPEG 0\n\n", "x.txt")
    assert rows(table) == [("train/a b/1.JPEG", "2", "train", None), ("train/c/ü.JPEG", "0", "train", None)]
    assert table.classes == ("0", "1", "2")


def test_splits_and_groups(tmp_path):
    with_header = load(
        tmp_path,
        "camera,split,path,label\nx,Train,1.png,a\nx,validation,2.png,a\n,test,3.png,b\n,test,4.png,b\n",
        columns=Columns(group="camera"),
    )
    without = load(tmp_path, "1.png,a,train,x\n2.png,a,valid,x\n3.png,b,test,\n4.png,b,test,\n")
    for table in (with_header, without):
        assert [row[:3] for row in rows(table)] == [
            ("1.png", "a", "train"),
            ("2.png", "a", "val"),
            ("3.png", "b", "test"),
            ("4.png", "b", "test"),
        ]
        assert table.groups[0] == table.groups[1]
        assert len(set(table.groups)) == 3, "an image without a group is a group of its own"
    assert load(tmp_path, "1.png,a,camera 1\n2.png,a,camera 1\n").groups.tolist() == [0, 0]


def test_lists_of_one_family_are_read_together(tmp_path):
    for split, text in {"train": "a/1.png 0\na/2.png 3\n", "val": "a/3.png 3\n", "test": "a/4.png 1\n"}.items():
        (tmp_path / f"Birds_{split}.txt").write_text(text)
    (tmp_path / "Bees_val.txt").write_text("a/9.png 9\n")
    for split in ("train", "val", "test"):
        table = lists.load(tmp_path / f"Birds_{split}.txt")
        assert [row[:3] for row in rows(table)] == [
            ("a/1.png", "0", "train"),
            ("a/2.png", "3", "train"),
            ("a/3.png", "3", "val"),
            ("a/4.png", "1", "test"),
        ]
        assert table.classes == ("0", "1", "2", "3")
        assert table.counts().tolist() == [1, 0, 0, 1]


def test_numbers_are_indices_unless_they_are_mostly_gaps(tmp_path):
    assert load(tmp_path, "1.png,1\n2.png,2\n").classes == ("0", "1", "2")
    assert load(tmp_path, "1.png,48112\n2.png,907\n").classes == ("907", "48112")
    (tmp_path / "classes.txt").write_text("owl\nmole\nmouse\n")
    table = load(tmp_path, "1.png,1\n2.png,mouse\n")
    assert table.classes == ("owl", "mole", "mouse")
    assert table.labels.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n", "lists no image"),
        ("path,label\n", "lists no image"),
        ("just some words\n", "is not a path and a label"),
        ("path,cat,dog\n1.png,1,0\n", "no column for the label.* multi-label"),
        ("path,label\n1.png,cat|dog\n", '"cat|dog" names several classes'),
        ('path,label\n1.png,"[1, 2]"\n', "names several classes"),
        ('path,label\n1.png,"3,7"\n', "names several classes"),
        ('path,label\n1.png,cat\n2.png,dog\n3.png,"dog, cat"\n', 'image 3: the label "dog, cat" names several'),
        ("1.png,cat\n1.png,dog\n", '"1.png" is listed as "cat" and as "dog"'),
        ("path,label\n1.png,cat\n2.png,\n", "image 2: has no label"),
        ("1.png,0\n2.png,-1\n", "image 2: has no label"),
        ("path,label,split\n1.png,cat,holdout\n", '"holdout" is none of train'),
        ("path,label\n1.png,cat\n2.png\n", "Expected 2 columns, got 1"),
        ("path,label\n../1.png,cat\n", '"../1.png" does not lead to a file under'),
        ("path,label\n/etc/passwd,cat\n", "--data-root"),
        ("path,label\nC:/1.png,cat\n", "does not lead"),
        ("path,label\na/..\\..\\1.png,cat\n", "does not lead"),
        ("path,label\n,cat\n", "does not lead"),
        ("path,label\n1.png,caf\xe9\n".encode("latin-1"), "not UTF-8"),
    ],
)
def test_what_cannot_be_a_table_is_one_sentence(tmp_path, text, says):
    with pytest.raises(LongtailError, match=says) as refusal:
        load(tmp_path, text)
    assert "list.csv" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_damaged_and_missing_files(tmp_path):
    with pytest.raises(LongtailError, match="not a whole gzip file"):
        load(tmp_path, gzip.compress(b"1.png,cat\n" * 999, mtime=0)[:-20], "list.csv.gz")
    with pytest.raises(LongtailError, match="No such file"):
        lists.load(tmp_path / "absent.csv")
    with pytest.raises(LongtailError, match="no column 'camera'"):
        load(tmp_path, "path,label\n1.png,cat\n", columns=Columns(group="camera"))


def test_absolute_paths_below_the_root_are_its_own(tmp_path):
    write(tmp_path / "data" / "1.png", 5)
    table = load(tmp_path, f"{tmp_path}/data/1.png,cat\n", root=tmp_path / "data")
    assert table.images.name(0) == "1.png"
    assert (table.images.decode(0) == np.array(picture(5))).all()


def test_a_class_may_have_commas_in_its_name(tmp_path):
    text = 'path,label\n1.png,"tench, Tinca tinca"\n2.png,tench\n'
    assert load(tmp_path, text).classes == ("tench", "tench, Tinca tinca")
    both = 'path,label\n1.png,cat\n2.png,dog\n3.png,"cat,dog"\n4.png,a|b\n'
    (tmp_path / "classes.txt").write_text("cat\ndog\ncat,dog\na|b\n")
    assert load(tmp_path, both).labels.tolist() == [0, 1, 2, 3], "a list of the classes leaves nothing to guess"


names = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).map(str.strip)
file_names = names.map(lambda s: re.sub(r"[\\/:]", "_", s) + ".png")  # a colon may name a drive
class_names = names.filter(lambda s: s and not set(s) & set("\r\n") and not s.isdecimal())


@given(data=st.data(), with_groups=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_survives_being_written_and_read(tmp_path, data, with_groups):
    classes = data.draw(st.lists(class_names, min_size=1, max_size=6, unique_by=lambda s: plain(s)))
    paths = data.draw(st.lists(file_names, min_size=1, unique=True))

    def codes(high, dtype):
        n = len(paths)
        return np.array(data.draw(st.lists(st.integers(0, high), min_size=n, max_size=n)), dtype)

    table = ImageTable(
        tuple(map(plain, classes)),
        codes(len(classes) - 1, np.int32),
        codes(2, np.uint8),
        FileStore(tmp_path, pa.array(paths)),
        groups=codes(3, np.int32) if with_groups else None,
    )
    lists.save(table, tmp_path / "table.csv")
    back = lists.load(tmp_path / "table.csv")
    assert back.classes == table.classes
    assert [row[:3] for row in rows(back)] == [row[:3] for row in rows(table)]
    if with_groups:
        assert back.groups is not None
        assert ((back.groups[:, None] == back.groups) == (table.groups[:, None] == table.groups)).all()


def test_a_folder_survives_it_too(tmp_path):
    for i, name in enumerate(['train/it\'s, "quoted"/1.png', "train/猫/ü 2.png", "test/猫/3.png"]):
        write(tmp_path / name, i)
    (tmp_path / "train" / "empty").mkdir()
    table = load_folder(tmp_path)
    lists.save(table, tmp_path / "table.csv")
    back = lists.load(tmp_path / "table.csv")
    assert back.classes == table.classes
    assert rows(back) == rows(table)
    assert [(back.images.decode(i) == table.images.decode(i)).all() for i in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("file", "sizes", "classes"),
    [
        ("ImageNet_LT_val.txt.gz", (0, 20_000, 50_000), 1000),
        ("Places_LT_train.txt.gz", (62_500, 7_300, 36_500), 365),
        ("iNaturalist18_val.txt.gz", (0, 24_426, 0), 8142),
    ],
)
def test_the_standard_lists(shared_data, file, sizes, classes):
    table = lists.load(shared_data / "lists" / file)
    assert tuple(len(table.rows(split)) for split in SPLITS) == sizes
    assert table.num_classes == classes
    if file.startswith("Places"):
        counts = table.counts()
        assert (counts.max(), counts.min()) == (4980, 5)
        assert ((counts > 100).sum(), (counts < 20).sum()) == (131, 71)


@pytest.mark.parametrize(("images", "classes"), [(115_846, 1000), (437_513, 8142)])
def test_lists_of_the_size_of_imagenet_lt_and_inaturalist(tmp_path, images, classes):
    """Their training lists may not be passed on; these have their form and length."""
    lines = [f"train/n{c % classes:08d}/n{c % classes:08d}_{c}.JPEG {c % classes}\n" for c in range(images)]
    table = load(tmp_path, "".join(lines), "x_train.txt")
    assert len(table.rows("train")) == images
    assert table.num_classes == classes
    assert table.images.name(images - 1) == lines[-1].split()[0]
