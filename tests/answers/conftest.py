"""Small trained runs that every test of this folder may ask: GML with its bank, and two seeds of cross-entropy."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

import longtail as lt

RUNS = (("digits", "gml", 0), ("plain", "cross_entropy", 0), ("plain-1", "cross_entropy", 1))


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory) -> Path:
    """Trained once, also where several processes test."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "trained"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("LONGTAIL_CACHE", str(folder / "cache"))
                for name, method, seed in RUNS:
                    settings = {"learn_tau": True} if method == "gml" else {}
                    out, dials = folder / name, {"model": "small", "epochs": 6, "hold_out": 0.1}
                    lt.train("digits-lt", method, out=out, seed=seed, settings=settings, quiet=True, **dials)
            (folder / "done").touch()
    return folder


@pytest.fixture
def here(trained_runs, tmp_path, monkeypatch) -> Path:
    """A working directory of the test's own with them in runs/."""
    for name, _, _ in RUNS:
        shutil.copytree(trained_runs / name, tmp_path / "runs" / name)
    monkeypatch.setenv("LONGTAIL_CACHE", str(trained_runs / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
