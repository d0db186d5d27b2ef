"""Real file systems that refuse to be written to."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "256k") -> Iterator[Path]:
    """A file system in memory of so many bytes; skips where it may not be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Permissions do not stop root, so root gets a read-only mount."""
    if os.geteuid() == 0:
        with small_disk(folder):
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            yield folder
    else:
        folder.mkdir(mode=0o500)
        yield folder
