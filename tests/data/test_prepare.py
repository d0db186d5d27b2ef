import gzip
import hashlib
import json
import shutil
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from longtail.data import benchmarks, listed, prepare
from longtail.data.prepare import ARCHIVES, missing_files
from longtail.data.prepare import prepare as run
from longtail.errors import LongtailError


def test_cifar100_as_it_lies_in_the_data_folder(shared_data):
    prepared = run("cifar100-lt", shared_data, download=False)
    assert prepared.exit_code == 0
    assert "imbalance 100: 10,847 images, the published subset" in prepared.lines
    assert "imbalance 50: 12,608 images, the published subset" in prepared.lines
    assert "imbalance 10: 19,573 images, the published subset" in prepared.lines
    assert prepared.render().endswith("\nready")


def test_nothing_there_says_exactly_what_to_put_where(tmp_path):
    for name in ARCHIVES:
        prepared = run(name, tmp_path, download=False)
        assert prepared.exit_code == 1
        assert "not ready" in prepared.render()
        for archive in () if name.startswith("cifar") else ARCHIVES[name]:
            assert archive.url in prepared.render()
    imagenet = run("imagenet-lt", tmp_path).render()
    for item in ("train", "val", "ImageNet_LT_train.txt", "ImageNet_LT_val.txt", "ImageNet_LT_test.txt"):
        assert f"WANTING  put {item} in {tmp_path / 'imagenet-lt'}: " in imagenet
    assert not list(tmp_path.iterdir()), "verifying wrote something"
    with pytest.raises(LongtailError, match="there are cifar10-lt, cifar100-lt"):
        run("imagenet", tmp_path)


def test_places_lt_with_some_of_its_images(shared_data, tmp_path):
    """The real lists; of 106,300 images two are there."""
    shutil.copytree(shared_data / "lists", tmp_path / "lists")
    folder = tmp_path / "places-lt"
    for image in ("data_256/a/airfield/00004851.jpg", "val_256/Places365_val_00003597.jpg"):
        (folder / image).parent.mkdir(parents=True)
        (folder / image).write_bytes(b"x")
    prepared = run("places-lt", tmp_path)
    assert prepared.lines[-1] == "lists as published: 106,300 images of 365 classes"
    assert len(prepared.missing) == 106_298
    assert prepared.missing[0] == "data_256/a/airfield/00004596.jpg"
    assert "106,298 of 106,300 files are missing, most of them 36,499 in val_256" in prepared.wanting[-1]
    assert prepared.exit_code == 1
    assert "  data_256/a/airfield/00004596.jpg\n" in prepared.render()
    assert f"  ... and 106,288 more; {folder / 'missing.txt'} names all\n" in prepared.render()
    assert (folder / "missing.txt").read_text().splitlines() == list(prepared.missing)
    table = benchmarks.load("places-lt", root=tmp_path)
    assert (len(table.rows("train")), len(table.rows("val")), len(table.rows("test"))) == (62_500, 7_300, 36_500)


def test_imagenet_lt_with_a_list_of_the_right_shape(shared_data, tmp_path):
    """Its training list is not to be had here; one of the published length passes, one that is short does not."""
    folder = tmp_path / "imagenet-lt"
    folder.mkdir()
    for split in ("val", "test"):
        shutil.copy(shared_data / "lists" / f"ImageNet_LT_{split}.txt.gz", folder)
    prepared = run("imagenet-lt", tmp_path)
    assert "put ImageNet_LT_train.txt" in prepared.render()
    assert "70,000 of 70,000 files are missing" in prepared.render()

    counts = [1280] + [5] * 200 + [143] * 700 + [125] * 99
    counts[-1] += 115_846 - sum(counts)
    rows = [f"train/n{c:08d}/{c}_{i}.JPEG {c}\n" for c, n in enumerate(counts) for i in range(n)]
    for image_list, says in ((rows, "lists as published: 185,846"), (rows[5:], "train images: 115,841, not 115,846")):
        (folder / "ImageNet_LT_train.txt.gz").write_bytes(gzip.compress("".join(image_list).encode(), 1))
        assert says in run("imagenet-lt", tmp_path).render()


def test_inaturalist_lists_are_made_of_its_annotations(tmp_path, monkeypatch):
    monkeypatch.setitem(listed.LISTED, "inat18", replace(
        listed.LISTED["inat18"], classes=3, images={"train": 4, "val": 1}, largest=2, smallest=1))  # fmt: skip
    folder = tmp_path / "inat18"
    names = [f"train_val2018/Aves/{c}/{i}.jpg" for i, c in enumerate([2, 0, 0, 1, 2])]
    for split, rows in {"train": range(4), "val": [4]}.items():
        (folder / "train_val2018" / "Aves").mkdir(parents=True, exist_ok=True)
        images = [{"id": i + 70, "file_name": names[i]} for i in rows]
        labels = [{"image_id": i + 70, "category_id": int(names[i].split("/")[2])} for i in reversed(rows)]
        (folder / f"{split}2018.json").write_text(json.dumps({"images": images, "annotations": labels}))
    prepared = run("inat18", tmp_path, download=False)
    assert "lists as published: 5 images of 3 classes" in prepared.lines
    assert len(prepared.missing) == 5
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    assert run("inat18", tmp_path, download=False).exit_code == 0
    table = benchmarks.load("inat18", root=tmp_path)
    assert table.counts().tolist() == [2, 1, 1]
    assert table.counts("val").tolist() == [0, 0, 1]


def test_ade20k_counts_its_images_and_annotations(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "ADE20K", {"training": 3, "validation": 1})
    folder = tmp_path / "ADEChallengeData2016"
    training = [f"ADE_train_{i:08d}" for i in range(1, 4)]
    files = [f"annotations/training/{name}.png" for name in training] + ["annotations/validation/ADE_val_00000001.png"]
    files += [f"images/training/{name}.jpg" for name in training] + ["images/validation/ADE_val_00000001.jpg"]
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    assert "all 8 files are there" in run("ade20k", tmp_path).lines
    (folder / files[1]).unlink()
    prepared = run("ade20k", tmp_path)
    assert prepared.missing == (files[1],) == ("annotations/training/ADE_train_00000002.png",)
    assert "1 of 8 files are missing, most of them 1 in annotations/training" in prepared.wanting[0]


def test_what_may_be_fetched_is_fetched_once_and_verified(tmp_path, monkeypatch):
    (tmp_path / "web").mkdir()
    with zipfile.ZipFile(tmp_path / "web" / "ADEChallengeData2016.zip", "w") as file:
        for kind, suffix in (("images", "jpg"), ("annotations", "png")):
            file.writestr(f"ADEChallengeData2016/{kind}/training/ADE_train_00000001.{suffix}", b"x")
    checksum = hashlib.md5((tmp_path / "web" / "ADEChallengeData2016.zip").read_bytes()).hexdigest()
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "web"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/ADEChallengeData2016.zip"
    archive = replace(ARCHIVES["ade20k"][0], url=url, checksum=f"md5:{checksum}")
    monkeypatch.setitem(ARCHIVES, "ade20k", (archive,))
    monkeypatch.setattr(prepare, "ADE20K", {"training": 1, "validation": 0})
    said = []
    prepared = run("ade20k", tmp_path / "data", say=said.append)
    assert said == [f"fetching {url} (1 GB) to {tmp_path / 'data'}. {prepare.TERMS['ade20k']}"]
    server.shutdown()
    server.server_close()
    assert prepared.exit_code == 0
    assert "fetched ADEChallengeData2016 (1 GB, md5 as published)" in prepared.render()
    assert "all 2 files are there" in prepared.render()
    assert run("ade20k", tmp_path / "data").exit_code == 0, "it needed the server again"
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["ADEChallengeData2016"]


def test_without_a_network_it_says_what_to_put_where_and_looks_at_the_rest(shared_data, tmp_path, monkeypatch):
    for name in ("places-lt", "cifar100-lt"):
        nowhere = tuple(replace(a, url=f"http://127.0.0.1:9/{a.name}") for a in ARCHIVES[name])
        monkeypatch.setitem(ARCHIVES, name, nowhere)
    shutil.copytree(shared_data / "lists", tmp_path / "lists")
    places = run("places-lt", tmp_path)
    assert places.exit_code == 1
    for archive in ("train_256_places365standard.tar", "val_256.tar"):
        assert f"Or put {archive} in {tmp_path / 'places-lt'} yourself, and run this again." in places.render()
    assert "lists as published: 106,300 images of 365 classes" in places.lines
    assert len(places.missing) == 106_300
    cifar = run("cifar100-lt", tmp_path)
    assert cifar.exit_code == 1
    assert f"Or put cifar-100-python.tar.gz in {tmp_path} yourself" in cifar.render()


def test_missing_files_of_the_root_itself(tmp_path):
    (tmp_path / "there.jpg").touch()
    assert missing_files(tmp_path, ["there.jpg", "gone.jpg", "a/b.jpg"]) == ["gone.jpg", "a/b.jpg"]


def test_a_list_that_is_absent_is_named(tmp_path):
    with pytest.raises(LongtailError, match=r"inat18 lacks iNaturalist18_train.txt, iNaturalist18_val.txt in "):
        benchmarks.load("inat18", root=tmp_path)
