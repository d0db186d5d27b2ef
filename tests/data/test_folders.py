import os
import warnings

import numpy as np
import pytest
from pictures import picture, write

from longtail.data.decode import BadImage
from longtail.data.folders import load
from longtail.errors import LongtailError


def test_class_folders(tmp_path):
    for i, name in enumerate(["cat/1.png", "cat/2.PNG", "dog/deep/er/3.png", "Ünïcode 猫/4.png", ".hidden/5.png"]):
        write(tmp_path / name, i)
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    table = load(tmp_path)
    assert table.classes == ("cat", "dog", "empty", "Ünïcode 猫")
    assert table.counts().tolist() == [2, 1, 0, 1]
    names = [table.images.name(i) for i in range(4)]
    assert names == [
        "cat/1.png",
        "cat/2.PNG",
        "dog/deep/er/3.png",
        "Ünïcode 猫/4.png",
    ]
    assert (table.images.decode(3) == np.array(picture(3))).all()


def test_split_folders_share_one_class_list(tmp_path):
    for i, name in enumerate(["train/b/1.png", "train/c/2.png", "Validation/a/3.png", "test/c/4.png"]):
        write(tmp_path / name, i)
    (tmp_path / "train" / "z").mkdir()
    table = load(tmp_path)
    assert table.classes == ("a", "b", "c", "z")
    assert table.counts("train").tolist() == [0, 1, 1, 0]
    assert table.counts("val").tolist() == [1, 0, 0, 0]
    assert table.counts("test").tolist() == [0, 0, 1, 0]


def test_a_class_may_be_called_train(tmp_path):
    for i, name in enumerate(["bus/1.png", "train/2.png"]):
        write(tmp_path / name, i)
    assert load(tmp_path).classes == ("bus", "train")
    write(tmp_path / "test" / "3.png", 3)
    with pytest.raises(LongtailError, match="beside them bus"):
        load(tmp_path)


def test_classes_txt_decides_the_order(tmp_path):
    for i, name in enumerate(["a/1.png", "b/2.png"]):
        write(tmp_path / name, i)
    (tmp_path / "classes.txt").write_text("b\nnever seen\na\n")
    table = load(tmp_path)
    assert table.classes == ("b", "never seen", "a")
    assert table.counts().tolist() == [1, 0, 1]
    (tmp_path / "classes.txt").write_text("b\n")
    with pytest.raises(LongtailError, match=r"the class folder a is not in classes.txt"):
        load(tmp_path)


def test_two_spellings_of_one_name_are_one_class(tmp_path):
    write(tmp_path / "train" / "caf\u00e9" / "1.png", 1)
    write(tmp_path / "test" / "cafe\u0301" / "2.png", 2)
    assert load(tmp_path).classes == ("caf\u00e9",)


def test_very_long_names(tmp_path):
    name = "é" * 120 + ".png"  # 244 bytes; a file system allows 255
    table = load(write(tmp_path / ("c" * 250) / name, 1).parents[1])
    assert table.images.decode(0).shape == (8, 8, 3)


def test_files_that_are_no_images_are_counted_aloud(tmp_path):
    write(tmp_path / "a" / "1.png", 1)
    for name in ("film.mov", "film2.mov", "notes.txt"):
        (tmp_path / "a" / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"2 \.mov, 1 \.txt"):
        load(tmp_path)


def test_links_are_followed_once(tmp_path):
    write(tmp_path / "elsewhere" / "1.png", 1)
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "a")
    os.symlink(tmp_path / "data", tmp_path / "data" / "loop")
    assert len(load(tmp_path / "data")) == 1


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], "There is no image in"),
        (["1.png"], "1.png is in none"),
        (["a/1.png", "2.png"], "2.png is in none"),
        (["train/1.png"], "train/1.png is in none"),
        (["images/1.png", "labels.csv"], "labels.csv: name that file"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_other_folders_are_refused(tmp_path, files, says):
    for file in files:
        write(tmp_path / file, 0)
    if "labels.csv" in files:
        os.rename(tmp_path / "images" / "1.png", tmp_path / "1.png")
    with pytest.raises(LongtailError, match=says):
        load(tmp_path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    write(tmp_path / "a" / "1.png", 0)
    os.rename(tmp_path / "a" / "1.png", os.fsencode(tmp_path) + b"/a/\xff.png")
    with pytest.raises(LongtailError, match="not valid UTF-8"):
        load(tmp_path)


def test_a_file_that_is_gone_is_a_bad_image_with_its_path(tmp_path):
    path = write(tmp_path / "a" / "1.png", 0)
    table = load(tmp_path)
    path.unlink()
    with pytest.raises(BadImage, match=r"a/1.png cannot be read \(No such file"):
        table.images.decode(0)


def test_a_hundred_thousand_files_of_8142_classes(tmp_path):
    first = [write(tmp_path / f"{i}.png", i) for i in range(2)]  # a file system allows 65,000 links to one
    for c in range(8142):
        folder = tmp_path / "data" / f"{c:05d}"
        folder.mkdir(parents=True)
        for i in range(13 if c < 2296 else 12):
            os.link(first[c % 2], folder / f"{i}.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = load(tmp_path / "data")
    assert len(table) == 100_000
    assert table.num_classes == 8142
    assert table.counts().sum() == 100_000
    assert table.take(table.rows("train")[::-1]).images.name(0) == "08141/9.png"
