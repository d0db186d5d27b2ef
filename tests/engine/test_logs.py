"""Rows neither twice nor missing, means that nobody waits for, and a NaN caught with what is needed to replay it."""

import errno
import io
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_disk import small_disk
from torch.utils._python_dispatch import TorchDispatchMode

from longtail.engine import checkpoint, logs
from longtail.engine.logs import Metrics, NaNWatch, Progress, StepLog
from longtail.errors import LongtailError
from longtail.types import Losses

# metrics.jsonl


def epochs_in(path: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in path.read_text().splitlines()]


def test_a_resumed_run_has_every_epoch_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for epoch in (1, 2, 3):
        metrics.write({"epoch": epoch, "loss": 0.1 + 0.2, "first": True})
    with open(path, "a") as file:
        file.write('{"epoch": 4, "lo')  # killed here; the checkpoint knows of epoch 2
    metrics = Metrics(path, keep_through=2)
    assert epochs_in(path) == [1, 2]
    metrics.write({"epoch": 3, "first": False})
    assert epochs_in(path) == [1, 2, 3]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[0]["loss"] == 0.1 + 0.2
    assert [row["first"] for row in rows] == [True, True, False]
    Metrics(path)
    assert path.read_text() == ""
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"epoch": null}', '{"epoch": "x"}', "{}", "[" * 100_000])
def test_a_line_that_is_no_row_is_dropped_and_missing_rows_are_told(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"epoch": 1}}\n{line}\n')
    with pytest.warns(UserWarning, match="has 1 of the 2 epochs"):
        Metrics(path, keep_through=2)
    assert path.read_text() == '{"epoch": 1}\n'


def test_every_row_is_json_that_any_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    Metrics(path).write({"epoch": 1, "nan": math.nan, "inf": -math.inf, "few": None, "name": "犬"})
    row = json.loads(path.read_text(), parse_constant=lambda constant: pytest.fail(constant))
    assert row == {"epoch": 1, "nan": None, "inf": None, "few": None, "name": "犬"}


def test_a_row_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    metrics.write({"epoch": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(LongtailError, match=r"metrics.jsonl .No space left on device.: free some space"):
            metrics.write({"epoch": 2})
    assert epochs_in(path) == [1]


def test_a_row_on_a_disk_that_is_really_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        metrics = Metrics(disk / "metrics.jsonl")
        metrics.write({"epoch": 1})
        with pytest.raises(LongtailError, match="No space left on device"):
            metrics.write({"epoch": 2, "text": "x" * 100_000})
        assert epochs_in(disk / "metrics.jsonl") == [1]


# Means

steps = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abc"), st.floats(-1e3, 1e3, width=32), min_size=1), st.integers(1, 9)),
    min_size=1,
    max_size=8,
)


def add_all(log: StepLog, some: list[tuple[dict[str, float], int]]) -> None:
    for parts, images in some:
        log.add({name: torch.tensor(value) for name, value in parts.items()}, images)


@given(steps, st.integers(0, 8))
def test_means_are_weighted_by_images_and_survive_an_interruption(some: Any, interrupted: int) -> None:
    log = StepLog()
    add_all(log, some)
    expected = {}
    for name in "abc":
        values = [(parts[name], images) for parts, images in some if name in parts]
        if values:
            expected[name] = math.fsum(v * n for v, n in values) / sum(n for _, n in values)
    means = log.means()
    assert means == pytest.approx(expected, rel=1e-12, abs=1e-9)

    first = StepLog()
    add_all(first, some[:interrupted])
    second = StepLog(first.state())
    add_all(second, some[interrupted:])
    assert second.means() == means  # to the bit


def test_the_state_of_a_log_goes_through_a_checkpoint(tmp_path: Path) -> None:
    log = StepLog()
    add_all(log, [({"cls": 0.1, "gml": 0.7}, 3), ({"cls": 0.2}, 4)])
    checkpoint.save(tmp_path, log.state(), step=1)
    assert StepLog(checkpoint.load(tmp_path)).means() == log.means()
    assert StepLog(StepLog().state()).means() == {}


def test_ranks_are_summed_not_averaged() -> None:
    """Rank 0 has three images with loss 1, rank 1 has one with loss 5."""
    mine, theirs = StepLog(), StepLog()
    add_all(mine, [({"loss": 1.0}, 3)])
    add_all(theirs, [({"loss": 5.0}, 1)])
    sent: list[torch.Tensor] = []
    theirs.means(lambda totals: sent.append(totals) or totals)
    assert mine.means(lambda totals: totals + sent[0]) == {"loss": 2.0}


class NoWaiting(TorchDispatchMode):
    """Fails when a value is asked for on the host, which on an accelerator would wait for it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_a_step_waits_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_to_host", lambda values: (values, Arrival(after=99)))
    log, watch = StepLog(), NaNWatch(tmp_path / "nonfinite.json")
    values = torch.ones(4, requires_grad=True)
    losses = Losses(values * 2, {"cls": torch.tensor(2.0)})
    with NoWaiting():
        for step in range(3):
            log.add({"loss": losses.per_sample.mean(), **losses.parts}, 4)
            watch.look(losses, 0, step, torch.arange(4))
    assert log.means() == {"loss": 2.0, "cls": 2.0}


def test_setting_the_clock_back_does_not_shorten_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "time", lambda: -now)
    log = StepLog()
    now += 5
    log = StepLog(log.state())
    now += 2
    assert log.seconds == 7


# The watch


class Arrival:
    """Stands for a device's event: it is there so many steps after its own."""

    now = 0  # the step

    def __init__(self, after: int) -> None:
        self.due = Arrival.now + after

    def query(self) -> bool:
        return Arrival.now >= self.due

    def synchronize(self) -> None:
        pass


def losses_of(value: float) -> Losses:
    return Losses(torch.tensor([1.0, value, 1.0]), {"cls": torch.tensor(1.0), "gml": torch.tensor(value)})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_loss_stops_at_its_step_and_can_be_replayed(tmp_path: Path, value: float) -> None:
    watch = NaNWatch(tmp_path / "nonfinite.json")
    watch.look(losses_of(0.5), 2, 6, torch.tensor([1, 2, 3]))
    with pytest.raises(LongtailError, match=r"in epoch 3 at step 7 .*cls 1, gml .*nonfinite.json"):
        watch.look(losses_of(value), 2, 7, torch.tensor([4, 5, 6]))
    saved = json.loads((tmp_path / "nonfinite.json").read_text())
    parts = {"loss": str(value), "cls": "1", "gml": str(value)}
    assert saved == {"epoch": 2, "step": 7, "parts": parts, "ids": [4, 5, 6]}


def test_a_bad_part_of_a_good_loss_stops_too(tmp_path: Path) -> None:
    losses = Losses(torch.ones(2), {"kd": torch.tensor(math.nan)})
    with pytest.raises(LongtailError, match="kd nan"):
        NaNWatch(tmp_path / "nonfinite.json").look(losses, 0, 0, torch.arange(2))


@pytest.mark.parametrize(("arrives_after", "noticed_at"), [(0, 3), (2, 5), (10**6, 7)])
def test_on_a_device_it_is_noticed_once_it_has_arrived_or_the_delay_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrives_after: int, noticed_at: int
) -> None:
    monkeypatch.setattr(logs, "_to_host", lambda values: (values.clone(), Arrival(arrives_after)))
    monkeypatch.setattr(Arrival, "now", 0)
    watch = NaNWatch(tmp_path / "nonfinite.json", delay=4)

    def train() -> None:
        for step in range(20):
            Arrival.now = step
            watch.look(losses_of(math.nan if step >= 3 else 1.0), 0, step, torch.tensor([step]))

    with pytest.raises(LongtailError, match="at step 3"):
        train()
    assert Arrival.now == noticed_at
    assert json.loads((tmp_path / "nonfinite.json").read_text())["ids"] == [3]


def test_finish_looks_at_all_that_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_to_host", lambda values: (values, Arrival(10**6)))
    watch = NaNWatch(tmp_path / "nonfinite.json")
    watch.look(losses_of(1.0), 0, 0, torch.tensor([0]))
    watch.finish()
    watch.look(losses_of(math.nan), 0, 1, torch.tensor([1]))
    with pytest.raises(LongtailError, match="at step 1"):
        watch.finish()


# What is shown


def talk(progress: Progress) -> None:
    progress.say("100 classes")
    for done in range(1, 4):
        progress.step(0, done, 3)
    progress.say("epoch 1/2  loss 1.0")
    progress.step(1, 1, 3)
    progress.close()


def test_lines_only_where_nobody_watches() -> None:
    stream = io.StringIO()
    talk(Progress(stream))
    assert stream.getvalue() == "100 classes\nepoch 1/2  loss 1.0\n"


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen, terminal = os.openpty()
    with open(terminal, "w") as stream:
        talk(Progress(stream))
        stream.flush()
        shown = ""
        while "epoch 2" not in shown:  # the system hands it over in pieces
            shown += os.read(screen, 100_000).decode()
    os.close(screen)
    assert "100 classes" in shown
    assert "epoch 1" in shown
    assert "1/3" in shown
    assert shown.index("1/3") < shown.index("epoch 1/2  loss 1.0") < shown.rindex("epoch 2")


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    reader, writer = os.pipe()
    stream = open(writer, "w")  # noqa: SIM115  (closing it fails, as it should)
    progress = Progress(stream)
    progress.say("heard")
    os.close(reader)
    progress.say("unheard")
    progress.say("still running")
    with pytest.raises(BrokenPipeError):
        stream.close()
