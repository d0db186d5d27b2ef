"""Images that cannot be used: they stop a run with their name or, where that is asked for, are counted and named."""

import csv
from io import StringIO

import numpy as np
import pytest
from PIL import Image

from longtail.cli import main
from longtail.data.decode import BadImage
from longtail.data.disk_loader import DiskLoader
from longtail.engine import device as devices
from longtail.engine import stages
from longtail.engine.logs import Progress
from longtail.errors import LongtailError
from longtail.recipe import Data, Recipe, Stage

BROKEN = ("train/a/00.png", "train/b/03.png", "test/a/01.png")


def folder(root, size):
    for split, counts in {"train": {"a": 12, "b": 8}, "test": {"a": 3, "b": 2}}.items():
        for label, n in counts.items():
            for i in range(n):
                file = root / split / label / f"{i:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng([ord(label), i, len(split)]).integers(0, 256, (size, size, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    for name in BROKEN:
        (root / name).write_bytes((root / name).read_bytes()[:-200])
    return Data(str(root))


def train(data, out):
    said = StringIO()
    table = stages.load_data(data, lambda line: print(line, file=said))
    recipe = Recipe(data, (Stage(model="small", method="cross_entropy", epochs=2, batch_size=10),), evaluate_every=9)
    place = devices.choose("float32", "cpu")
    out.mkdir(exist_ok=True)
    (finished,) = stages.run(recipe, table, out, place, progress=Progress(said), workers=0)
    return table, finished, said.getvalue()


@pytest.mark.parametrize("size", [16, 80], ids=["in memory", "from disk"])
def test_a_run_stops_at_the_first_one_with_its_name(tmp_path, size):
    data = folder(tmp_path / "data", size)
    with pytest.raises(BadImage, match=r"^(train|test)/[ab]/0[013]\.png cannot be decoded"):
        train(data, tmp_path)


def test_skipped_images_of_a_disk_are_counted_and_named(tmp_path):
    data = folder(tmp_path / "data", 80)
    table, finished, said = train(stages.replace(data, on_bad_image="skip"), tmp_path / "run")
    assert len(table) == 25
    assert "images that cannot be used: 3; a training took others" in said
    with open(tmp_path / "run" / "bad_images.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["image"] for row in rows) == sorted(BROKEN)
    assert all("cannot be decoded" in row["reason"] for row in rows)
    assert finished.summary is not None
    with open(tmp_path / "run" / "per_class.csv", encoding="utf-8", newline="") as file:
        assert [int(row["n"]) for row in csv.DictReader(file)] == [2, 2], "the broken test image was counted"


def test_skipped_images_that_fit_in_memory_are_left_out_of_the_table(tmp_path):
    data = folder(tmp_path / "data", 16)
    table, _, said = train(stages.replace(data, on_bad_image="skip"), tmp_path / "run")
    assert len(table) == 22
    assert table.counts().tolist() == [11, 7]
    assert table.counts("test").tolist() == [2, 2]
    assert "images that cannot be used: 3, left out; the first: " in said


def test_a_run_that_was_stopped_carries_on_without_the_image(tmp_path, monkeypatch, capsys):
    """A test image broke after the run had begun; the first look at it is the evaluation after the second epoch."""
    data = folder(tmp_path / "data", 80)
    for name in BROKEN:
        (tmp_path / "data" / name).unlink()
    command = ["train", data.source, "--method=cross_entropy", "--model=small", "--from-scratch", "--workers=0"]
    command += ["--epochs=2", "--batch-size=9", f"--out={tmp_path / 'run'}"]
    command += ["--set", "evaluate_every=1"]
    look, looks = DiskLoader.epoch, []

    def breaks_after_the_first_epoch(self, epoch, start_step=0):
        if len(self.views) == 1 and self.views[0].draws == 0:  # an evaluation's
            looks.append(epoch)
            if len(looks) == 4:  # preflight, class means, epoch 1, epoch 2
                (tmp_path / "data" / "test/b/00.png").write_bytes(b"")
        return look(self, epoch, start_step)

    monkeypatch.setattr(DiskLoader, "epoch", breaks_after_the_first_epoch)
    assert main(command) == 2
    assert "test/b/00.png is empty" in capsys.readouterr().err
    assert main([*command, "--resume", "--on-bad-image=skip"]) == 0
    assert "images that cannot be used: 1;" in capsys.readouterr().out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "could not be read and left out: 1 image\n" in capsys.readouterr().out


def test_a_file_that_is_gone_is_skipped_by_a_teacher_and_its_student(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    names = [f"{label}/{i}.png" for label in "ab" for i in range(10)]
    for i, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (80, 70), (9 * i, 0, 0)).save(tmp_path / name)
    lines = [f"{name},{name[0]},{'test' if i % 5 == 0 else 'train'}" for i, name in enumerate(names)]
    (tmp_path / "list.csv").write_text("\n".join([*lines, "a/gone.png,a,train"]))
    command = ["train", str(tmp_path / "list.csv"), "--method=gml", "--model=small", "--from-scratch", "--epochs=1"]
    assert main([*command, "--workers=0", "--on-bad-image=skip", f"--out={tmp_path / 'run'}"]) == 0
    assert "images that cannot be used: 1;" in capsys.readouterr().out
    assert "a/gone.png cannot be read (No such file" in (tmp_path / "run" / "bad_images.csv").read_text()


def test_any_other_word_is_refused(tmp_path, capsys):
    folder(tmp_path / "data", 16)
    assert main(["train", str(tmp_path / "data"), "--on-bad-image", "Skip"]) == 2
    assert "--on-bad-image is stop or skip, not 'Skip'" in capsys.readouterr().err


def test_one_class_cannot_be_trained(tmp_path):
    for i in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / "a" / f"{i}.png")
    with pytest.raises(LongtailError, match=r'all training images of .* are of the class "a"'):
        stages.load_data(Data(str(tmp_path)))
