"""Every example runs as a user would run it, and reaches the target it states."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {"lightning_module": "lightning"}
# Two trainings each; tests/dist and tests/segmentation hold ranks and pixels to the same, and faster.
SLOW = {"torchrun", "segmentation_camvid"}
NO_DATA = 77  # what an example exits with where its images are not at hand: the custom of configure scripts


def marked(name: str):
    return pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name


@pytest.mark.parametrize("name", [marked(path.stem) for path in sorted(EXAMPLES.glob("*.py"))])
def test_example(name, tmp_path):
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    run(name, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"runs", "cache"}  # which git ignores, and the test's own
    if (tmp_path / "runs").exists():
        run(name, tmp_path)  # a second time, over what the first has left


def run(name: str, place: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LONGTAIL_CACHE": str(place / "cache")}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], cwd=place, capture_output=True, text=True, env=environment
    )
    if ran.returncode == NO_DATA:
        pytest.skip(ran.stdout.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_read_in_one_sitting(path):
    source = path.read_text(encoding="utf-8")
    assert 30 <= len(source.splitlines()) <= 90
    assert "TARGET" in source
