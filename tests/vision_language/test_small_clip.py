"""The small CLIP of one's own: what its captions give away, what it may see, and what it leaves behind."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from longtail import small_clip
from longtail.data.table import ImageTable, PixelStore
from longtail.engine.queue import Job, work
from longtail.vision_language.captions import COLOURS, KIND_OF, captions, colours, sentences
from longtail.vision_language.clip import ImageTower, TextTower

CLASSES = ("apple", "lawn_mower", "dog")


def flat(colour, count=1):
    """Images of one colour, with another at the border."""
    images = np.full((count, 32, 32, 3), COLOURS["blue"], np.uint8)
    images[:, 8:24, 8:24] = COLOURS[colour]
    return images


def test_colours_are_those_of_the_middle_and_of_the_border():
    found = colours(np.concatenate([flat("red"), flat("yellow")]))
    names = list(COLOURS)
    assert [[names[i] for i in row] for row in found] == [["red", "blue"], ["yellow", "blue"]]


def test_a_caption_says_the_class_its_kind_and_colours_and_nothing_else():
    labels, found = np.array([1] * 70), np.array([[3, 7]] * 70)  # red on blue
    said = set(captions(CLASSES, labels, found, torch.arange(70) / 70))
    assert len(said) == 7
    assert "a red lawn mower." in said
    assert "a lawn mower on a blue background." in said
    for caption in said:
        rest = caption.replace("lawn mower", "").replace(KIND_OF["lawn_mower"], "").replace("a photo of", "")
        assert set(re.findall(r"\w+", rest)) <= {"a", "red", "on", "blue", "background"}


def test_every_class_of_both_data_sets_has_a_kind():
    assert len(KIND_OF) == 110


def test_sentences_are_all_that_captions_say_of_a_class_by_name():
    said = sentences("lawn_mower")
    assert len(said) == len(set(said)) == 3 * len(COLOURS) + 1
    assert all("lawn mower" in sentence for sentence in said)


def table(pixels, split, classes=CLASSES):
    labels = np.arange(len(pixels)) % len(classes)
    return ImageTable(classes, labels.astype(np.int32), np.array(split, np.uint8), PixelStore(pixels, "x"), name="x")


def test_an_image_of_the_test_is_not_trained_on():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    pixels[5] = pixels[1]  # the test image is also the second training image
    tail = table(pixels, [0, 0, 0, 0, 0, 2])
    other = table(np.concatenate([pixels[5:], flat("red")]), [0, 0], ("cat", "frog"))
    data = small_clip.captioned([other, tail], test=tail)
    assert data.classes == ("cat", "frog", *CLASSES)
    assert data.labels.tolist() == [1, 2, 4, 2, 3]  # of the tail, rows 0, 2, 3 and 4
    assert torch.equal(data.pixels[1:].permute(0, 2, 3, 1), torch.from_numpy(pixels[[0, 2, 3, 4]]))


@pytest.fixture
def data():
    pixels = np.concatenate([flat(colour, 4) for colour in ("red", "green", "brown")])
    labels = np.arange(3).repeat(4)
    return small_clip.Captioned(torch.from_numpy(pixels).permute(0, 3, 1, 2), labels, CLASSES, colours(pixels))


def test_it_carries_on_to_the_bit_and_is_a_clip_like_any_other(data, tmp_path, monkeypatch):
    for name in ("straight", "stopped"):
        (tmp_path / name).mkdir()
    done = small_clip.pretrain(data, tmp_path / "straight", epochs=2, batch_size=6)
    assert done["summary"]["images"] == 12

    class Killed(Exception):
        pass

    calls = iter(range(100))

    def until_killed(*arguments):
        if next(calls) == 3:  # in the second step of the second epoch
            raise Killed
        return captions(*arguments)

    monkeypatch.setattr(small_clip, "captions", until_killed)
    with pytest.raises(Killed):
        small_clip.pretrain(data, tmp_path / "stopped", epochs=2, batch_size=6)
    monkeypatch.setattr(small_clip, "captions", captions)
    small_clip.pretrain(data, tmp_path / "stopped", epochs=2, batch_size=6)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("straight", "stopped"))
    torch.testing.assert_close(other, one, rtol=0, atol=0)
    assert not (tmp_path / "stopped" / "state.pt").exists()

    name = f"clip:{tmp_path / 'straight'}"
    tower = TextTower(name, pretrained=True)
    known = set(tower.tokenize(["a photo of a red lawn mower."]).unique().tolist())
    embedded = tower.text.token_embedding.weight.abs().sum(1) > 0
    assert embedded[list(known)].all()
    assert embedded.sum() < 200  # the rest of the vocabulary was never said
    assert tower.scale.item() == pytest.approx(done["summary"]["scale"])
    images = torch.randn(2, 3, 32, 32)
    assert ImageTower(name, pretrained=True).eval()(images).shape == (2, 128)


def test_a_queue_runs_it_and_keeps_what_the_next_job_starts_from(data, tmp_path, monkeypatch):
    """In this process, with other data; that a module is run as one is seen in the command."""
    tail = table(flat("red", 6), [0, 0, 0, 2, 2, 2])
    monkeypatch.setattr(small_clip.benchmarks, "load", lambda *_, **__: tail)
    monkeypatch.setattr(small_clip, "captioned", lambda *_, **__: data)
    monkeypatch.setattr(small_clip.pretrain, "__kwdefaults__", small_clip.pretrain.__kwdefaults__ | {"batch_size": 4})
    commands = []

    class Ran:
        def __init__(self, command, **_):
            commands.append(command)
            assert small_clip.main(command[3:]) == 0

        def wait(self):
            return 0

    here = SimpleNamespace(Popen=Ran, STDOUT=None, DEVNULL=None)
    monkeypatch.setattr("longtail.engine.queue.subprocess", here)
    job = Job("small", ("longtail.small_clip", "--epochs", "1", "--seed", "3"))
    assert job.command == "python -m longtail.small_clip --epochs 1 --seed 3"
    (outcome,) = work([job], tmp_path / "runs", tmp_path / "results", lambda _: None)
    assert outcome.how == "done"
    assert commands[0][1:3] == ["-m", "longtail.small_clip"]
    kept = tmp_path / "results" / "runs" / "small"
    expected = {"open_clip_config.json", "model.safetensors", "corpus.jsonl"}
    expected |= {"config.json", "metrics.jsonl", "result.json"}
    assert {path.name for path in kept.iterdir()} == expected
    entry = json.loads((tmp_path / "results" / "small.json").read_text())
    assert (entry["method"], entry["seed"], entry["epochs"]) == ("small_clip", 3, 1)
    assert "loss" in entry["summary"]
    assert str(tmp_path) not in json.dumps(entry)
    assert TextTower(f"clip:{kept}", pretrained=True).tokenize(["a dog"]).shape == (1, 24)
    assert small_clip.main([*commands[0][3:]]) == 0  # a finished one is left as it is
