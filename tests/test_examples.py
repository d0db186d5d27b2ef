"""Every example runs as a user would run it, and reaches the target it states."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NEEDS = {"lightning_module": "lightning"}


@pytest.mark.parametrize("name", ["bare_loop", "lightning_module"])
def test_example(name, tmp_path):
    if (package := NEEDS.get(name)) and importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    ran = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
