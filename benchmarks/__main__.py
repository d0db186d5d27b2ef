"""All benchmarks, one after the other, and then one table of what was to be reached: `make bench`.

    python -m benchmarks [--table]

Each is a process of its own, so that none measures what another left behind, and writes `results/bench/NAME.json`;
`--table` only prints the table of what is there.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import RESULTS

NAMES = (
    "mixture",
    "reembed",
    "step",
    "less_teacher",
    "segmentation",
    "augment",
    "communication",
    "startup",
    "cost",
    "tables",
)


class Line(NamedTuple):
    what: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    unit: str = "x"

    @property
    def reached(self) -> bool:
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def __str__(self) -> str:
        bound = f"at most {self.at_most:g}" if self.at_most else f"at least {self.at_least:g}" if self.at_least else ""
        verdict = ("yes" if self.reached else "NO") if bound else ""
        return f"{self.what:62s}{self.value:9.2f} {self.unit:3s} {bound:14s}{verdict}".rstrip()


def lines(results: Path = RESULTS) -> Iterator[Line]:
    """What the result files say, those that are there."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    for shape in found.get("mixture", {}).get("shapes", []):
        name = f"mixture, {shape['name']}"
        yield Line(f"{name}: both terms / three products", shape["ratio"]["both"], at_most=shape["target"])
        gain = shape["ms"]["both"] / shape["ms"]["in_bf16"]
        wanted = 1.5 if shape["target"] and shape["k"] > 10_000 else None
        yield Line(f"{name}: gain of bfloat16", gain, at_least=wanted)
        # The similarities themselves, and two more.
        bound = 3.0 if shape["target"] else None
        for precision, how in (("float32", "both"), ("bfloat16", "in_bf16")):
            memory = shape["memory_matrices"][how]
            yield Line(f"{name}: memory in similarity matrices, {precision}", memory, bound, unit="")
    for shape in found.get("reembed", {}).get("shapes", []):
        for way, ms in shape["ms"].items():
            if way != "all, autocast":
                yield Line(f"bank, {shape['name']}: {way} / all", ms / shape["ms"]["all, autocast"])
    if step := found.get("step"):
        yield Line("step / student and teacher on ready images", step["ratio"], at_most=step["target"])
    if less := found.get("less_teacher"):
        for row in less["rows"][1:]:
            bound = less["target"] if "once" in row["name"] else None
            yield Line(f"{row['name']} / two views, no teacher", row["ratio"], bound)
    if pixels := found.get("segmentation"):
        yield Line("segmentation: the GML term's share of a step", pixels["share"], pixels["target"], unit="")
    for row in found.get("augment", {}).get("rows", []):
        yield Line(f"views {', '.join(row['views'])} ({row['images']}): images a core / before", row["gain"])
    if startup := found.get("startup"):
        yield Line("longtail --help", startup["s"]["help"], startup["targets"]["help"], unit="s")
        yield Line("import longtail", startup["s"]["longtail"], startup["targets"]["import"], unit="s")
    if tables := found.get("tables"):
        yield Line("inspect: all of CIFAR-100", tables["inspect"]["seconds"], at_most=60, unit="s")
        yield Line(
            "a list of a million rows: beyond a path", tables["list"]["bytes a row beyond the path"], 100, unit="B"
        )
    for row in found.get("cost", {}).get("rows", []):
        if row["measured_ms"]:
            ratio = row["measured_ms"] / row["ms"]["CPU core"]
            yield Line(f"cost model, {row['work']}, {row['part']}: measured / predicted", ratio)


def main() -> None:
    if "--table" not in sys.argv[1:]:
        for name in NAMES:
            print(f"\n== {name}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)
        print()
    for line in lines():
        print(line)


if __name__ == "__main__":
    main()
