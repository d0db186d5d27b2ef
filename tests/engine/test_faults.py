"""What goes wrong outside: one sentence that says what to do, and a run that carries on to the same bits afterwards.

Every trial is the whole command in a process of its own, disturbed in the middle of an epoch.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Ran, differences, findings, longtail, photographs, with_momentum, write_recipe
from small_disk import read_only, small_disk

from longtail.engine.device import choose
from longtail.engine.inputs import Inputs
from longtail.engine.stages import load_data
from longtail.methods.method import Method
from longtail.recipe import Recipe, load

STEP = 5  # of nine; the first three are epoch 1


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photographs(tmp_path_factory.mktemp("data") / "photographs")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Any]:
    """What a run leaves that nobody disturbs."""
    cwd = tmp_path_factory.mktemp("straight")
    assert train(cwd, with_momentum(data)).code == 0
    return findings(cwd / "run")


def train(cwd: Path, recipe: Recipe, hook: Any = None, *given: Any, out: str | Path = "run") -> Ran:
    cwd.mkdir(exist_ok=True)
    path = write_recipe(cwd / "recipe.json", recipe)
    arguments = ("train", "--config", path, "--out", out, "--device", "cpu", "--workers", "2", "--resume")
    return longtail(*arguments, cwd=cwd, hook=hook, given=given)


def at_step(do: Callable[..., None], *args: Any, number: int = STEP) -> None:
    """In the run's process: once, when a step's weights are updated. The first update is preflight's."""
    after_step, done = Method.after_step, iter(range(10**9))

    def patched(method: Method) -> None:
        after_step(method)
        if next(done) == number:
            do(method, *args)

    Method.after_step = patched  # type: ignore[method-assign]


def one_sentence(ran: Ran) -> str:
    """What the command says when it gives up, with exit code 2 and without a traceback."""
    assert ran.code == 2, ran.err
    lines = [line for line in ran.err.splitlines() if line.startswith("longtail: ")]
    assert len(lines) == 1, ran.err
    assert "Traceback" not in ran.err, ran.err
    return lines[0]


# Signals


def signal_the_group(send: Any, number: int) -> None:
    """As a terminal's Ctrl-C and a cluster do: the processes that read images are told too."""
    at_step(lambda method: os.killpg(os.getpgid(0), number))


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_leaves_a_checkpoint_of_this_step(
    tmp_path: Path, data: Path, straight: dict[str, Any], number: int, code: int
) -> None:
    recipe = with_momentum(data)
    stopped = train(tmp_path, recipe, signal_the_group, number)
    assert stopped.code == code, stopped.err
    assert f"stopped by {signal.Signals(number).name}; a checkpoint is written, --resume carries on" in stopped.out
    assert stopped.err == ""
    resumed = train(tmp_path, recipe)
    assert "carrying on from epoch 1, step 2" in resumed.out
    assert differences(tmp_path / "run", straight) == []


# Disks


def fill(send: Any, disk: str) -> None:
    def write(method: Method) -> None:
        with open(Path(disk) / "somebody else's", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    at_step(write)


def test_a_disk_that_fills_up(tmp_path: Path, data: Path, straight: dict[str, Any]) -> None:
    recipe = with_momentum(data)
    with small_disk(tmp_path / "disk", "24m") as disk:
        says = one_sentence(train(tmp_path / "cwd", recipe, fill, str(disk), out=disk / "run"))
        assert "(No space left on device): free some space and continue with --resume" in says
        (disk / "somebody else's").unlink()
        assert train(tmp_path / "cwd", recipe, out=disk / "run").code == 0
        assert differences(disk / "run", straight) == []


def test_a_read_only_output_folder(tmp_path: Path, data: Path) -> None:
    with read_only(tmp_path / "disk") as disk:
        says = one_sentence(train(tmp_path / "cwd", with_momentum(data), out=disk / "run"))
    assert "choose a folder that can be written to with --out" in says


# Images and those who read them


def take_away(send: Any, folder: str) -> None:
    def remove(method: Method) -> None:
        for image in Path(folder).glob("*.png"):
            image.rename(image.with_suffix(".away"))

    at_step(remove)


def test_images_that_disappear(tmp_path: Path, straight: dict[str, Any]) -> None:
    own = photographs(tmp_path / "photographs")
    recipe = with_momentum(own)
    says = one_sentence(train(tmp_path, recipe, take_away, str(own / "class 0")))
    assert str(own / "class 0") in says
    assert "cannot be read (No such file or directory)" in says
    for image in (own / "class 0").glob("*.away"):
        image.rename(image.with_suffix(".png"))
    assert train(tmp_path, recipe).code == 0
    found = findings(tmp_path / "run")
    assert {name: found[name] for name in found if name != "config.json"} == {
        name: straight[name] for name in straight if name != "config.json"
    }


def kill_a_worker(send: Any) -> None:
    def kill(method: Method) -> None:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)  # type: ignore[arg-type]
        time.sleep(0.2)

    at_step(kill)


def test_a_killed_worker(tmp_path: Path, data: Path, straight: dict[str, Any]) -> None:
    recipe = with_momentum(data)
    says = one_sentence(train(tmp_path, recipe, kill_a_worker))
    assert "a process that reads images was killed" in says
    assert "lower --workers" in says
    assert train(tmp_path, recipe).code == 0
    assert differences(tmp_path / "run", straight) == []


# The step itself


def ask_for_a_petabyte(send: Any) -> None:
    at_step(lambda method: torch.empty(1 << 50, dtype=torch.uint8))


def test_out_of_memory_says_what_to_lower(tmp_path: Path, data: Path) -> None:
    says = one_sentence(train(tmp_path, with_momentum(data), ask_for_a_petabyte))
    assert "out of memory: keep the batch and add --set accumulate=2 (or 4), or lower --batch-size" in says


def poison(send: Any, value: float) -> None:
    def spoil(method: Method) -> None:
        with torch.no_grad():
            next(method.backbone.parameters()).fill_(value)

    at_step(spoil)


@pytest.mark.parametrize("value", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)])
def test_a_loss_that_is_not_finite_names_step_parts_and_batch(
    tmp_path: Path, data: Path, straight: dict[str, Any], value: float
) -> None:
    recipe = with_momentum(data)
    says = one_sentence(train(tmp_path, recipe, poison, value))
    assert "the loss is not finite in epoch 2 at step 2 (loss nan, cls nan" in says
    left = json.loads((tmp_path / "run" / "nonfinite.json").read_text())
    assert (left["epoch"], left["step"]) == (1, 2)
    assert left["parts"]["loss"] == "nan"
    assert left["ids"] == ids_of(tmp_path / "run" / "config.json", left["epoch"], left["step"])
    assert train(tmp_path, recipe).code == 0  # it was not the images
    assert differences(tmp_path / "run", straight) == ["nonfinite.json"]


def ids_of(config: Path, epoch: int, step: int) -> list[int]:
    """The batch again, as docs/reliability.md has it."""
    recipe = load(config)
    stage, table = recipe.stages[-1], load_data(recipe.data)
    loader = Inputs.of(recipe, table, choose(recipe.precision, "cpu"), workers=0).train(stage, ("class",))
    return next(iter(loader.epoch(epoch, start_step=step))).ids.tolist()


# The clock


def let_the_clock_run_backwards(send: Any) -> None:
    started, calls = time.time(), iter(range(10**9))
    time.time = lambda: started - 3600.0 * next(calls)
    time.time_ns = lambda: int(1e9 * time.time())


def test_a_clock_that_goes_backwards(tmp_path: Path, data: Path, straight: dict[str, Any]) -> None:
    """Durations are from another clock, and which checkpoint is newest is in its name and not in its date."""
    recipe = with_momentum(data)
    assert train(tmp_path, recipe, both, signal.SIGTERM).code == 143
    first, second = sorted((tmp_path / "run" / "state").glob("step-*"))
    os.utime(first, (2e9, 2e9))
    os.utime(second, (0, 0))
    assert "carrying on from epoch 1, step 2" in train(tmp_path, recipe, let_the_clock_run_backwards).out
    assert differences(tmp_path / "run", straight) == []
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < row["seconds"] < 400 and row["images_per_second"] > 0 for row in rows)


def both(send: Any, number: int) -> None:
    let_the_clock_run_backwards(send)
    signal_the_group(send, number)
