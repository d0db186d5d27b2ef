"""A recipe is tried out at its full shape: two real steps a stage, on noise where the images are not here."""

import json

import numpy as np
import pytest

from longtail import recipes
from longtail.cli import main
from longtail.data.generated import counts_like, generated
from longtail.data.listed import LISTED
from longtail.engine.device import choose
from longtail.engine.rehearsal import rehearse
from longtail.engine.stages import load_data
from longtail.errors import LongtailError, NotHere
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.segmentation import rehearsal as pixel_rehearsal
from longtail.segmentation.masks import VOID


@pytest.mark.parametrize("name", LISTED)
def test_generated_data_have_the_benchmarks_shape(name):
    shape, table = LISTED[name], generated(name)
    counts = table.counts()
    assert (table.num_classes, len(table.rows("train"))) == (shape.classes, shape.images["train"])
    assert (counts.max(), counts.min()) == (shape.largest, shape.smallest)
    assert len(table.rows("test")) > 0
    image = table.images.decode(5)
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    np.testing.assert_array_equal(image, table.images.decode(5))


def test_counts_end_where_they_should_and_sum_up():
    for classes, images, largest, smallest in ((10, 1000, 300, 5), (3, 9, 3, 3), (1000, 1_281_167, 1300, 732)):
        counts = counts_like(classes, images, largest, smallest)
        assert (counts.sum(), counts.max(), counts.min()) == (images, largest, smallest)


def test_a_generated_cifar_is_cut_like_the_real_one():
    assert len(generated("cifar10-lt", 100).rows("train")) == 12_406


def small(**settings) -> Recipe:
    optim = Optim(lr=0.02)
    teacher = Stage("teacher", "logit_adjusted", model="small", epochs=1, batch_size=32, optim=optim)
    student = Stage("student", "gml", {"k": 64, **settings}, "small", epochs=1, batch_size=32, optim=optim)
    head = Stage("head", "logit_adjusted", {}, "small", epochs=1, batch_size=32, start_from="student", trains="head")
    return Recipe(Data("cifar10-lt"), (teacher, with_keys(student), head), precision="float32")


def with_keys(stage: Stage) -> Stage:
    return Stage(**{**stage.__dict__, "keys": "teacher"})


@pytest.mark.parametrize("bank", ["ring", "full"])
def test_every_stage_takes_its_steps_with_a_bank_that_is_full(bank):
    recipe = small(bank=bank)
    costs = rehearse(recipe, generated("cifar10-lt", 1000), choose("float32", "cpu"), steps=2)
    assert [cost.stage for cost in costs] == ["teacher", "student", "head"]
    rows = 64 if bank == "ring" else len(generated("cifar10-lt", 1000).rows("train"))
    assert costs[1].bank == (rows, 64)
    for cost in costs:
        assert 0 < cost.loss < 100
        assert cost.seconds_a_step > 0
        assert 0.05 < cost.peak_gb < 16
        assert cost.parameters > 1000


def test_on_the_command_line_with_settings_changed(tmp_path, monkeypatch, capsys):
    def tiny() -> Recipe:
        """CIFAR's shape.

        Command: longtail reproduce tiny
        Data: none
        Hardware: any
        Time: seconds
        Expected: 50.0 (0.0 to 100.0)
        """
        return small()

    monkeypatch.setitem(recipes.RECIPES, "tiny", tiny)
    monkeypatch.setattr(recipes, "find", lambda name: tiny)
    out = tmp_path / "costs" / "tiny.json"
    command = ["reproduce", "tiny", "--dry-run", "--data-root", str(tmp_path), "--out", str(out), "--device", "cpu"]
    assert main([*command, "--set", "student.batch_size=16", "--set", "data.imbalance=1000"]) == 0
    said, kept = capsys.readouterr().out, json.loads(out.read_text())
    assert "the images are generated, all else is real" in said
    assert "student: gml on small, batch 16, bank 64 x 64" in said
    assert kept["images"] == "generated"
    assert [stage["batch_size"] for stage in kept["stages"]] == [32, 16, 32]
    assert kept["environment"]["versions"]["torch"]


def test_a_segmentation_on_generated_scenes_of_ade20ks_shape(tmp_path, capsys):
    table = pixel_rehearsal.generated("ade20k")
    assert (table.num_classes, len(table.rows("train")), len(table.rows("test"))) == (150, 20_210, 2_000)
    image, mask = table.pair(7)
    assert image.shape[:2] == mask.shape
    assert mask[mask != VOID].max() < 150
    assert (np.diff(table.counts()) < 0).all()

    command = ["reproduce", "ade20k", "--dry-run", "--data-root", str(tmp_path), "--workers", "0", "--device", "cpu"]
    small = ["pixels.crop=[32,48]", "pixels.short_side=32"]
    small += [
        f"{stage}.{setting}" for stage in ("teacher", "student") for setting in ("model=resnet10t", "batch_size=2")
    ]
    out = tmp_path / "costs.json"
    assert main([*command, "--out", str(out), *(word for change in small for word in ("--set", change))]) == 0
    assert "the images are generated, all else is real" in capsys.readouterr().out
    teacher, student = json.loads(out.read_text())["stages"]
    assert teacher["bank"] == []
    assert student["bank"] == [8192, 128]  # the recipe's own, of this network's width
    assert 0 < student["loss"] < 100
    with pytest.raises(LongtailError, match="nothing is known of the shape of 'mine'"):
        pixel_rehearsal.generated("mine")


def test_damaged_data_are_not_taken_for_missing_ones(tmp_path, capsys):
    (tmp_path / "cifar-10-batches-bin").mkdir()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").write_bytes(b"not enough")
    assert main(["reproduce", "cifar10-lt-100-gml", "--dry-run", "--data-root", str(tmp_path), "--device", "cpu"]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_lists_without_their_photographs_are_missing_data(tmp_path):
    folder = tmp_path / "inat18"
    folder.mkdir()
    for split in ("train", "val"):
        (folder / f"iNaturalist18_{split}.txt").write_text("a.jpg 0\nb.jpg 1\n")
    with pytest.raises(NotHere, match=r"a\.jpg cannot be read"):
        load_data(Data("inat18", root=str(tmp_path)))
