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
from longtail.data.workers import leave_signals_to_the_run

def work():
    leave_signals_to_the_run(0)
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    workers = [context.Process(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    time.sleep(60)
"""


@pytest.mark.parametrize("method", [m for m in ("forkserver", "spawn") if m in multiprocessing.get_all_start_methods()])
def test_no_worker_outlives_a_killed_run(tmp_path, method):
    (tmp_path / "run.py").write_text(RUN)
    run = subprocess.Popen([sys.executable, tmp_path / "run.py", method], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    workers = [int(run.stdout.readline()) for _ in range(2)]
    run.send_signal(signal.SIGKILL)
    run.wait()
    until = time.monotonic() + 20
    while (left := [pid for pid in workers if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
