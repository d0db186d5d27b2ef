"""CamVid, ADE20K's layout and folders of pairs become tables; what does not fit is said in a sentence."""

import json

import numpy as np
import pytest
from PIL import Image
from scenes import CLASSES, HEIGHT, WIDTH, scene, write_pairs

from longtail.data.decode import BadImage
from longtail.errors import LongtailError
from longtail.segmentation import sources
from longtail.segmentation.masks import VOID


def test_camvid(shared_data):
    table = sources.load("camvid", root=shared_data)
    assert [len(table.rows(split)) for split in ("train", "val", "test")] == [367, 101, 233]
    assert table.num_classes == 11
    assert table.classes[-1] == "Bicyclist"
    image, mask = table.pair(0)
    assert (image.shape, mask.shape) == ((180, 240, 3), (180, 240))
    assert mask.max() == VOID
    # The counts that came with it are of the full resolution; shares of the classes are the same to a tenth.
    stated = np.array(json.loads((shared_data / "camvid/index.json").read_text())["pixels_fullres"]["train"][:11])
    counts = table.counts()
    assert np.abs(counts / counts.sum() / (stated / stated.sum()) - 1).max() < 0.1


def test_ade20k_layout(tmp_path):
    folder = tmp_path / "ADEChallengeData2016"
    names = ["wall", "building, edifice", *(f"thing {i}" for i in range(3, 149)), "screen, CRT", "screen, door"]
    rows = [f"{i}\t0.1\t1\t1\t0\t{name}" for i, name in enumerate(names, 1)]
    for part in ("training", "validation"):
        for kind in ("images", "annotations"):
            (folder / kind / part).mkdir(parents=True)
        Image.new("RGB", (6, 4)).save(folder / "images" / part / "ADE_1.jpg")
        mask = np.zeros((4, 6), np.uint8)
        mask[0], mask[1] = 1, 150
        Image.fromarray(mask).save(folder / "annotations" / part / "ADE_1.png")
    with pytest.raises(LongtailError, match=r"objectInfo150.txt is missing"):
        sources.load("ade20k", root=tmp_path)
    (folder / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tStuff\tName", *rows]))
    table = sources.load("ade20k", root=tmp_path)
    assert table.num_classes == 150
    assert table.classes[1] == "building"
    assert table.classes[-2:] == ("screen, CRT", "screen, door")  # one word would not keep them apart
    assert table.counts("train")[[0, 149]].tolist() == [6, 6]  # value 0 is void, 1 the first class
    assert table.counts("test").sum() == 12


@pytest.mark.parametrize("colour", [False, True])
def test_pairs(tmp_path, colour):
    table = sources.load(write_pairs(tmp_path / "data", 5, 2, colour=colour))
    assert table.classes == CLASSES
    assert [len(table.rows(split)) for split in ("train", "val", "test")] == [5, 0, 2]
    image, mask = table.pair(3)
    expected_image, expected_mask = scene(3)
    assert np.array_equal(image, expected_image)
    assert np.array_equal(mask, expected_mask)
    brute = sum(np.bincount(scene(i)[1].ravel(), minlength=256) for i in range(5))
    assert table.counts().tolist() == brute[:4].tolist()
    assert "ball" in table.summary()


def test_a_fifth_is_held_out_by_name_where_there_are_no_splits(tmp_path):
    source = write_pairs(tmp_path / "data", 60, 0)
    for part in ("images", "masks"):
        for path in (source / part / "train").iterdir():
            path.rename(source / part / path.name)
        (source / part / "train").rmdir()
        (source / part / "test").rmdir()
    table = sources.load(source)
    names = {table.images.name(int(row)) for row in table.rows("test")}
    assert 5 <= len(names) <= 20
    for i in (30, 31):  # taking an image away moves no other one
        for part in ("images", "masks"):
            (source / part / f"{i:03d}.png").unlink()
    again = sources.load(source)
    assert {again.images.name(int(row)) for row in again.rows("test")} == names - {"images/030.png", "images/031.png"}


def test_a_class_without_a_pixel_is_said(tmp_path):
    source = write_pairs(tmp_path / "data", 2, 1)
    with open(source / "classes.csv", "a") as file:
        file.write("unicorn,1,2,3\n")
    table = sources.load(source)
    assert table.counts()[-1] == 0
    assert "no training pixel of 1 class, which will never be answered: unicorn" in table.summary()


def test_what_does_not_fit_together(tmp_path):
    source = write_pairs(tmp_path / "data", 2, 1)
    Image.new("L", (WIDTH // 2, HEIGHT)).save(source / "masks/train/001.png")
    with pytest.raises(BadImage, match=rf"001.png has {WIDTH} x {HEIGHT} pixels and its mask .*32 x {HEIGHT}"):
        sources.load(source)
    (source / "masks/train/001.png").unlink()
    with pytest.raises(LongtailError, match=r"001.png has no mask: .*masks/train/001.png was looked for"):
        sources.load(source)
    (source / "classes.csv").unlink()
    with pytest.raises(LongtailError, match=r"no classes.csv"):
        sources.load(source)
    with pytest.raises(LongtailError, match=r"no folder images"):
        sources.load(tmp_path)
    with pytest.raises(LongtailError, match=r"is no folder"):
        sources.load("camvid", root=tmp_path)


def test_an_image_on_its_side_is_compared_as_it_is_shown(tmp_path):
    source = write_pairs(tmp_path / "data", 2, 1)
    image = Image.open(source / "images/train/000.png").convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    image.save(source / "images/train/000.png", exif=exif)
    table = sources.load(source)
    with pytest.raises(BadImage, match=rf"{HEIGHT} x {WIDTH} pixels and its mask .* {WIDTH} x {HEIGHT}"):
        table.pair(0)
