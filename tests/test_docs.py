"""What the pages say to run is run, docstrings are true, and links beside the code lead somewhere.

`make docs` adds what needs Sphinx: the pages without a warning, and the links between them.
"""

import doctest
import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import longtail.measure.groups
import longtail.measure.metrics
from longtail.methods import METHODS

ROOT = Path(__file__).parents[1]
NEEDS = {"vision_language": "open_clip"}


BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n+^```output\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def python_of(page: Path) -> list[tuple[str, str]]:
    """Each block of Python, and what the page says it prints where it says so."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if python_of(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_on_a_page_runs_and_prints_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    if (package := NEEDS.get(page.stem)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    namespace = {"__name__": "__main__"}
    for code, printed in python_of(page):
        exec(compile(code, page.name, "exec"), namespace)
        said = capsys.readouterr().out
        assert not printed or said == printed


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/start.md"], ids=lambda page: page.name)
def test_python_trains_into_no_folder_that_a_command_above_has_filled(page):
    """A page is read from top to bottom."""
    text = page.read_text(encoding="utf-8")
    shown = "".join(
        (ROOT / "docs" / name).read_text() for name in re.findall(r"\{literalinclude\} (_terminal/\S+)", text)
    )
    filled = set(re.findall(r"^(?:\$ )?longtail train .*--out (\S+)", text + shown, re.MULTILINE))
    assert filled
    assert not filled & set(re.findall(r'out="([^"]+)"', text))


@pytest.mark.parametrize("module", [longtail.measure.groups, longtail.measure.metrics], ids=lambda m: m.__name__)
def test_examples_in_docstrings_are_true(module):
    assert doctest.testmod(module).attempted
    assert doctest.testmod(module).failed == 0


def script(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def links():
    return script("docs/links.py")


@pytest.fixture
def checkout(tmp_path) -> Path:
    """What dev/readme.py reads and writes, elsewhere."""
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("*.safetensors", "bench"))
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "docs/_static").mkdir(parents=True)
    return tmp_path


def test_numbers_in_the_readme_are_those_of_the_results(checkout):
    script("dev/readme.py").main(checkout)
    same = (checkout / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert same, "results/ has moved on: run python dev/readme.py"


def test_the_readme_takes_a_row_as_soon_as_it_is_recorded(checkout):
    """A student whose teacher was trained by another command: the hours of both are said."""
    readme, results = script("dev/readme.py"), checkout / "results"
    first, *others = readme.ROWS
    run = json.loads((results / f"{first}.json").read_text())
    for name in others:
        other = {**run, "name": name, "keys": "results/runs/teacher" if name == others[-1] else ""}
        (results / f"{name}.json").write_text(json.dumps(other))
        shutil.rmtree(results / "runs" / name, ignore_errors=True)
        shutil.copytree(results / "runs" / first, results / "runs" / name)
    readme.main(checkout)
    text = (checkout / "README.md").read_text()
    accuracy = f"{100 * run['summary']['accuracy']:.1f}"
    assert all(f"| {label} | {accuracy} |" in text for label in readme.ROWS.values())
    assert text.count("the teacher's") == 1
    assert "GML's teacher is the logit-adjusted run" in " ".join(text.split())
    assert (checkout / "docs/_static/tail.png").stat().st_size > 10_000


def test_every_method_says_when_to_use_it_and_when_not():
    said = yaml.safe_load((ROOT / "docs/when.yaml").read_text())
    assert list(said) == list(METHODS)
    for name, sentences in said.items():
        assert set(sentences) == {"use", "not"}, name
        assert all(sentence.strip().endswith(".") for sentence in sentences.values()), name


def test_the_log_is_newest_first():
    dates = re.findall(r"^## (\d{4}-\d\d-\d\d): (?!experiments:)", (ROOT / "dev/LOG.md").read_text(), re.MULTILINE)
    assert dates == sorted(dates, reverse=True)
    assert len(dates) == (ROOT / "dev/LOG.md").read_text().count("\n## ")


def test_links_beside_the_code_lead_somewhere(links):
    assert list(links.broken_in_markdown(ROOT)) == []


def test_a_broken_link_is_found(links, tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top"><a href="b.html#end">b</a><a href="#top">here</a><a href="c.html">c')
    (tmp_path / "b.html").write_text('<h1 id="start"><img src="http://elsewhere/x.png">')
    assert list(links.broken_in_site(tmp_path)) == [
        "a.html: b.html#end has no such heading",
        "a.html: c.html does not exist",
    ]
