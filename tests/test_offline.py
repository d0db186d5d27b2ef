"""Without a network: what is not here is an error at once, in one sentence."""

import logging
import socket
import sys

import pytest
from huggingface_hub import constants, hf_hub_download

from longtail import offline
from longtail.cli import main
from longtail.data.sources import load
from longtail.errors import LongtailError
from longtail.models.backbone import build


@pytest.fixture
def nobody_answers(monkeypatch, tmp_path):
    """A hub that refuses connections, and an empty cache."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(offline, "getproxies", dict)
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return url


def test_whether_somebody_answers(monkeypatch, nobody_answers):
    assert not offline.reachable(nobody_answers)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert offline.reachable(f"http://127.0.0.1:{server.getsockname()[1]}/hub")
    monkeypatch.setattr(offline, "getproxies", lambda: {"https": "proxy.example"})
    assert offline.reachable(nobody_answers)


def test_the_setting_is_put_back(nobody_answers):
    before = constants.HF_HUB_OFFLINE, logging.getLogger("huggingface_hub").level
    with offline.hub():
        assert constants.HF_HUB_OFFLINE
        with pytest.raises(OSError, match="cannot find the requested files in the local cache"):
            hf_hub_download("timm/resnet18.a1_in1k", "model.safetensors")
    assert (constants.HF_HUB_OFFLINE, logging.getLogger("huggingface_hub").level) == before


def test_pretrained_weights(nobody_answers, caplog):
    with pytest.raises(LongtailError, match=r"weights of 'resnet18' are not here .* --from-scratch, .*--weights"):
        build("resnet18", pretrained=True)
    assert not [record for record in caplog.records if record.name.startswith("huggingface_hub")]


def test_a_data_set_of_the_hub(nobody_answers):
    pytest.importorskip("datasets")
    assert "datasets.config" in sys.modules
    with pytest.raises(LongtailError, match="hf:nobody/nothing cannot be loaded: Couldn't reach"):
        load("hf:nobody/nothing")


def test_train_my_images_says_so_in_one_sentence_and_leaves_nothing(nobody_answers, monkeypatch, tmp_path, capsys):
    from PIL import Image

    for i in range(12):
        (tmp_path / "mine" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (80, 70), (20 * i, 0, 0)).save(tmp_path / "mine" / "ab"[i % 2] / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mine/"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--from-scratch" in error
    assert not (tmp_path / "runs").exists()
    assert main(["train", "mine/", "--from-scratch", "--model", "small", "--dry-run"]) == 0
    assert "preflight ok" in capsys.readouterr().out
