"""Writing a file so that a reader, a crash or a full disk finds all of the new one or all of the old one."""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from longtail.errors import LongtailError

_FULL = "free some space and continue with --resume"
_FORBIDDEN = "choose a folder that can be written to with --out"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
}


def cannot_write(path: Path, error: OSError) -> LongtailError:
    advice = _ADVICE.get(error.errno or 0, "check the disk and continue with --resume")
    return LongtailError(f"cannot write {path} ({error.strerror}): {advice}")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LongtailError(f"cannot make the folder {path} ({error.strerror}): choose another --out") from error


def told_apart(name: str, *where: str) -> str:
    """A folder's name, with six digits of what else was asked where anything was: no answer takes another's place."""
    said = [str(Path(word).resolve()) if Path(word).exists() else word for word in where if word]
    name = name.replace("/", "_")
    return f"{name}-{sha256(json.dumps(said).encode()).hexdigest()[:6]}" if said else name


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """Write `path` under the name `<path>.tmp`; when the block ends it is flushed to the disk and takes its place.

    On any error the temporary file goes and the old one stays. Only a killed process leaves a `.tmp` behind.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # network and user-space file systems that cannot
            raise
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    with atomic(path) as file:
        file.write(json.dumps(value, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or one sentence why not."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise LongtailError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested beyond reason
        raise LongtailError(f"{path} is not valid JSON: {str(error).splitlines()[0]}") from error
    if not isinstance(value, dict):
        raise LongtailError(f"{path}: expected a JSON object, found a {type(value).__name__}")
    return value
