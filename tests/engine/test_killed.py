"""Killed by SIGKILL at any moment, a run carries on to the same bits: `make test-slow` tries thirty moments.

A run is first counted: how many steps it has, how many files it writes and renames. Then it is killed at one of them,
drawn at random: in the middle of a step, when half a file is written, just before or after a rename, between two
stages. `--resume` must then leave exactly the files of the run that nobody disturbed. What was seen is written to
results/reliability/kill.json, one entry a moment.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import differences, findings, longtail, photographs, with_momentum, with_teacher, write_recipe

import longtail.files as files
from longtail.engine import stages
from longtail.engine.logs import NaNWatch
from longtail.methods.method import Method

RESULTS = Path(__file__).parents[2] / "results" / "reliability" / "kill.json"
RECIPES = {"teacher and student": with_teacher, "momentum encoder": with_momentum}
MOMENTS = (
    "in a step",
    "half a file written",
    "before the optimiser",
    "before a rename",
    "between stages",
    "in a step",
    "after a rename",
    "after the optimiser",
)
POINTS = 30


class Point(NamedTuple):
    recipe: str
    moment: str
    place: float  # in [0, 1): how far into the run
    delay: float  # in [0, 1): how far into a step
    damage: bool  # also flip a bit of the newest checkpoint


def points() -> list[Point]:
    """The same thirty every time. Each kind of moment comes with both recipes."""
    rng = random.Random(20)
    drawn = []
    for number in range(POINTS):
        recipe = list(RECIPES)[(number + number // len(MOMENTS)) % 2]
        moment = MOMENTS[number % len(MOMENTS)]
        if moment == "between stages":
            recipe = "teacher and student"
        drawn.append(Point(recipe, moment, rng.random(), rng.random(), damage=number % 3 == 2))
    return drawn


# In the process that is to die


class _Halves(io.BufferedWriter):
    """A file whose writer may die when half of its first piece is on the disk."""

    dies: Callable[[], bool]  # asked at the first piece; an empty file is no event
    die: Callable[[], None]
    begun = False

    def write(self, data: Any) -> int:
        begun, self.begun = self.begun, True
        if not begun and self.dies():
            super().write(memoryview(data)[: len(data) // 2])
            self.flush()
            self.die()
        return super().write(data)


def watch(send: Callable[[Any], None], moment: str = "", number: int = 0, delay: float = 0.0) -> None:
    """Count the events of every kind, and die at one of them: event `number` (from 1) of the kind of `moment`."""
    counts: Counter[str] = Counter()
    if not moment:
        util.Finalize(None, send, args=(counts,), exitpriority=10)

    def die() -> None:
        send((signal.SIGKILL, dict(counts)))
        time.sleep(60)

    def now(kind: str) -> bool:
        if threading.current_thread() is threading.main_thread():
            counts[kind] += 1
            return kind == moment and counts[kind] == number
        return False

    def around(owner: Any, name: str, before: str = "", after: str = "") -> None:
        original = getattr(owner, name)

        def patched(*args: Any, **kwargs: Any) -> Any:
            if before and now(before):
                die()
            answer = original(*args, **kwargs)
            if after and now(after):
                die()
            return answer

        setattr(owner, name, patched)

    def in_a_step(step: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*args: Any, **kwargs: Any) -> Any:
            if now("in a step"):
                threading.Timer(0.03 * delay, die).start()
            return step(*args, **kwargs)

        return patched

    def opened(path: Any, mode: str = "r", *rest: Any) -> Any:
        if mode != "wb":
            return open(path, mode, *rest)
        file = _Halves(io.FileIO(path, "wb"))
        file.dies, file.die = (lambda: now("half a file written")), die
        return file

    Method.forward = in_a_step(Method.forward)  # type: ignore[method-assign]
    around(NaNWatch, "look", before="before the optimiser")  # and after the backward pass
    around(Method, "after_step", before="after the optimiser")  # the averages have not followed yet
    around(os, "replace", before="before a rename", after="after a rename")
    # A teacher that is finished but not in the cache; one whose state is still there; a student that has not begun.
    around(stages, "_put_into_cache", before="between stages")
    around(stages.shutil, "rmtree", before="between stages")
    around(stages, "_train_stage", before="between stages")
    files.open = opened  # type: ignore[attr-defined]  (in the place of the builtin)


# From outside


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Any], Counter[str]]]:
    """Of each recipe: its file, what a run of it leaves, and how many events it had."""
    done: dict[str, tuple[Path, dict[str, Any], Counter[str]]] = {}
    data = photographs(tmp_path_factory.mktemp("data") / "photographs")

    def of(name: str) -> tuple[Path, dict[str, Any], Counter[str]]:
        if name not in done:
            cwd = tmp_path_factory.mktemp("straight")
            recipe = write_recipe(cwd / "recipe.json", RECIPES[name](data))
            ran = longtail(*command(recipe), cwd=cwd, hook=watch)
            assert ran.code == 0, ran.err
            done[name] = recipe, findings(cwd / "run"), ran.noted
        return done[name]

    return of


def command(recipe: Path) -> tuple[str | Path, ...]:
    return "train", "--config", recipe, "--out", "run", "--device", "cpu", "--workers", "2", "--resume"


def kill_and_resume(point: Point, cwd: Path, undisturbed: Any) -> dict[str, Any]:
    recipe, straight, counts = undisturbed(point.recipe)
    number = 1 + int(point.place * counts[point.moment])
    killed = longtail(*command(recipe), cwd=cwd, hook=watch, given=(point.moment, number, point.delay))
    assert killed.code == -signal.SIGKILL, killed.err
    left = sorted(path.relative_to(cwd / "run").as_posix() for path in (cwd / "run").rglob("*") if path.is_file())
    damaged = damage_newest(cwd / "run") if point.damage else None
    resumed = longtail(*command(recipe), cwd=cwd)
    assert resumed.code == 0, resumed.err
    if damaged:
        assert f"{damaged} is damaged" in resumed.err
    epochs = [json.loads(line)["epoch"] for line in (cwd / "run" / "metrics.jsonl").read_text().splitlines()]
    return {
        "recipe": point.recipe,
        "moment": point.moment,
        "event": f"{number} of {counts[point.moment]}",
        "left_unfinished": [name for name in left if name.endswith(".tmp")],
        "checkpoints_left": sum(name.endswith(".safetensors") and "step-" in name for name in left),
        "newest_damaged": damaged is not None,
        "carried_on_from": re.findall(r"carrying on from (.*)", resumed.out),
        "epochs": epochs,
        "differing_files": differences(cwd / "run", straight),
        "compared_files": sum(value is not None for value in straight.values()),
    }


def damage_newest(run: Path) -> str | None:
    """Flip a bit of the newest checkpoint, if there is an older one."""
    found = sorted(run.rglob("step-*.safetensors"))
    found = [path for path in found if path.parent == found[-1].parent]
    if len(found) < 2:
        return None
    data = bytearray(found[-1].read_bytes())
    data[len(data) // 2] ^= 1
    found[-1].write_bytes(data)
    return found[-1].name


def check(seen: dict[str, Any]) -> None:
    assert seen["differing_files"] == []
    assert seen["compared_files"] >= 7
    assert seen["epochs"] == [1, 2, 3]


@pytest.mark.parametrize(
    "point",
    [
        Point("teacher and student", "half a file written", 0.55, 0.0, damage=False),
        Point("teacher and student", "in a step", 0.9, 0.5, damage=True),
        Point("teacher and student", "between stages", 0.4, 0.0, damage=False),
    ],
    ids=lambda point: point.moment,
)
def test_a_killed_run_carries_on_to_the_same_bits(point: Point, tmp_path: Path, undisturbed: Any) -> None:
    check(kill_and_resume(point, tmp_path, undisturbed))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(POINTS))
def test_thirty_moments(number: int, tmp_path: Path, undisturbed: Any) -> None:
    seen = kill_and_resume(points()[number], tmp_path, undisturbed)
    record(number, seen)
    check(seen)


def record(number: int, seen: dict[str, Any]) -> None:
    from longtail.engine.runfolder import describe_environment

    try:
        before = json.loads(RESULTS.read_text())["moments"]
    except FileNotFoundError:
        before = {}
    moments = {int(key): value for key, value in before.items()} | {number: seen}
    identical = sum(not entry["differing_files"] for entry in moments.values())
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "what": "runs killed by SIGKILL and resumed, compared file by file with an undisturbed one",
        "command": "pytest -m slow tests/engine/test_killed.py",
        "environment": describe_environment(),
        "killed": len(moments),
        "identical": identical,
        "moments": dict(sorted(moments.items())),
    }
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")
