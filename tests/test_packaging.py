"""What a source distribution says and holds."""

from pathlib import Path

import pytest
import yaml

import longtail

ROOT = Path(__file__).parents[1]


@pytest.fixture
def project():
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_authors_and_version_are_those_of_the_citation(project):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert project["project"]["authors"] == cited["authors"]
    assert cited["version"] == longtail.__version__


def test_it_holds_what_it_needs_and_no_test_that_reads_a_checkout(project):
    held = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert all((ROOT / name).exists() for name in held)
    assert {"longtail", "CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md"} <= set(held)
    assert "tests" not in held
