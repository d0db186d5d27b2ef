"""Signals in the processes that read images.

A terminal's Ctrl-C and a cluster that stops a job reach every process of it. Only the run itself may answer: it still
wants the batches that are under way, and then writes its checkpoint. A worker ends when the run says so, or is gone.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

_KNOWS_SENDERS = hasattr(signal, "sigwaitinfo")  # macOS does not say who has sent a signal


@contextlib.contextmanager
def starting_workers() -> Iterator[None]:
    """What is started in here begins with SIGTERM blocked.

    A signal goes to any thread that does not block it, and "spawn" and "forkserver" import NumPy, whose threads take
    over what is blocked by then, long before a worker has anything to say.
    """
    if not _KNOWS_SENDERS:
        yield
        return
    resource_tracker.ensure_running()  # before, for its start lets SIGTERM through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_run(worker: int) -> None:
    """For `worker_init_fn`. torch's own handler would end the worker, and with it the run, before the checkpoint."""
    run = multiprocessing.parent_process()  # under "forkserver" not the process that has forked
    assert run is not None, "a worker is started by the run"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if _KNOWS_SENDERS:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey, args=(run,), daemon=True).start()
    threading.Thread(target=_end_with, args=(run,), daemon=True).start()


def _obey(run: Any) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != run.pid:
        pass
    os._exit(0)


def _end_with(run: Any) -> None:
    """torch watches the parent's number, which under "forkserver" is the server's: it and the workers would stay."""
    run.join()
    os._exit(1)
