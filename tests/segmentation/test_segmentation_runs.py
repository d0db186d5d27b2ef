"""From a folder of pairs to a run folder and back, through the engine's own loop."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from scenes import CLASSES, write_pairs

from longtail.cli import main
from longtail.engine import device as devices
from longtail.engine.logs import Progress
from longtail.engine.loop import Interrupted
from longtail.errors import LongtailError
from longtail.files import write_json
from longtail.prior import log_prior
from longtail.recipe import Data, Optim, Pixels, Recipe, Stage, from_dict, to_dict
from longtail.segmentation import answers, is_segmentation, metrics, model, sources, stages
from longtail.segmentation.predict import predict

CPU = devices.choose("float32", "cpu")
PIXELS = Pixels(crop=(48, 64), scale=(0.8, 1.25), output_stride=8, steps=10, queries=32, keys=16)
GML = {"k": 128, "k_m": 8, "tau_s": 0.05, "tau_g": 0.07, "alpha": 1.0, "alpha_cls": 1.0}


def recipe_of(source, method="gml", epochs=3, **changes) -> Recipe:
    settings = {"gml": GML, "logit_adjusted": {"tau_s": 0.05}, "cross_entropy": {}}[method] | changes
    stage = Stage(
        method=method,
        settings=settings,
        model="resnet10t",
        epochs=epochs,
        batch_size=4,
        optim=Optim(lr=0.02, schedule="poly"),
    )
    if method != "gml":
        return Recipe(Data(str(source)), (stage,), evaluate_every=epochs, pixels=PIXELS)
    teacher = replace(stage, name="teacher", method="logit_adjusted", settings={"tau_s": 0.05}, epochs=1)
    return Recipe(Data(str(source)), (teacher, replace(stage, keys="teacher")), evaluate_every=epochs, pixels=PIXELS)


def run(recipe, out, **options):
    table = sources.load(recipe.data.source)
    finished = stages.run(recipe, table, out, CPU, progress=Progress(None), workers=0, **options)
    write_json(out / "config.json", {"recipe": to_dict(recipe)})  # which a session does before
    return finished


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("scenes"), 16, 8)


@pytest.fixture(scope="module")
def trained(scenes, tmp_path_factory):
    """One run of GML with its teacher, as the command line leaves it."""
    out = tmp_path_factory.mktemp("runs") / "gml"
    config = out.parent / "recipe.json"
    config.write_text(json.dumps(to_dict(replace(recipe_of(scenes, epochs=8), precision="float32"))))
    assert main(["train", "--config", str(config), "--out", str(out), "--workers", "0", "--device", "cpu"]) == 0
    return out


def test_it_learns(trained):
    """At alpha 1 it is the likelihood that is trained: good for every class alike, and for IoU only under the prior."""
    result = json.loads((trained / "result.json").read_text())
    assert result["summary"]["macc"] > 0.75
    opened = answers.open_run(trained, device="cpu")
    assert metrics.summarise(answers.evaluate(opened, "train"), opened.groups)["miou"] > 0.6
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert {"cls", "aux", "gml", "loss", "lr"} <= set(rows[-1])
    assert rows[-1]["gml"] < rows[0]["gml"]
    assert is_segmentation(trained)
    assert (trained / "classes.csv").read_text().splitlines()[-1].startswith("3,ball,")


def test_a_model_comes_back_as_it_was(trained):
    opened = answers.open_run(trained, device="cpu")
    again = np.loadtxt(trained / "per_class.csv", delimiter=",", skiprows=1, usecols=(5, 6), dtype=int)
    matrix = answers.evaluate(opened)
    assert matrix.sum(0).tolist() == again[:, 1].tolist()
    assert np.diag(matrix).tolist() == again[:, 0].tolist()
    images = torch.randn(2, 3, 50, 66)
    assert opened.model(images).shape == (2, len(CLASSES), 50, 66)
    # Trained at alpha 1: what was trained is the likelihood.
    assert torch.allclose(opened.model(images), opened.model.scores(images), atol=1e-6)


def test_a_prior_moves_answers_towards_its_classes(trained):
    opened = answers.open_run(trained, device="cpu")
    uniform, train = (answers.evaluate(opened, prior) for prior in ("uniform", "train"))
    ball = CLASSES.index("ball")
    assert uniform[:, ball].sum() > train[:, ball].sum()
    moved = answers.sweep(opened, [0.0, 1.0])  # alpha 0 answers with the whole prior, alpha 1 with none
    assert np.array_equal(moved[0], train)
    assert np.array_equal(moved[1], uniform)


def test_resume_is_exact(scenes, tmp_path):
    recipe = replace(recipe_of(scenes, epochs=2), pixels=replace(PIXELS, steps=4))
    run(recipe, tmp_path / "whole")
    asked = iter([*[None] * 9, 15])
    with pytest.raises(Interrupted):
        run(recipe, tmp_path / "cut", stop_requested=lambda: next(asked, 15))
    assert not (tmp_path / "cut/result.json").exists()
    run(recipe, tmp_path / "cut")
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_a_class_without_pixels_is_never_answered(scenes, tmp_path):
    source = shutil.copytree(scenes, tmp_path / "data")
    with open(source / "classes.csv", "a") as file:
        file.write("unicorn,1,2,3\n")
    recipe = replace(recipe_of(source, "logit_adjusted", epochs=1), pixels=replace(PIXELS, steps=2))
    run(recipe, tmp_path / "run")
    opened = answers.open_run(tmp_path / "run", device="cpu")
    assert answers.evaluate(opened)[:, 4].sum() == 0
    assert answers.evaluate(opened, "uniform")[:, 4].sum() == 0


def test_void_crops_and_small_images(scenes, tmp_path):
    """Half of the images are void altogether, and all are smaller than the crop."""
    source = shutil.copytree(scenes, tmp_path / "data")
    for path in sorted((source / "masks/train").iterdir())[::2]:
        Image.fromarray(np.full((48, 64), 255, np.uint8)).save(path)
    recipe = replace(recipe_of(source, epochs=1), pixels=replace(PIXELS, steps=4, crop=(80, 96)))
    summary = run(recipe, tmp_path / "run")[-1].summary
    assert np.isfinite(summary["miou"])
    for path in (source / "masks/train").iterdir():
        Image.fromarray(np.full((48, 64), 255, np.uint8)).save(path)
    with pytest.raises(LongtailError, match="no labelled training pixel"):
        run(recipe, tmp_path / "void")


@pytest.mark.parametrize("architecture", ["deeplabv3plus"])
def test_another_architecture_through_the_same_losses(scenes, tmp_path, architecture):
    pixels = replace(PIXELS, architecture=architecture, output_stride=16, steps=2, inference="slide")
    summary = run(replace(recipe_of(scenes, epochs=1), pixels=pixels), tmp_path / "run")[-1].summary
    assert 0 < summary["aacc"] < 1


def test_poly_schedule_is_mmsegmentations():
    from longtail.engine.optim import learning_rate

    optim, steps = Optim(lr=0.01, schedule="poly"), 160_000
    for step in (0, 1, 40_000, 159_999):
        expected = (0.01 - 1e-4) * (1 - step / steps) ** 0.9 + 1e-4
        assert learning_rate(optim, step / 4_000, 40) == pytest.approx(expected, rel=1e-12)


def test_predict_paints_masks_and_overlays(trained, scenes, tmp_path, capsys):
    broken = tmp_path / "broken.png"
    broken.write_text("no picture")
    folder = scenes / "images/test"
    assert main(["predict", str(trained), str(folder), "--out", str(tmp_path / "masks"), "--device", "cpu"]) == 0
    mask = Image.open(tmp_path / "masks/000.png")
    assert mask.mode == "P"
    opened = answers.open_run(trained, device="cpu")
    assert np.asarray(mask).max() < len(CLASSES)
    shown = np.asarray(mask.convert("RGB"))
    assert np.array_equal(shown, opened.model.palette[np.asarray(mask)])
    assert Image.open(tmp_path / "masks/000_overlay.png").size == (64, 48)
    # A painted mask is one that can be trained on.
    table = sources.load(scenes)
    assert np.array_equal(np.unique(table.masks.coding.by_value[np.asarray(mask)]), np.unique(np.asarray(mask)))
    with pytest.warns(UserWarning, match=r"broken.png cannot be decoded"):
        assert predict(opened, [folder, broken], tmp_path / "more") == (8, 1)


def test_painting_needs_no_training_data(trained, scenes, tmp_path, capsys):
    """A model goes where its images do not; the prior of its training is in its card."""
    moved = shutil.copytree(trained, tmp_path / "run")
    config = json.loads((moved / "config.json").read_text())
    config["recipe"]["data"]["source"] = "gone/"
    write_json(moved / "config.json", config)
    predict_there = ["predict", str(moved), str(scenes / "images/test"), "--device", "cpu"]
    for prior in ("as-trained", "uniform", "train"):
        painted = [tmp_path / place / prior for place in ("here", "there")]
        for command, out in zip((["predict", str(trained), *predict_there[2:]], predict_there), painted, strict=True):
            assert main([*command, "--prior", prior, "--out", str(out)]) == 0
        assert (painted[0] / "000.png").read_bytes() == (painted[1] / "000.png").read_bytes()
    assert main([*predict_there, "--prior", "test"]) == 2  # the mix of those images is known to their masks alone
    assert "gone" in capsys.readouterr().err


def test_evaluate_on_the_command_line(trained, scenes, tmp_path, capsys):
    assert main(["evaluate", str(trained), "--prior", "uniform", "--device", "cpu"]) == 0
    assert "prior uniform" in capsys.readouterr().out
    saved = json.loads((trained / "eval/test-uniform/report.json").read_text())
    assert np.array(saved["confusion"]).sum() == saved["summary"]["pixels"]
    prior = tmp_path / "prior.csv"
    prior.write_text("sky,0.5\nground,0.5\nbox,0\nball,0\n")
    assert main(["evaluate", str(trained), "--prior", str(prior), "--data", str(scenes), "--device", "cpu"]) == 0
    (folder,) = (trained / "eval").glob("test-prior-*")  # named apart from what another prior.csv or --data is called
    saved = json.loads((folder / "report.json").read_text())
    assert np.array(saved["confusion"])[:, 2:].sum() == 0  # what cannot be there is not answered
    assert main(["evaluate", str(trained), "--prior", "nowhere", "--device", "cpu"]) == 2
    assert main(["evaluate", str(trained), "--split", "train", "--device", "cpu"]) == 0
    saved = json.loads((trained / "eval/train-as-trained/report.json").read_text())
    assert saved["summary"]["pixels"] == sources.load(scenes).counts("train").sum()
    capsys.readouterr()
    assert main(["evaluate", str(trained), "--split", "val", "--device", "cpu"]) == 2
    assert "no images in a split 'val': it has train, test" in capsys.readouterr().err
    image = str(scenes / "images/test/000.png")
    for command in (
        ("evaluate", "--head", "kernel"),
        ("predict", image, "--resize"),
        ("predict", image, "--batch-size", "8"),
        ("export", "--images", image),
    ):
        assert main([command[0], str(trained), *command[1:]]) == 2
        assert "is for classifiers of images" in capsys.readouterr().err


def test_mistakes_are_found_before_anything_is_trained(scenes, tmp_path, capsys):
    def refused(*arguments):
        assert main(["train", str(scenes), "--task", "segmentation", "--out", str(tmp_path / "run"), *arguments]) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err

    assert "no method 'paco'" in refused("--method", "paco") or "no method" in refused("--method", "paco")
    assert "did you mean 'segmentation'" in refused("--task", "segment") or "--task is" in refused("--task", "segment")
    assert "no architecture" in refused(
        "--from-scratch", "--set", "pixels.architecture=unet", "--method", "cross_entropy"
    )
    assert "inference is whole or slide" in refused("--set", "pixels.inference=both")
    assert "no samplers" in refused("--set", "sampler=square-root")
    assert "--hold-out is for classifiers" in refused("--hold-out", "0.1")
    assert main(["train", "digits-lt", "--alpha", "0.5", "--dry-run"]) == 2
    assert "--alpha is for --task segmentation" in capsys.readouterr().err
    assert "--first-stage is for classifiers" in refused("--first-stage", "runs/first")
    assert "cross_entropy has no stage with a teacher" in refused("--method=cross_entropy", "--teacher=runs/first/")
    assert "--lr: 0 moves no weight" in refused("--lr", "0")
    assert "--epochs: -1 is less than 0" in refused("--epochs", "-1")
    assert "--subset-seed is for classifiers" in refused("--subset-seed", "1")
    assert "nowhere is no folder" in refused("--set", "data.source=nowhere")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(to_dict(recipe_of(scenes))))
    capsys.readouterr()
    assert main(["train", "--config", str(config), "--seed", "5", "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 5
    assert main(["train", "--config", str(config), "--epochs", "5", "--out", str(tmp_path / "run")]) == 2
    assert "--epochs is said by" in capsys.readouterr().err
    assert "'pixels.crops'" in refused("--set", "pixels.crops=3") or "crops" in refused("--set", "pixels.crops=3")


def test_settings_are_derived_from_the_data(scenes):
    from longtail.segmentation.recipes import derive

    recipe, why = derive(Data(str(scenes)), sources.load(scenes), alpha=0.3, pretrained=False)
    teacher, student = recipe.stages
    assert (teacher.method, teacher.settings["tau"]) == ("logit_adjusted", 1.0)
    assert (student.settings["alpha"], student.settings["alpha_cls"]) == (0.3, 0.3)
    assert recipe.pixels.crop == (48, 64)
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe
    assert any("bank of 1,024 pixels" in line for line in why)
    named, _ = derive(Data(str(scenes)), sources.load(scenes), teacher="runs/la/", pretrained=False)
    assert [stage.keys for stage in named.stages] == ["runs/la/"]


def test_a_teacher_from_another_run(trained, scenes, tmp_path):
    recipe = recipe_of(scenes, epochs=1)
    student = replace(recipe.stages[1], keys=str(trained / "teacher"))
    recipe = replace(recipe, stages=(student,), pixels=replace(PIXELS, steps=2))
    assert len(run(recipe, tmp_path / "run")) == 1
    other = write_pairs(tmp_path / "other", 3, 1)
    text = (other / "classes.csv").read_text().replace("ball", "egg")
    (other / "classes.csv").write_text(text)
    with pytest.raises(LongtailError, match="differ first at"):
        run(replace(recipe, data=Data(str(other))), tmp_path / "no")


def test_loglik_of_a_plain_classifier_has_the_prior_taken_out(scenes, tmp_path):
    recipe = replace(recipe_of(scenes, "cross_entropy", epochs=1), pixels=replace(PIXELS, steps=2))
    run(recipe, tmp_path / "run")
    loaded = model.load(tmp_path / "run")
    images = torch.randn(1, 3, 48, 64)
    log_p = log_prior(loaded.card["counts"])[:, None, None]
    assert torch.allclose(loaded(images) + log_p, loaded.scores(images), atol=1e-4)


@pytest.fixture(scope="module")
def alphas(trained, scenes, tmp_path_factory):
    """Hardly trained: two seeds of plain cross-entropy, alpha 0.5, and 0.5 with L_cls at 1."""
    folder, few = tmp_path_factory.mktemp("alphas"), replace(PIXELS, steps=2)
    plain = replace(recipe_of(scenes, "cross_entropy", epochs=1), pixels=few)
    for seed in (0, 1):
        run(replace(plain, seed=seed), folder / f"plain-{seed}")
    student = replace(recipe_of(scenes, epochs=1).stages[1], keys=str(trained / "teacher"))
    for name, alpha_cls in (("half", 0.5), ("half-cls-1", 1.0)):
        settings = student.settings | {"alpha": 0.5, "alpha_cls": alpha_cls}
        run(replace(plain, stages=(replace(student, settings=settings),)), folder / name)
    return [folder / name for name in ("plain-0", "plain-1", "half", "half-cls-1")]


def test_report_has_masks_frequencies_and_both_curves_of_alpha(trained, alphas, tmp_path, capsys):
    page = tmp_path / "page" / "report.html"
    assert main(["report", *map(str, [*alphas, trained]), "--out", str(page), "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    rows = {line.split("  ")[0]: line for line in table.splitlines()}
    assert {"cross_entropy", "gml, alpha 1", "gml, alpha 0.5", "gml, alpha 0.5, L_cls at 1"} <= set(rows)
    assert "±" in rows["cross_entropy"]  # two seeds are one row
    text = page.read_text()
    for heading in ("Numbers", "Masks", "IoU and frequency", "The strength of the prior"):
        assert heading in text
    assert "Moved minus trained, in points: at alpha 0.5 mIoU" in text
    assert "http://" not in text.replace("http://www.w3.org", "")

    curve = json.loads(page.with_suffix(".json").read_text())["gml"]
    summary = json.loads((trained / "result.json").read_text())["summary"]
    half = json.loads((alphas[2] / "result.json").read_text())["summary"]
    # The run whose L_cls did not follow alpha is no point of the curve.
    assert curve["trained"] == [[0.5, half["miou"], half["macc"]], [1.0, summary["miou"], summary["macc"]]]
    assert [alpha for alpha, *_ in curve["moved"]] == [i / 10 for i in range(11)]
    assert curve["moved"][-1][1:] == pytest.approx([summary["miou"], summary["macc"]])  # not moved at all
    for name in ("masks", "iou", "alpha"):
        picture = np.asarray(Image.open(page.with_name(f"report-{name}.png")).convert("RGB"))
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50


def test_what_is_no_segmentation_is_not_reported_as_one(trained, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["report", str(trained), str(tmp_path / "empty"), "--device", "cpu"]) == 2
    assert "empty" in capsys.readouterr().err
    assert main(["adjust", str(trained), "--device", "cpu"]) == 2
    assert "segmentation" in capsys.readouterr().err


@pytest.mark.slow  # torch takes ten seconds to write the file
def test_exported_scores_are_the_models(trained, tmp_path, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"
    assert main(["export", str(trained), "--out", str(path)]) == 0
    assert "scores at most" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    opened = answers.open_run(trained, device="cpu")
    images = np.random.default_rng(0).uniform(0, 255, (3, 3, 40, 72)).astype(np.float32)  # of another size and number
    (scores,) = session.run(["scores"], {"images": images})
    card = opened.model.card
    mean, std = (torch.tensor(card[name]).view(3, 1, 1) * 255 for name in ("mean", "std"))
    ours = opened.model((torch.from_numpy(images) - mean) / std)
    assert torch.allclose(torch.from_numpy(scores), ours, atol=1e-3)
    log_p = log_prior(card["counts"])
    (moved,) = session.run(["scores"], {"images": images, "log_prior": log_p.numpy()})
    assert np.allclose(moved - scores, log_p.numpy()[:, None, None], atol=1e-4)
    about = json.loads(session.get_modelmeta().custom_metadata_map["longtail"])
    assert about["classes"] == list(CLASSES)
    assert main(["export", str(trained), "--format", "torch"]) == 2
