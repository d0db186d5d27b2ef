"""The page that `longtail serve` opens: what it answers, whom it answers, and a person's way through it."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from browser import EXECUTABLE, Browser
from PIL import Image

import longtail as lt
from longtail import cli
from longtail.answers.run import open_run, questions
from longtail.answers.serve import desk
from longtail.errors import LongtailError


@pytest.fixture(scope="module")
def drawn(trained_runs) -> Path:
    """A test image, in another size than the model takes."""
    digits = lt.data.load("digits-lt")
    path = trained_runs / "dropped.png"
    Image.fromarray(digits.images.decode(int(digits.rows("test")[0]))).resize((80, 60)).save(path)
    return path


@pytest.fixture
def picture(here, drawn) -> Path:
    return drawn


def test_the_slider_goes_from_the_uniform_prior_to_the_training_set_s(picture):
    asked = desk(open_run("runs/digits", "cpu"))
    loglik, near = asked.ask(picture)
    for strength, prior in ((0.0, "uniform"), (1.0, "train")):
        classes, words = asked.answer(loglik, strength)
        (expected,) = lt.predict("runs/digits", [picture], prior=prior, top=10, resize=True, device="cpu")
        assert classes == pytest.approx(dict(expected.top), abs=1e-5)
        assert words.startswith(f"{expected.answer}: {expected.group}, ")
        assert ("low support" in words) == expected.low_support
    assert len(near) == 6
    train = questions(asked.run, split="train").table
    shown = {train.images.decode(int(row)).tobytes() for row in train.rows("train")}
    assert all(image.tobytes() in shown for image, _ in near)
    assert all(re.fullmatch(r"\d, -?\d\.\d\d", text) for _, text in near)


def test_without_a_bank_it_says_so_and_answers(picture):
    asked = desk(open_run("runs/plain", "cpu"))
    loglik, near = asked.ask(picture)
    assert near == []
    assert "no bank" in asked.why_not
    assert sum(asked.answer(loglik, 0.5)[0].values()) == pytest.approx(1)


def test_what_has_no_likelihood_is_not_served(here):
    lt.adjust("runs/plain", tau=1, device="cpu").save(here / "runs/tau")
    with pytest.raises(LongtailError, match="takes no prior to slide"):
        desk(open_run("runs/tau", "cpu"))


def test_without_gradio_it_says_what_to_install(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert cli.main(["serve", "runs/digits", "--device", "cpu"]) == 2
    assert "pip install 'longtail[serve]'" in capsys.readouterr().err


@pytest.fixture(scope="module")
def address(trained_runs, tmp_path_factory):
    """A server of its own process, as a person starts it; it must leave nothing behind."""
    pytest.importorskip("gradio", reason="needs the extra longtail[serve]")
    left = tmp_path_factory.mktemp("left")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "longtail", "serve", "digits", "--device", "cpu", "--port", str(port)]
    environment = os.environ | {"TMPDIR": str(left), "GRADIO_SERVER_NAME": "0.0.0.0"}
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=trained_runs
    )
    try:
        assert server.stdout
        line = server.stdout.readline()
        assert line, server.communicate()[1]
        yield line.split()[0]
    finally:
        server.send_signal(signal.SIGTERM)
        _, complaints = server.communicate(timeout=60)
    assert server.returncode == 0, complaints
    assert "Traceback" not in complaints
    assert not list(left.iterdir())


@pytest.mark.slow  # a server and a browser
@pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium: apt-get install chromium")
def test_a_person_drops_an_image_and_moves_the_prior(address, picture, tmp_path):
    (expected,) = lt.predict("runs/digits", [picture], prior="uniform", resize=True, device="cpu")
    (skewed,) = lt.predict("runs/digits", [picture], prior="train", resize=True, device="cpu")
    with Browser(tmp_path / "profile", wait=60) as browser:
        browser.look(1200)
        browser.open(address)
        browser.until("document.querySelector('input[type=file]') !== null")
        browser.choose_file("input[type=file]", picture)
        said = "(document.querySelector('#answer textarea, #answer input') || {value: ''}).value"
        assert browser.until(said).startswith(f"{expected.answer}: ")
        confidence = "[...document.querySelectorAll('#classes .confidence')].map(c => parseInt(c.textContent))"
        assert browser.until(f"{confidence}[0]") == pytest.approx(100 * (expected.probability or 0), abs=1)
        assert browser.until("document.querySelectorAll('#near img').length === 6")
        browser.until("[...document.querySelectorAll('#near img')].every(i => i.complete && i.naturalWidth > 0)")
        browser.screenshot(tmp_path / "page.png")
        assert np.asarray(Image.open(tmp_path / "page.png")).std() > 5  # not an empty page

        slide = "(() => {const field = document.querySelector('#prior input[type=range]'); field.value = 1;"
        slide += "field.dispatchEvent(new Event('input', {bubbles: true}));"
        slide += "field.dispatchEvent(new PointerEvent('pointerup', {bubbles: true}));})()"
        browser.run(slide)
        percent = round(100 * (skewed.probability or 0))
        browser.until(f"Math.abs({confidence}[0] - {percent}) <= 1 && {said}.startsWith('{skewed.answer}: ')")
        assert not browser.complaints
        elsewhere = [a for a in browser.requests if not a.startswith((address, "data:", "blob:", "about:"))]
        assert not elsewhere


@pytest.mark.slow
def test_it_listens_to_this_machine_alone_and_takes_no_huge_file(address):
    port = int(address.rstrip("/").rpartition(":")[2])
    assert address.startswith("http://127.0.0.1:")
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):  # whatever GRADIO_SERVER_NAME says
        other.connect(("127.0.0.2", port))
    with pytest.raises((urllib.error.HTTPError, urllib.error.URLError, ConnectionError)) as refused:
        upload(address, b"x" * 21_000_000)
    assert getattr(refused.value, "code", 413) == 413
    assert upload(address, b"x" * 1000) == 200


def upload(address: str, content: bytes) -> int:
    part = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    body = part + content + b"\r\n--edge--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=edge"}
    request = urllib.request.Request(f"{address.rstrip('/')}/gradio_api/upload", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status
