"""The report in a real browser: from disk, without a network, on a telephone, in the dark, and whatever it is told."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from browser import EXECUTABLE, Browser
from PIL import Image

import longtail as lt
from longtail import cli
from longtail.answers.report import report
from longtail.errors import LongtailError

needs_browser = pytest.mark.skipif(EXECUTABLE is None, reason="needs Chromium: apt-get install chromium")
EVIL = ("<img src=x onerror=window.broken=1>", "</script><script>window.broken=2<!--", "a 'b' \"c\" & $x^2$", "ökapi")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(trained_runs):
    """Baseline with two seeds, method with one."""
    folders = [trained_runs / name for name in ("plain", "plain-1", "digits")]
    path, _ = report(folders, trained_runs / "page" / "report.html")
    return path


@pytest.fixture
def opened(browser, page):
    browser.complaints.clear()
    browser.requests.clear()
    browser.look(1400)
    browser.open(page.as_uri())
    return browser


def column(browser, number):
    return browser.run(f"[...document.querySelectorAll('#classes tbody tr')].map(row => row.cells[{number}].innerText)")


def sort_by(browser, number):
    browser.click(f"#classes thead th:nth-child({number + 1}) button")
    return browser.run(f"document.querySelectorAll('#classes thead th')[{number}].getAttribute('aria-sort')")


SECTIONS = [
    "Headline",
    "Under other priors",
    "Where the images are, and where the accuracy is",
    "Many, medium, few",
    "Where errors go",
    "Head against tail",
    "Is it honest about its confidence?",
    "Learning",
    "Inside the mixture",
    "What the model compares with",
    "Every class",
]


@needs_browser
def test_opens_from_disk_without_network_or_complaint_and_has_everything(opened, page):
    assert page.stat().st_size < 2e6
    assert opened.run("[...document.querySelectorAll('h2')].map(h => h.innerText)") == SECTIONS
    assert not opened.complaints
    assert [address for address in opened.requests if not address.startswith("data:")] == [page.as_uri()]
    text = opened.run("document.body.innerText")
    assert "the last epoch, never a selected one, answered as trained" in text  # the rule beside the numbers
    assert "It cannot imitate what the strength of the prior in training (alpha) does to the features" in text
    assert "Mean ± sample standard deviation over 2 seeds" in text
    assert re.search(r"cross_entropy\s+\d+\.\d ± \d+\.\d", text)
    assert "its teacher (logit_adjusted)" in text
    assert re.search(r"gml, kernel\s+\d+\.\d", text)  # the second answers beside the first
    assert re.search(r"gml, both\s+\d+\.\d", text)
    assert "Rows named kernel are of the mixture over the bank" in text
    assert opened.run("document.querySelectorAll('.gallery .row').length") == 5
    assert opened.run("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    drawn = opened.run("[...document.querySelectorAll('svg')].map(svg => svg.textContent)")
    assert any("mixture temperature" in figure for figure in drawn)  # tau_g, the paper's figure
    assert any("samples in the bank" in figure for figure in drawn)


@needs_browser
def test_the_table_of_classes_sorts(opened):
    assert [int(count) for count in column(opened, 2)] == sorted(map(int, column(opened, 2)), reverse=True)
    assert sort_by(opened, 0) == "ascending"
    assert column(opened, 0) == list("0123456789")
    assert sort_by(opened, 0) == "descending"
    assert column(opened, 0) == list("9876543210")
    assert sort_by(opened, 4) == "descending"
    accuracies = [float(cell) for cell in column(opened, 4)]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len(set(accuracies)) > 3


@needs_browser
def test_the_table_of_classes_is_searched_and_filtered(opened):
    opened.type("#search", "7")
    assert column(opened, 0) == ["7"]
    assert opened.run("document.getElementById('found').innerText") == "1 of 10 classes"
    opened.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    opened.run("group.value = 'few'; group.dispatchEvent(new Event('change'))")
    assert set(column(opened, 1)) == {"few"}
    assert 1 < len(column(opened, 0)) < 10


# Every text's colour against what is behind it, as WCAG counts it; text in a coloured bar has the bar's own check.
CONTRAST = """(() => {
  const numbers = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const back = light(numbers(getComputedStyle(document.body).backgroundColor));
  const own = node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
  const texts = [...document.querySelectorAll('main *')].filter(node => own(node) && node.getClientRects().length);
  return texts.filter(node => !/fill: #/.test(node.getAttribute('style') || '')).map(node => {
    const style = getComputedStyle(node), colour = light(numbers(node.closest('svg') ? style.fill : style.color));
    const ratio = (Math.max(colour, back) + 0.05) / (Math.min(colour, back) + 0.05);
    return [ratio, node.getBoundingClientRect().height, node.textContent.slice(0, 40)];
  });
})()"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_fits_a_telephone_and_a_screen_and_is_legible_by_day_and_night(opened, page, tmp_path, width, dark):
    opened.look(width, dark=dark)
    opened.open(page.as_uri())
    assert opened.run("document.documentElement.scrollWidth") <= width
    background = opened.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is not dark
    texts = opened.run(CONTRAST)
    assert len(texts) > 200
    assert not [text for text in texts if text[0] < 4.5]
    assert not [text for text in texts if text[1] < 8]  # pixels
    opened.screenshot(tmp_path / "page.png")
    assert Image.open(tmp_path / "page.png").width == width


@needs_browser
def test_names_of_classes_and_files_are_text_whatever_is_in_them(browser, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    digits = lt.data.load("digits-lt", imbalance=1.0)
    data = tmp_path / "<b>data"
    names = [name.replace("/", "\N{FRACTION SLASH}") for name in EVIL]  # which no folder's name may have
    for c, name in enumerate(names):
        (data / name).mkdir(parents=True)
        for i, row in enumerate(digits.rows("train")[digits.labels[digits.rows("train")] == c][: 24 - 6 * c]):
            Image.fromarray(digits.images.decode(row)).save(data / name / f"<i onclick=alert({i})>.png")
    run = lt.train(data, "gml", out=tmp_path / "<u>run", model="small", epochs=1, quiet=True)
    path, _ = report([run.folder])
    browser.complaints.clear()
    browser.look(1000)
    browser.open(path.as_uri())
    assert browser.run("typeof window.broken") == "undefined"
    assert not browser.complaints
    assert sorted(column(browser, 0)) == sorted(names)
    assert browser.run("document.querySelectorAll('main b, main i, main u, main script').length") == browser.run(
        "document.querySelectorAll('figcaption b').length"
    )
    shown = browser.run("[...document.querySelectorAll('figcaption b')].map(b => b.innerText.replace(/^[✓✗] /, ''))")
    assert shown
    assert set(shown) <= set(names)


def test_a_slash_in_a_class_name_ends_no_script():
    from longtail.measure.page import Page, render_page

    written = render_page(Page("x", [], [], {"columns": ["class", "group"], "rows": [[name, "few"] for name in EVIL]}))
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', written, re.DOTALL)
    assert data
    assert [row[0] for row in json.loads(data[1])["rows"]] == list(EVIL)
    assert written.count("</script>") == 2


def test_where_the_images_are_gone_the_page_says_so_and_has_the_rest(here):
    config = json.loads((here / "runs/digits/config.json").read_text())
    config["recipe"]["data"]["source"] = "gone/"
    (here / "runs/digits/config.json").write_text(json.dumps(config))
    assert cli.main(["report", "runs/digits"]) == 0
    written = (here / "runs/digits/report.html").read_text(encoding="utf-8")
    assert "Figures that need the test images are left out" in written
    assert "<h2>Headline</h2>" in written
    assert "<h2>Head against tail</h2>" not in written


def test_runs_of_other_data_and_unfinished_ones_are_refused(here):
    shutil.rmtree("runs/plain-1")
    lt.train("digits-lt", "cross_entropy", out="runs/plain-1", model="small", epochs=1, imbalance=5, quiet=True)
    with pytest.raises(LongtailError, match="trained on other data"):
        report([here / "runs/plain", here / "runs/plain-1"])
    os.remove("runs/plain/result.json")
    with pytest.raises(LongtailError, match="holds no finished run"):
        report([here / "runs/plain"])


def test_a_recorded_run_has_a_page_without_its_images(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path / "nothing"))
    recorded = Path(__file__).parents[2] / "results/runs/cifar100-lt-30-gml"
    assert cli.main(["report", str(recorded), "--out", str(tmp_path / "report.html"), "--device", "cpu"]) == 0
    summary = json.loads((recorded / "result.json").read_text())["summary"]
    assert f"{100 * summary['few']:.1f}" in capsys.readouterr().out


@pytest.mark.parametrize("how", [{"prior": "train"}, {"tau": 0.5}])
def test_an_adjusted_run_was_not_trained_so(here, how):
    saved = lt.adjust("runs/plain", device="cpu", **how).save()
    with pytest.raises(LongtailError, match=r"report the run it was made from"):
        report([saved])


def test_the_page_is_the_same_to_the_byte(trained_runs, page):
    folders = [trained_runs / name for name in ("plain", "plain-1", "digits")]
    again, _ = report(folders, trained_runs / "page" / "again.html")
    assert again.read_bytes() == page.read_bytes()


def test_the_nearest_samples_are_the_nearest_and_no_image_twice(trained_runs):
    from longtail.answers.neighbours import nearest
    from longtail.answers.run import open_run, questions

    run = open_run(trained_runs / "digits")
    batch = next(iter(questions(run).loader.epoch(0)))
    images = batch.views[0][:4]
    found = nearest(run, images, 5)
    train = questions(run, split="train").table
    for near in found:
        assert len({sample.row for sample in near}) == 5
        similarities = [sample.similarity for sample in near]
        assert similarities == sorted(similarities, reverse=True)
        assert all(train.labels[sample.row] == sample.class_index for sample in near)
        assert all(sample.row in train.rows("train") for sample in near)
        assert np.isclose(max(similarities), similarities[0])
