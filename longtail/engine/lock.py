"""One run at a time in a folder: a file that names its holder, so that what a killed run left behind is recognised.

On the machine that wrote it, the holder lives if a process of that number, begun at that moment, does. Nobody can see
the process from elsewhere (another node, another container): there a holder lives while it keeps touching its lock. A
thread of its own does that, because an evaluation or the reading of a large data set may last longer than SILENCE.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from longtail.errors import LongtailError
from longtail.files import cannot_write

SILENCE = 300.0  # seconds without a touch after which a holder elsewhere counts as dead
BEAT = 30.0  # seconds between touches


class Lock:
    """Held from `acquire` to `release`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._released = threading.Event()
        self._content = ""

    def acquire(self) -> None:
        self._content = json.dumps({"process": os.getpid(), "begun": _begun(os.getpid()), "machine": _machine()})
        try:
            while not self._create():
                self._remove_if_stale()
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._released.clear()
        threading.Thread(target=self._touch, daemon=True).start()

    def _create(self) -> bool:
        """Written aside and then linked: a process killed in between leaves no lock whose holder cannot be read."""
        aside = self._aside()
        try:
            aside.write_text(self._content)
            try:
                os.link(aside, self.path)
            except (FileExistsError, FileNotFoundError):  # held; or its holder has tidied up, the aside with it
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                return self._create_without_links()
            return True
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()

    def _create_without_links(self) -> bool:
        try:
            with open(self.path, "x") as file:
                file.write(self._content)
        except FileExistsError:
            return False
        return True

    def _aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")

    def _remove_if_stale(self) -> None:
        """Return with the lock gone, or raise because its holder lives."""
        try:
            written = self.path.read_bytes()
            silent = self._silence()
        except FileNotFoundError:
            return  # released meanwhile
        holder = _parse(written)
        if holder.get("machine") == _machine():
            if _begun(holder["process"]) == holder["begun"]:
                raise LongtailError(
                    f"{self.path.parent} is in use by process {holder['process']}: wait for it, or choose another --out"
                )
        elif silent < SILENCE:
            raise LongtailError(
                f"{self.path.parent} was in use on another machine {max(silent, 0):.0f} s ago: choose another --out, "
                f"or, if that run has died, try again in {SILENCE / 60:.0f} minutes"
            )
        # Of several runs that find it stale one gets to move it away; who moves another's new lock puts it back.
        aside = self._aside()
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.path, aside)
            if aside.read_bytes() != written:
                os.replace(aside, self.path)
            else:
                aside.unlink()

    def _silence(self) -> float:
        """Seconds since the last touch, by the clock of the file system that also dated it."""
        with tempfile.TemporaryFile(dir=self.path.parent) as probe:
            return os.fstat(probe.fileno()).st_mtime - self.path.stat().st_mtime

    def _touch(self) -> None:
        while not self._released.wait(BEAT):
            with contextlib.suppress(OSError):  # a run does not end for it
                os.utime(self.path)

    def release(self) -> None:
        self._released.set()
        with contextlib.suppress(OSError):
            if self.path.read_text() == self._content:  # a holder that was silent for too long may have lost it
                self.path.unlink()


def _parse(written: bytes) -> dict[str, Any]:
    """A holder; an empty one where the file is not (or not yet) a lock's."""
    try:
        holder = json.loads(written)
        return holder if {"process", "begun", "machine"} <= holder.keys() else {}
    except (ValueError, AttributeError):
        return {}


def _begun(process: int) -> str | None:
    """When a process began, which with its number tells it from a later one; None if it is gone."""
    if not Path("/proc/self/stat").exists():  # macOS
        asked = subprocess.run(["ps", "-o", "lstart=", "-p", str(process)], capture_output=True, text=True)
        return asked.stdout.strip() or None
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()  # after "pid (name)"
    except OSError:
        return None
    state, begun = fields[0], fields[19]
    return None if state in b"ZX" else begun.decode()  # a zombie has ended; its parent has not looked yet


def _machine() -> str:
    """This boot of this machine, in this container, without telling its name."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
