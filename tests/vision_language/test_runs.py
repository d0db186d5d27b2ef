"""Whole runs: every method on a CLIP, stopped and resumed, saved and asked again, and as a user types it."""

import json
import shutil
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_clip import save_clip

from longtail.cli import main
from longtail.engine import device as devices
from longtail.engine import stages, trained
from longtail.engine.inputs import Inputs
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted
from longtail.errors import LongtailError
from longtail.methods import find
from longtail.recipe import Data, Optim, Recipe, Stage
from longtail.reproduce import dry_run
from longtail.vision_language.clip import Name

CPU = devices.choose("float32", "cpu")
ADAMW = Optim(kind="adamw", lr=1e-3, weight_decay=0.05, rates={"objective.tower.": 0.1, "objective.": 10.0})
METHODS = ("zero_shot", "lift", "vl_ltr", "gml_text", "ncm", "crt", "tau_norm", "lws")


@pytest.fixture(scope="module")
def digits():
    return stages.load_data(Data("digits-lt", imbalance=50))


def recipe(model, method, **settings):
    base = Stage(method=method, model=model, pretrained=True, epochs=2, batch_size=64, augment="shift", optim=ADAMW)
    if method == "vl_ltr":
        settings = {"templates": "simple"} | settings  # its own 80 take their time
    base = replace(base, settings=settings, epochs=0 if method == "zero_shot" else 2)
    return Recipe(Data("digits-lt", imbalance=50), find(method).stages(base), evaluate_every=2)


def run(recipe, table, folder, stop_after=None):
    steps = iter(range(10**9))

    def stop_requested():
        return 15 if stop_after is not None and next(steps) >= stop_after else None

    quiet = Progress(StringIO())
    return stages.run(recipe, table, folder, CPU, progress=quiet, stop_requested=stop_requested, use_cache=False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_a_clip_and_answers_the_same_from_disk(method, vit, digits, tmp_path):
    chosen = recipe(vit, method)
    finished = run(chosen, digits, tmp_path / "run")[-1]
    model = trained.load(tmp_path / "run")
    test = Inputs.of(chosen, digits, CPU).plain("test")
    counted = stages.count(model.scores, test, 10, CPU)
    assert counted.correct.sum() / counted.n.sum() == pytest.approx(finished.summary["accuracy"])


def test_the_kernel_answers_from_disk_too(vit, digits, tmp_path):
    run(recipe(vit, "gml_text"), digits, tmp_path)
    model = trained.load(tmp_path)
    assert "kernel" in model.heads
    assert model(torch.randn(2, 3, 32, 32), head="kernel").isfinite().all()


@pytest.mark.parametrize(("method", "stop_after"), [("gml_text", 3), ("vl_ltr", 3), ("vl_ltr", 13)])  # 10 steps a stage
def test_a_stopped_run_carries_on_to_the_bit(method, stop_after, resnet, digits, tmp_path):
    chosen = recipe(resnet, method, anchors=3)
    run(chosen, digits, tmp_path / "straight")
    with pytest.raises(Interrupted):
        run(chosen, digits, tmp_path / "stopped", stop_after=stop_after)
    run(chosen, digits, tmp_path / "stopped")
    both = [trained.load(tmp_path / name).method.state_dict() for name in ("straight", "stopped")]
    torch.testing.assert_close(*both, rtol=0, atol=0)


def test_recognition_reads_with_the_tower_that_was_trained(vit, digits, tmp_path):
    """Same sentences, but the contrast stage has moved the text tower, so their features have moved."""
    run(recipe(vit, "vl_ltr"), digits, tmp_path)
    moved = trained.load(tmp_path).method.objective.likelihood.anchors
    frozen = stages.build_method(recipe(vit, "vl_ltr").stages[-1], digits, tmp_path)
    recognition = replace(recipe(vit, "vl_ltr").stages[-1], start_from="")
    plain = stages.build_method(recognition, digits, tmp_path).objective.likelihood.anchors
    assert frozen.objective.bank is not None
    assert not torch.allclose(moved, plain, atol=1e-4)
    contrast = trained.load(tmp_path / "contrast")
    after = trained.load(tmp_path).method.backbone.state_dict()
    for name, tensor in contrast.method.backbone.state_dict().items():
        assert torch.equal(tensor, after[name])  # the second stage trains the head alone


def test_a_cached_stage_is_not_taken_for_another_clip_in_the_same_folder(digits, tmp_path):
    name = save_clip(tmp_path / "clip", "vit", seed=0)
    chosen = recipe(name, "crt")
    first = stages._cache_folder(chosen, 0, digits)
    assert stages._cache_folder(chosen, 0, digits) == first
    shutil.rmtree(tmp_path / "clip")
    save_clip(tmp_path / "clip", "vit", seed=1)
    assert stages._cache_folder(chosen, 0, digits) != first


def test_a_dry_run_has_as_many_sentences_as_may_be_kept_and_needs_neither_weights_nor_corpus(vit, tmp_path, capsys):
    settings = {"sentences": "nowhere", "templates": "openai", "anchors": 3}
    stage = Stage(method="gml_text", model=vit, pretrained=True, settings=settings, epochs=1, batch_size=16)
    (tmp_path / "open_clip_config.json").write_text((Name.parse(vit).folder / "open_clip_config.json").read_text())
    for model in (vit, f"clip:{tmp_path}"):  # the second has no weights
        chosen = Recipe(Data("cifar10-lt", str(tmp_path), 1000), (replace(stage, model=model),), precision="float32")
        dry_run("small", chosen, device="cpu", out=tmp_path / "cost.json")
        assert "the images are generated" in capsys.readouterr().out
        (cost,) = json.loads((tmp_path / "cost.json").read_text())["stages"]
        assert cost["bank"] == [10 * 3, 32]
        assert 0 < cost["loss"] < 100


def test_a_backbone_that_cannot_read(digits, tmp_path):
    with pytest.raises(LongtailError, match="gml_text reads sentences and small cannot: choose a CLIP"):
        stages.build_method(Stage(method="gml_text", model="small"), digits, tmp_path)


@pytest.fixture
def photographs(tmp_path):
    generator = np.random.default_rng(0)
    for label, count in (("red_fox", 24), ("Żubr", 6)):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(count):
            pixels = generator.integers(0, 256, (70, 90, 3), dtype=np.uint8)
            pixels[..., 0 if label == "red_fox" else 2] //= 4
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path / "images"


def test_as_a_user_types_it(vit, photographs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.jsonl").write_text('{"class": "red_fox", "sentence": "The red fox hunts mice."}\n')
    train = ["train", str(photographs), "--method", "gml_text", "--clip", vit.removeprefix("clip:"), "--workers=0"]
    short = ["--epochs=1", "--batch-size=8", "--device=cpu"]
    assert main([*train, *short, "--sentences", "corpus.jsonl", "--out=run"]) == 0
    shown = capsys.readouterr().out
    assert "text: 7 templates around the class name, and 1 sentence from corpus.jsonl" in shown
    assert "no sentence about 1 class (Żubr): the name alone is used" in shown
    assert "gml_text (train)" in shown
    assert main([*train, *short, "--dry-run"]) == 0
    assert "text: 7 templates around the class name, no corpus of sentences" in capsys.readouterr().out
    assert main(["evaluate", "run", "--prior", "uniform"]) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method=cross_entropy", "--sentences=x.jsonl"], "cross_entropy reads no sentences"),
        (["--method=gml_text", "--sentences=nowhere.jsonl"], "there are no sentences at nowhere.jsonl"),
        (["--method=gml_text", "--model=small"], "--clip stands in the place of --model"),
    ],
)
def test_mistakes_on_the_command_line(arguments, told, vit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "digits-lt", "--clip", vit.removeprefix("clip:"), *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_the_width_of_lifts_adapters_follows_from_the_classes(vit, capsys):
    train = ["train", "digits-lt", "--clip", vit.removeprefix("clip:"), "--method", "lift", "--print-config"]
    assert main(train) == 0
    assert f'"model": "{vit}+adaptformer2"' in capsys.readouterr().out  # 10 classes over twice 2 blocks
    assert main([*train[:3], f"{vit.removeprefix('clip:')}+lora4", *train[4:]]) == 0
    assert f'"model": "{vit}+lora4"' in capsys.readouterr().out
