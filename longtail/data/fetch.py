"""One archive from the net, whole or not at all: resumed where it stopped, checked, then unpacked.

What has been fetched lies beside its goal as `<name>.part` until its checksum is right. Unpacking happens in a folder
of its own, whose content is moved into place when all of it is there.
"""

import hashlib
import shutil
import tarfile
import zipfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from longtail.errors import LongtailError

_BLOCK = 1 << 20
_TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class Archive:
    url: str
    checksum: str  # "md5:..." or "sha1:...": what its publishers state
    size: str  # as said to the user
    gives: str  # a file or folder that is there once it is unpacked

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


def fetch(archive: Archive, folder: Path, progress: bool = True) -> Path:
    """Download into `folder`, continuing an earlier attempt."""
    goal = folder / archive.name
    if goal.exists():  # put there by hand, or by a run that was killed while it unpacked
        if (found := _digest(goal, archive)) != archive.checksum:
            raise LongtailError(f"{goal} has the {found.replace(':', ' ')} and not {archive.checksum}: remove it.")
        return goal
    folder.mkdir(parents=True, exist_ok=True)
    part = goal.with_name(goal.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = Request(archive.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urlopen(request, timeout=_TIMEOUT) as response:
            resumed = response.status == 206
            have = have if resumed else 0
            total = have + int(response.headers.get("Content-Length") or 0)
            _check_space(folder, 2 * total - have, archive)
            with open(part, "ab" if resumed else "wb") as file:
                have += _copy(response, file, archive.name, have, total, progress)
    except HTTPError as error:
        if error.code != 416:  # 416: nothing is left to fetch
            raise LongtailError(f"{archive.url} cannot be fetched: {error.code} {error.reason}.") from error
        total = have
    except (OSError, HTTPException, ValueError) as error:
        raise LongtailError(f"{archive.url} cannot be fetched ({error}); the same command carries on later.") from error
    if have < total:
        raise LongtailError(
            f"{archive.url} broke off after {have:,} of {total:,} bytes; the same command carries on from there."
        )
    _verify(part, archive)
    return part.rename(goal)


def unpack(path: Path, into: Path) -> None:
    """Unpack a tar or zip file and remove it. No member can leave the folder."""
    staging = into / f".unpacking-{path.name}"
    shutil.rmtree(staging, ignore_errors=True)  # what a killed run left
    staging.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                archive.extractall(staging)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(staging, filter="data")
        for entry in sorted(staging.iterdir()):
            shutil.move(entry, into / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise LongtailError(f"{path} cannot be unpacked: {error}.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    path.unlink()


def _copy(response: BinaryIO, file: BinaryIO, name: str, have: int, total: int, progress: bool) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    copied = 0
    with Progress(*columns, console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task("", total=total or None, completed=have)
        while block := response.read(_BLOCK):
            file.write(block)
            copied += len(block)
            bar.advance(task, len(block))
    return copied


def _check_space(folder: Path, needed: int, archive: Archive) -> None:
    """The archive and what is in it are there at once."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise LongtailError(
            f"{archive.name} needs {needed / 1e9:.1f} GB in {folder}, fetched and unpacked; {free / 1e9:.1f} are free."
        )


def _verify(part: Path, archive: Archive) -> None:
    if (found := _digest(part, archive)) != archive.checksum:
        part.unlink()
        raise LongtailError(
            f"{archive.url} has the {found.replace(':', ' ')} and not {archive.checksum.split(':')[1]}: "
            f"it was removed; fetch it again."
        )


def _digest(path: Path, archive: Archive) -> str:
    kind = archive.checksum.split(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"
