"""`longtail export`: a file that answers as the model does, says how to be asked, and is not kept if it does not."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import longtail as lt
from longtail import cli
from longtail.answers import export as exporting
from longtail.errors import LongtailError
from longtail.files import read_json
from longtail.prior import log_prior


def real_images(number=5):
    digits = lt.data.load("digits-lt")
    pixels = np.stack([digits.images.decode(int(row)) for row in digits.rows("test")[:number]])
    return pixels.transpose(0, 3, 1, 2).astype(np.float32)


def expected(images):
    model = lt.load("runs/digits")
    mean, std = (255 * torch.tensor(model.card[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        return model((torch.from_numpy(images) - mean) / std).numpy()


@pytest.fixture
def onnx_session(here):
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra longtail[export]")
    path, parity = lt.export("runs/digits", "digits.onnx")
    assert parity.largest_difference <= parity.tolerance
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_onnx_answers_any_batch_under_any_prior_as_the_model_does(onnx_session):
    for number in (1, 3, 5):
        images = real_images(number)
        loglik = expected(images)
        (scores,) = onnx_session.run(["scores"], {"images": images})  # without a prior: uniform
        np.testing.assert_allclose(scores, loglik, atol=1e-3)
        prior = log_prior(lt.load("runs/digits").card["counts"]).numpy()
        (scores,) = onnx_session.run(["scores"], {"images": images, "log_prior": prior})
        np.testing.assert_allclose(scores, loglik + prior, atol=1e-3)


def test_onnx_says_how_it_is_to_be_asked(onnx_session):
    said = json.loads(onnx_session.get_modelmeta().custom_metadata_map["longtail"])
    card = lt.load("runs/digits").card
    assert said["classes"] == card["classes"]
    assert said["train_counts"] == card["counts"]
    assert said["preprocessing"]["values"] == "0 to 255"
    assert said["preprocessing"]["bring_to_size"] == ["nothing: the model was trained on images of 16 x 16 as they are"]
    assert said["normalised_inside"] == {"mean": card["mean"], "std": card["std"]}
    assert np.exp(said["train_log_prior"]).sum() == pytest.approx(1)


def test_a_torch_program_answers_without_this_library_s_code(here):
    path, parity = lt.export("runs/digits", "digits.pt2")
    assert parity.same_answers == 1
    extra = {"longtail.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    images = real_images(3)
    np.testing.assert_allclose(program(torch.from_numpy(images), torch.zeros(10)).numpy(), expected(images), atol=1e-4)
    assert json.loads(extra["longtail.json"])["image_size"] == [16, 16]


def test_a_safetensors_export_is_a_run_without_a_folder(here):
    path, _ = lt.export("runs/digits", "digits.safetensors")
    assert path.stat().st_mode & 0o044 == 0o044  # others may read it, as any other file
    pictures = list(real_images(5).transpose(0, 2, 3, 1).astype(np.uint8))
    ours, theirs = (list(lt.predict(run, pictures, top=10, device="cpu")) for run in ("runs/digits", path))
    assert ours == theirs
    assert lt.evaluate(path, "digits-lt", prior="uniform", device="cpu").summary["accuracy"] > 0.1
    with pytest.raises(LongtailError, match="knows no data"):
        lt.evaluate(path, device="cpu")


@pytest.mark.parametrize("ending", ["onnx", "pt2", "safetensors"])
def test_an_export_that_answers_otherwise_is_an_error_and_is_not_kept(here, monkeypatch, capsys, ending):
    if ending == "onnx":
        pytest.importorskip("onnxruntime", reason="needs the extra longtail[export]")
    honest = exporting._WRITERS[{"pt2": "torch"}.get(ending, ending)]

    def wrong(deployed, pictures, path):
        answer = honest(deployed, pictures, path)
        return lambda images, prior: answer(images, prior) + 0.01

    monkeypatch.setitem(exporting._WRITERS, {"pt2": "torch"}.get(ending, ending), wrong)
    before = sorted(here.rglob("*"))
    assert cli.main(["export", "runs/digits", "--out", f"model.{ending}"]) == 2
    assert "answers 0.01 away from the model on 8 real images" in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


def test_it_is_checked_on_the_images_that_are_given(here, capsys):
    (here / "given").mkdir()
    for number, pixels in enumerate(real_images(3).transpose(0, 2, 3, 1).astype(np.uint8)):
        Image.fromarray(pixels).save(here / "given" / f"{number}.png")
    assert cli.main(["export", "runs/digits", "--out", "model.safetensors", "--images", "given"]) == 0
    assert "parity on 3 real images" in capsys.readouterr().out
    assert read_json(here / "model.safetensors.parity.json")["images"] == 3


def test_an_adjusted_model_takes_its_temperature_along(here):
    adjusted = lt.adjust("runs/digits", temperature=2.0, device="cpu").save(here / "runs/adjusted")
    path, _ = lt.export(adjusted, "adjusted.safetensors")
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(lt.load(path)(images), lt.load("runs/digits")(images) / 2)
    tau = lt.adjust("runs/plain", tau=1, device="cpu").save(here / "runs/tau")
    with pytest.raises(LongtailError, match="no log-likelihood to export"):
        lt.export(tau, "tau.safetensors")


def test_the_backbone_loads_in_timm_by_name(here):
    import timm

    out = here / "runs/timm"
    dials = {"model": "test_resnet", "epochs": 1, "pretrained": False, "precision": "float32"}
    lt.train("digits-lt", "cross_entropy", out=out, device="cpu", quiet=True, **dials)
    backbone = timm.create_model("test_resnet", num_classes=0).eval()
    backbone.load_state_dict(load_file(out / "backbone.safetensors"))  # strict: every name is timm's
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(backbone(images), lt.load(out).method.backbone(images))
