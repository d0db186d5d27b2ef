"""Work on every row of a table, in threads, with a progress bar on a terminal.

Threads are enough: reading files, decoding and hashing leave the interpreter free.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_CHUNK = 64  # rows a task


def for_rows(n: int, work: Callable[[int], None], title: str, progress: bool = True) -> None:
    """work(i) for i in 0 .. n - 1. The first exception, or Ctrl-C, stops it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    def chunk(start: int) -> int:
        rows = range(start, min(start + _CHUNK, n))
        for row in rows:
            work(row)
        return len(rows)

    console = Console(stderr=True)
    columns = TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        with Progress(*columns, console=console, transient=True, disable=not (progress and console.is_terminal)) as bar:
            task = bar.add_task("", total=n)
            for done in pool.map(chunk, range(0, n, _CHUNK)):
                bar.advance(task, done)
    finally:
        pool.shutdown(cancel_futures=True)
