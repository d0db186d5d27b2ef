"""Signals in the processes that read images.

A terminal's Ctrl-C and a cluster that stops a job reach every process of it. Only the run itself may answer: it still
wants the batches that are under way, and then writes its checkpoint. A worker ends when the run says so, or is gone.
"""

import multiprocessing
import os
import signal
import threading


def leave_signals_to_the_run(worker: int) -> None:
    """For `worker_init_fn`. torch's own handler would end the worker, and with it the run, before the checkpoint."""
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_obey_the_run, daemon=True).start()


def _obey_the_run() -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)


def _end_with_the_run() -> None:
    """torch watches the parent's number, which under "forkserver" is the server's: it and the workers would stay."""
    run = multiprocessing.parent_process()
    assert run is not None, "a worker is started by the run"
    run.join()
    os._exit(1)
