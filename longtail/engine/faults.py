"""What goes wrong outside of this program, as one sentence that says what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import torch

from longtail.engine import dist
from longtail.errors import LongtailError
from longtail.files import cannot_write

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_HANGS_UP = ("closed by peer", "reset by peer", "Broken pipe", "Socket closed", "remote process exited")


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Faults of the machine leave this block as errors for people; mistakes of ours leave it as they are."""
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if (sentence := explain(error)) is None:
            raise
        raise LongtailError(sentence) from error


def explain(error: BaseException) -> str | None:
    text = str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return (
            "out of memory: keep the batch and add --set accumulate=2 (or 4), or lower --batch-size; "
            "a smaller bank (--set k=...) and --precision bfloat16 help too"
        )
    if "DataLoader worker" in text:
        return (
            "a process that reads images was killed, most often for lack of memory: lower --workers, or in a container "
            "raise its shared memory, and continue with --resume"
        )
    if dist.world() > 1 and any(sign in text for sign in _HANGS_UP):
        return f"rank {dist.rank()} stops because another rank of this run has ended: the reason stands in its output"
    if isinstance(error, OSError) and error.filename is not None:
        if error.errno in _CANNOT_WRITE:
            return str(cannot_write(Path(error.filename), error))
        return f"cannot use {error.filename}: {error.strerror}"
    return None
