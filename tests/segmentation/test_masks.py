"""Masks of every kind become class indices, or one sentence says which pixel does not."""

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from longtail.data.decode import BadImage
from longtail.data.table import FileStore
from longtail.errors import LongtailError
from longtail.segmentation.masks import VOID, Coding, Masks, default_palette

LIST = "name,red,green,blue\nsky,0,0,255\nvoid,0,0,0\nroad,128,64,128\n"


def read(tmp_path, picture: Image.Image, classes: str = LIST) -> np.ndarray:
    (tmp_path / "classes.csv").write_text(classes)
    picture.save(tmp_path / "mask.png")
    return Masks(FileStore(tmp_path, pa.array(["mask.png"])), Coding.read(tmp_path / "classes.csv")).decode(0)


def test_values_are_lines_of_the_class_list(tmp_path):
    mask = read(tmp_path, Image.fromarray(np.array([[0, 1, 2], [255, 2, 0]], np.uint8)))
    assert mask.tolist() == [[0, VOID, 1], [VOID, 1, 0]]
    assert mask.dtype == np.uint8


def test_sixteen_bits_and_a_list_without_colours(tmp_path):
    mask = read(tmp_path, Image.fromarray(np.array([[0, 1], [255, 1]], np.uint16)), "road\nsky\n")
    assert mask.tolist() == [[0, 1], [VOID, 1]]


def test_colours_are_classes(tmp_path):
    colours = np.array([[[0, 0, 255], [128, 64, 128]], [[0, 0, 0], [0, 0, 255]]], np.uint8)
    assert read(tmp_path, Image.fromarray(colours)).tolist() == [[0, 1], [VOID, 0]]
    adaptive = Image.fromarray(colours).convert("P", palette=Image.Palette.ADAPTIVE)
    assert read(tmp_path, adaptive).tolist() == [[0, 1], [VOID, 0]]


def test_palette_is_ignored_where_the_list_has_no_colours(tmp_path):
    picture = Image.fromarray(np.array([[0, 1], [1, 255]], np.uint8))
    picture.putpalette(bytes(range(256)) * 3)
    assert read(tmp_path, picture, "road\nsky\n").tolist() == [[0, 1], [1, VOID]]


@pytest.mark.parametrize(
    ("picture", "classes", "message"),
    [
        (np.array([[0, 7], [7, 7]], np.uint8), LIST, r"value 7 in 3 pixels, which is none of the 2 classes"),
        (np.array([[0, 999]], np.uint16), LIST, r"value 999 in 1 pixels"),
        (np.full((2, 2, 3), 9, np.uint8), LIST, r"colour 9, 9, 9 in 4 pixels, which no class has"),
        (np.full((2, 2, 3), 9, np.uint8), "a\nb\n", r"colour picture, but the class list gives no colours"),
    ],
)
def test_unknown_values_and_colours_are_named(tmp_path, picture, classes, message):
    with pytest.raises(BadImage, match=message):
        read(tmp_path, Image.fromarray(picture), classes)


def test_files_that_are_no_pictures(tmp_path):
    (tmp_path / "mask.png").write_text("no picture")
    masks = Masks(FileStore(tmp_path, pa.array(["mask.png"])), Coding.of_lines(["a", "b"], None, "void", "list"))
    with pytest.raises(BadImage, match=r"mask.png cannot be decoded"):
        masks.decode(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na\n", 'the class "a" twice'),
        ("a\nvoid\n", "lists 1 classes"),
        ("a,1,2,3\nb,1,2,3\n", 'gives "b" the colour of another class'),
        ("a,1,2,3\nb\n", "every line is a name, or every line is"),
        ("a,1,2,300\nb,1,2,3\n", "three numbers from 0 to 255"),
        ("\n".join(map(str, range(255))), "takes 2 to 254"),
    ],
)
def test_class_lists_that_cannot_be_meant(tmp_path, text, message):
    (tmp_path / "classes.csv").write_text(text)
    with pytest.raises(LongtailError, match=message):
        Coding.read(tmp_path / "classes.csv")


def test_default_colours_differ():
    palette = default_palette(150)
    assert palette.shape == (150, 3)
    assert len(np.unique(palette, axis=0)) == 150
