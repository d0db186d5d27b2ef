"""The command line as a person types it: help at once, one sentence for a mistake, nothing left behind."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from longtail.cli import main
from longtail.data.benchmarks import BENCHMARKS, FOLDERS
from longtail.engine.stages import load_data
from longtail.methods import METHODS
from longtail.segmentation.sources import NAMED


def longtail(*arguments, cwd):
    return subprocess.run([sys.executable, "-m", "longtail", *arguments], cwd=cwd, capture_output=True, text=True)


def test_help_imports_nothing_heavy(tmp_path):
    code = "import sys, longtail.cli; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


def test_help_names_every_verb(tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in ("demo", "train", "evaluate", "serve", "list"))


def test_help_begins_as_the_readme_does(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    readme = " ".join((Path(__file__).parents[1] / "README.md").read_text().split())
    assert readme.split("**")[1] in shown
    assert "--version" in shown


def test_what_there_is_to_choose_from_is_all_there_is(capsys):
    names = {*BENCHMARKS, *FOLDERS, *NAMED}
    assert main(["list", "datasets"]) == 0
    assert names <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert names <= set(re.findall(r"[\w-]+", capsys.readouterr().out))
    assert main(["list", "methods"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", head)[:5] == [
        "method",
        "likelihood",
        "samples or centres",
        "prior in training",
        "numerator",
    ]
    shown = {row[0]: tuple(row[1:]) for row in (re.split(r"\s{2,}", row) for row in rows)}
    assert shown == {
        m.name: (m.likelihood, m.samples, m.prior, m.numerator, m.weight, m.paper) for m in METHODS.values()
    }


def test_train_then_evaluate(tmp_path):
    ran = longtail("train", "digits-lt", "--method", "gml", "--model", "small", "--epochs=2", "--out=run", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "gml (student)" in ran.stdout
    assert "logit_adjusted (teacher)" in ran.stdout  # a student's number stands beside its teacher's
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {"config.json", "classes.csv", "metrics.jsonl", "per_class.csv", "result.json", "teacher"}
    assert written >= {"model.safetensors", "model.json", "backbone.safetensors", "bank.safetensors"}
    again = longtail("evaluate", "run", "--prior", "uniform", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "worst-10%" in again.stdout
    repeated = longtail("train", "--config", "run/config.json", "--out", "repeat", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    assert (tmp_path / "run/per_class.csv").read_text() == (tmp_path / "repeat/per_class.csv").read_text()


def test_print_config_is_a_config(tmp_path, capsys):
    assert main(["train", "digits-lt", "--print-config", "--set", "k_m=3", "--set", "teacher.epochs=7"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stages"][-1]["settings"]["k_m"] == 3
    assert printed["stages"][0]["epochs"] == 7
    (tmp_path / "again.json").write_text(json.dumps(printed))
    assert main(["train", "--config", str(tmp_path / "again.json"), "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out) == printed


def test_dry_run_writes_nothing(tmp_path):
    ran = longtail("train", "digits-lt", "--model", "small", "--dry-run", "--out", "run", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert "preflight ok" in ran.stdout
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere/"], "does not exist"),
        (["digits-lt", "--method", "glm"], "did you mean 'gml'"),
        (["digits-lt", "--model", "resnet_32"], "did you mean 'resnet32'"),
        (["digits-lt", "--augment", "autoaugmnt"], "autoaugment"),
        (["digits-lt", "--set", "k_n=3"], "k_m"),
        (["digits-lt", "--set", "optim.lrr=3"], "did you mean 'lr'"),
        (["digits-lt", "--set", "k=5"], "lower k_m"),
        (["digits-lt", "--teacher", "no/run/"], "no/run"),
        (["digits-lt", "--method=cross_entropy", "--teacher=resnet56"], "cross_entropy has no stage with a teacher"),
        (["digits-lt", "--method=paco", "--teacher=resnet56"], "paco has no stage with a teacher"),
        (["digits-lt", "--lr", "0"], "--lr: 0 moves no weight"),
        (["digits-lt", "--epochs", "-1"], "longtail: --epochs: -1 is less than 0"),
        (["digits-lt", "--batch-size", "0"], "--batch-size: 0 is less than 1"),
        (["digits-lt", "--seed", "-1"], "--seed: -1 is less than 0"),
        (["digits-lt", "--subset-seed", "-1"], "--subset-seed: -1 is less than 0"),
        (["digits-lt", "--imbalance", "0"], "an imbalance of 1 or more"),
        (["digits-lt", "--device", "bogus"], "--device is auto, cpu, cuda or mps, not 'bogus'"),
        (["digits-lt", "--device", "cuda:99"], "this machine has no device 'cuda:99'"),
        (["--config", "none.json"], "cannot read the config"),
        ([], "say what to train on"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["train", *arguments, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.startswith("longtail: ")
    assert error.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_a_demo_without_seeds_is_refused(tmp_path, capsys):
    assert main(["demo", "--seeds", "0", "--out", str(tmp_path / "demo")]) == 2
    assert capsys.readouterr().err == "longtail: --seeds is 1 or more, not 0\n"


def test_a_mistyped_flag_is_answered_with_the_nearest(capsys):
    with pytest.raises(SystemExit) as done:
        main(["train", "digits-lt", "--epoch", "3"])
    assert done.value.code == 2
    assert "--epochs" in capsys.readouterr().err


def test_my_images_and_nothing_else_said(tmp_path, monkeypatch, capsys):
    my_images(tmp_path / "my_images", {"okapi": 40, "zebra": 12, "emu": 4})
    monkeypatch.chdir(tmp_path)
    assert main(["train", "my_images/", "--model", "small", "--from-scratch", "--dry-run", "--workers", "0"]) == 0
    printed = capsys.readouterr().out
    for line in (
        "test: 11 of 56 training images held out",
        "my_images: 3 classes, 45 train, 11 test",
        "method gml: long-tailed",
        "90 epochs: larger images",
        "bank of 64 samples: 3 classes, 45 images",
        "sgd from 0.0125 for batch 16, cosine, 4.5 epochs of warm-up | views: randaugment",
        "preflight ok",
    ):
        assert line in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my_images"]


def my_images(folder, counts):
    from PIL import Image

    for label, n in counts.items():
        (folder / label).mkdir(parents=True)
        for i in range(n):
            Image.new("RGB", (90, 70), (6 * i, n, 0)).save(folder / label / f"{i}.png")
    return folder


@pytest.fixture
def begun(monkeypatch):
    """The recipes and tables of trainings, which are not trained."""
    found = []
    monkeypatch.setattr(
        "longtail.engine.session.train_run", lambda recipe, table, *_, **__: found.append((recipe, table))
    )
    return found


def test_data_are_loaded_as_the_config_will_say(tmp_path, begun):
    """Or `evaluate`, which reads the config, asks about images that were trained on."""
    mine = my_images(tmp_path / "mine", {"okapi": 20, "zebra": 10})
    command = ["train", str(mine), "--method", "cross_entropy", "--set", "data.test_fraction=0.6"]
    assert main([*command, "--set", "data.val_fraction=0.25"]) == 0
    recipe, table = begun[0]
    assert (recipe.data.test_fraction, recipe.data.val_fraction) == (0.6, 0.25)
    assert np.array_equal(table.split, load_data(recipe.data).split)
    assert len(table.rows("test")) == 18
    assert main(["train", "digits-lt", "--set", "data.imbalance=5"]) == 0
    recipe, table = begun[1]
    assert table.counts().max() / table.counts().min() < 6
    assert np.array_equal(table.images.pixels, load_data(recipe.data).images.pixels)


def test_a_config_hears_three_dials_and_refuses_the_others(tmp_path, begun, capsys):
    assert main(["train", "digits-lt", "--method", "cross_entropy", "--seed", "3", "--print-config"]) == 0
    config = tmp_path / "config.json"
    config.write_text(capsys.readouterr().out)
    assert main(["train", "--config", str(config)]) == 0
    assert (begun[0][0].seed, begun[0][0].precision) == (3, "auto")
    assert main(["train", "--config", str(config), "--seed=0", "--precision=float32", f"--data-root={tmp_path}"]) == 0
    recipe, _ = begun[1]
    assert (recipe.seed, recipe.precision, recipe.data.root) == (0, "float32", str(tmp_path))
    for option in ("--epochs=7", "--method=gml", "--lr=0.1", "--hold-out=0.1", "--subset-seed=1", "--from-scratch"):
        assert main(["train", "--config", str(config), option]) == 2
        name = option.partition("=")[0]
        assert capsys.readouterr().err == f"longtail: {name} is said by {config}: leave it out, or say it with --set\n"
    assert main(["train", "digits-lt", "--config", str(config)]) == 2
    assert "leave 'digits-lt' out, or say --set data.source=digits-lt" in capsys.readouterr().err
    assert len(begun) == 2


def test_a_benchmark_that_is_lists_is_taken_as_it_is(tmp_path, capsys):
    from PIL import Image

    (tmp_path / "imagenet-lt").mkdir()
    for split, labels in {"train": [0] * 9 + [1], "val": [0, 1], "test": [0, 1]}.items():
        for i in range(len(labels)):
            Image.new("RGB", (80, 80), (i, 0, 0)).save(tmp_path / "imagenet-lt" / f"{split}{i}.png")
        lines = [f"{split}{i}.png {label}\n" for i, label in enumerate(labels)]
        (tmp_path / "imagenet-lt" / f"ImageNet_LT_{split}.txt").write_text("".join(lines))
    command = ["train", "imagenet-lt", "--data-root", str(tmp_path), "--from-scratch"]
    assert main([*command, "--print-config"]) == 0  # it was cut once more, and had no image of the rare classes left
    assert json.loads(capsys.readouterr().out)["data"]["imbalance"] is None


def test_a_warning_is_one_line_without_code(tmp_path):
    from PIL import Image

    (tmp_path / "mine" / "a").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "mine" / "a" / "1.png")
    (tmp_path / "mine" / "a" / "notes.txt").touch()
    ran = longtail("inspect", "mine", "--out", "out", cwd=tmp_path)
    assert ran.stderr == "longtail: mine: files that are no images were passed over (1 .txt).\n"
    assert "saved out: inspect.json, counts.png" in ran.stdout
