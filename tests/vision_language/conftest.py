"""Tiny CLIPs, and a cache of text features of each test's own."""

import pytest

pytest.importorskip("open_clip")

from tiny_clip import save_clip


@pytest.fixture(scope="session")
def vit(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clips") / "vit", "vit")


@pytest.fixture(scope="session")
def resnet(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clips") / "resnet", "resnet")


@pytest.fixture(scope="session")
def coca(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("clips") / "coca", "coca")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "text"
