"""How long anybody's data take before a training: inspecting CIFAR-100, and tables of a million rows.

    LONGTAIL_DATA=... python -m benchmarks.tables

`longtail inspect` promises 50,000 images of CIFAR's size in under a minute on two cores; a table promises under 100
bytes a row beyond its path. Both are checked here. Lists have the form and length of ImageNet-21k's.
"""

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import write_result
from longtail.data import lists, samplers
from longtail.data.benchmarks import cifar, data_root
from longtail.data.inspect import inspect_table

SECONDS, BYTES = 60, 100
ROWS, CLASSES = 1_000_000, 8142


def inspect_cifar() -> dict[str, Any]:
    """From parquet: decoding, copies, near-copies across splits, groups; all of `longtail inspect` but the import."""
    table = cifar(100, data_root(None))
    table = table.take(np.sort(np.concatenate([table.rows("train"), table.rows("test")])))
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        report = inspect_table(table, folder, progress=False)
        seconds = time.perf_counter() - start
    assert seconds < SECONDS, seconds
    copies = report.facts["copies"]["across"]["train and test"]
    return {"images": len(table), "seconds": round(seconds, 1), "identical pairs between train and test": copies}


def million_rows() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"train/n{i % CLASSES:08d}/n{i % CLASSES:08d}_{i}.JPEG" for i in range(ROWS)]
        rows = (f"{path},class {i % CLASSES},train,camera {i % 999}\n" for i, path in enumerate(paths))
        file = Path(folder) / "list.csv"
        file.write_text("path,label,split,group\n" + "".join(rows))
        text = sum(map(len, paths))
        del paths
        before = pa.total_allocated_bytes()
        start = time.perf_counter()
        table = lists.load(file)
        seconds = time.perf_counter() - start
    assert table.groups is not None
    kept = pa.total_allocated_bytes() - before + table.labels.nbytes + table.split.nbytes + table.groups.nbytes
    beyond = (kept - text) / ROWS
    assert beyond < BYTES, beyond
    start = time.perf_counter()
    samplers.order("class-balanced", table.labels, table.num_classes, seed=0, epoch=0)
    order = time.perf_counter() - start
    tracemalloc.start()
    table.take(np.arange(0, ROWS, 2)).summary()
    peak = tracemalloc.get_traced_memory()[1]
    return {
        "rows": ROWS,
        "classes": CLASSES,
        "seconds to read": round(seconds, 1),
        "bytes a row beyond the path": round(beyond, 1),
        "seconds for an epoch's order": round(order, 2),
        "MB to take half and summarise": round(peak / 2**20),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    results = {"inspect": inspect_cifar(), "list": million_rows()}
    for name, row in results.items():
        print(name + ": " + ", ".join(f"{key} {value:,}" for key, value in row.items()))
    write_result("tables", results)


if __name__ == "__main__":
    main()
