"""The Hugging Face hub where there is no network: what was fetched before is used, and the rest is an error at once.

Its client would ask six times for every file, say so each time and wait half a minute for each.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

PATIENCE = 5  # seconds


@contextlib.contextmanager
def hub() -> Iterator[None]:
    """Around whatever may download from the hub."""
    from huggingface_hub import constants

    # `datasets` has a copy of the setting, which it reads where it is imported by now.
    settings: list[Any] = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [module.HF_HUB_OFFLINE for module in settings]
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    try:
        if not reachable(constants.ENDPOINT):
            for module in settings:
                module.HF_HUB_OFFLINE = True
        logger.setLevel(logging.ERROR)
        yield
    finally:
        for module, value in zip(settings, before, strict=True):
            module.HF_HUB_OFFLINE = value
        logger.setLevel(level)


def reachable(url: str) -> bool:
    """Whether somebody answers there. Behind a proxy that is for the proxy to find out."""
    if getproxies():
        return True
    where = urlsplit(url)
    try:
        port = where.port or (80 if where.scheme == "http" else 443)
        socket.create_connection((where.hostname or "", port), PATIENCE).close()
    except OSError:
        return False
    return True
