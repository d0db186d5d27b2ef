"""The processes that read images end with the run, however it ends."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

RUN = """
import multiprocessing, os, sys, time
import numpy
from longtail.data.workers import leave_signals_to_the_run, starting_workers

def work():
    leave_signals_to_the_run(0)
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work) for _ in range(2)]
    with starting_workers():
        for worker in workers:
            worker.start()
    sys.stdin.readline()
    for worker in workers:
        worker.terminate()
        worker.join(20)
        print(worker.exitcode, flush=True)
"""


def start(tmp_path, method):
    """A run, and the numbers of its workers."""
    (tmp_path / "run.py").write_text(RUN)
    command = [sys.executable, tmp_path / "run.py", method]
    threads = os.environ | {"OPENBLAS_NUM_THREADS": "3", "OMP_NUM_THREADS": "3"}  # NumPy then starts some
    run = subprocess.Popen(command, env=threads, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    return run, [int(run.stdout.readline()) for _ in range(2)]


@pytest.mark.parametrize("method", [m for m in ("forkserver", "spawn") if m in multiprocessing.get_all_start_methods()])
def test_no_worker_outlives_a_killed_run(tmp_path, method):
    run, workers = start(tmp_path, method)
    run.send_signal(signal.SIGKILL)
    run.wait()
    until = time.monotonic() + 20
    while (left := [pid for pid in workers if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="macOS does not say who has sent a signal")
@pytest.mark.parametrize("method", [m for m in ("fork", "forkserver") if m in multiprocessing.get_all_start_methods()])
def test_the_run_alone_ends_its_workers(tmp_path, method):
    """A cluster that stops a job signals every process of it; the run still wants the batches under way."""
    run, workers = start(tmp_path, method)
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)
    assert all(map(alive, workers))
    assert run.communicate("now\n", timeout=60)[0].split() == ["0", "0"]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
