"""Two small trained runs that every test of this folder may ask: GML with its bank, and plain cross-entropy."""

import os
import shutil
from pathlib import Path

import pytest

import longtail as lt


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    before = os.environ.get("LONGTAIL_CACHE")
    os.environ["LONGTAIL_CACHE"] = str(folder / "cache")
    try:
        for name, method in (("digits", "gml"), ("plain", "cross_entropy")):
            settings = {"learn_tau": True} if method == "gml" else {}
            out = folder / name
            lt.train("digits-lt", method, out=out, model="small", epochs=6, hold_out=0.1, settings=settings, quiet=True)
    finally:
        os.environ.pop("LONGTAIL_CACHE")
        if before is not None:
            os.environ["LONGTAIL_CACHE"] = before
    return folder


@pytest.fixture
def here(trained_runs, tmp_path, monkeypatch) -> Path:
    """A working directory of the test's own with runs/digits and runs/plain in it."""
    for name in ("digits", "plain"):
        shutil.copytree(trained_runs / name, tmp_path / "runs" / name)
    monkeypatch.setenv("LONGTAIL_CACHE", str(trained_runs / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
