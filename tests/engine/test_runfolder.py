"""One run in a folder, nothing of another's overwritten, nothing left where nothing came of it."""

import contextlib
import csv
import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from small_disk import read_only, small_disk

from longtail import recipe
from longtail.engine import lock, runfolder
from longtail.engine.runfolder import RunFolder
from longtail.errors import LongtailError

RECIPE = {"seed": 0, "data": {"source": "digits-lt", "root": None}, "stages": [{"epochs": 3, "steps_at": (0.8, 0.9)}]}

HOLDER = """
import pathlib, sys, time
from longtail.engine.lock import Lock
Lock(pathlib.Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


# The lock


def test_a_living_holder_is_named_and_a_killed_one_forgotten(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with holder(path) as process:
        with pytest.raises(LongtailError, match=rf"in use by process {process.pid}: .*--out"):
            lock.Lock(path).acquire()
        process.kill()
        # Nobody has waited for it yet, so its number still exists, as a zombie.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        lock.Lock(path).acquire()
    assert json.loads(path.read_text())["process"] == os.getpid()
    with pytest.raises(LongtailError, match=f"in use by process {os.getpid()}"):
        lock.Lock(path).acquire()


def test_only_its_holder_releases_a_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    mine = lock.Lock(path)
    mine.acquire()
    content = path.read_text()
    rewrite(path, machine="elsewhere")  # taken over while this process was suspended
    mine.release()
    assert path.exists()
    path.write_text(content)
    mine.release()
    assert list(tmp_path.iterdir()) == []


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_number_used_again_is_another_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock.Lock(path).acquire()
    rewrite(path, begun="1")
    lock.Lock(path).acquire()
    assert json.loads(path.read_text())["begun"] != "1"


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"\xff"])
def test_what_cannot_be_judged_is_judged_by_its_silence(tmp_path: Path, content: bytes | None) -> None:
    """Another machine's lock, or one that was not finished: held while it is touched."""
    path = tmp_path / ".lock"
    lock.Lock(path).acquire()
    rewrite(path, machine="elsewhere")
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LongtailError, match=r"in use on another machine \d s ago"):
        lock.Lock(path).acquire()
    long_ago = time.time() - lock.SILENCE - 10
    os.utime(path, (long_ago, long_ago))
    lock.Lock(path).acquire()
    assert json.loads(path.read_text())["process"] == os.getpid()


def test_a_holder_touches_its_lock_until_it_releases_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "BEAT", 0.01)
    path = tmp_path / ".lock"
    held = lock.Lock(path)
    held.acquire()
    os.utime(path, (0, 0))
    while path.stat().st_mtime == 0:
        time.sleep(0.01)
    assert time.time() - path.stat().st_mtime < 60
    threads = threading.active_count()
    held.release()
    while threading.active_count() == threads:
        time.sleep(0.01)


def test_of_many_that_find_a_stale_lock_one_gets_it(tmp_path: Path) -> None:
    path, go = tmp_path / ".lock", tmp_path / "go"
    lock.Lock(path).acquire()
    rewrite(path, begun="1")
    children = []
    for _ in range(8):
        if (child := os.fork()) == 0:
            while not go.exists():
                pass
            try:
                lock.Lock(path).acquire()
                time.sleep(1)
                os._exit(0)
            except BaseException as error:
                os._exit(1 if isinstance(error, LongtailError) else 2)
        children.append(child)
    go.touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert sorted(codes) == [0] + [1] * 7


@pytest.mark.parametrize(("where", "what"), [(Path, "write_text"), (os, "link"), (Path, "unlink")])
def test_a_process_killed_while_it_locks_leaves_no_riddle(tmp_path: Path, where: Any, what: str) -> None:
    """The next one need not wait until a lock that cannot be read has been silent for minutes."""
    path = tmp_path / ".lock"
    if (child := os.fork()) == 0:
        setattr(where, what, lambda *_, **__: os._exit(9))
        lock.Lock(path).acquire()
    os.waitpid(child, 0)
    lock.Lock(path).acquire()
    assert json.loads(path.read_text())["process"] == os.getpid()


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / ".lock"
    lock.Lock(path).acquire()
    with pytest.raises(LongtailError, match=f"in use by process {os.getpid()}"):
        lock.Lock(path).acquire()
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_the_lock_tells_no_name(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    lock.Lock(path).acquire()
    assert os.uname().nodename not in path.read_text()


# The folder


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "first"
    with RunFolder(path) as run:
        run.describe(RECIPE)
        run.write_classes(["cat", 'a "b", c\nd', "x\udcff"], [9, 2, 1], ["many", "few", "few"])
        with pytest.raises(LongtailError, match="in use by process"), RunFolder(path, resume=True):
            pass
        (path / "result.json").write_text("{}")
    assert files(path) == ["classes.csv", "config.json", "result.json"]
    with open(path / "classes.csv", newline="", errors="surrogateescape") as file:
        assert list(csv.reader(file)) == [
            ["index", "name", "train_count", "group"],
            ["0", "cat", "9", "many"],
            ["1", 'a "b", c\nd', "2", "few"],
            ["2", "x\udcff", "1", "few"],
        ]
    with pytest.raises(LongtailError, match=r"holds a finished run: .*--resume, or choose another --out"):
        RunFolder(path).__enter__()
    with RunFolder(path, resume=True) as run:
        assert run.resumed
    assert files(path) == ["classes.csv", "config.json", "result.json"]


def stopped_run(path: Path, error: BaseException, *found: str, resume: bool = False) -> None:
    with RunFolder(path, resume=resume) as run:
        assert not run.resumed
        run.describe(RECIPE)
        run.write_classes(["a"], [1], ["few"])
        (path / "teacher").mkdir()
        for name in found:
            (path / name).touch()
        raise error


def test_an_unfinished_run_is_continued_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):  # nothing to resume yet: it starts
        stopped_run(tmp_path, KeyboardInterrupt(), "metrics.jsonl", resume=True)
    with pytest.raises(LongtailError, match="holds an unfinished run: continue it with --resume"):
        RunFolder(tmp_path).__enter__()
    for leftover in ("config.json.tmp", ".lock.1.tmp", "teacher/tmp1.tmp/state.safetensors"):  # of a killed process
        (tmp_path / leftover).parent.mkdir(exist_ok=True)
        (tmp_path / leftover).touch()
    with RunFolder(tmp_path, resume=True) as run:
        assert run.resumed
        moved = {"source": "digits-lt", "root": "/moved", "on_bad_image": "skip"}
        run.describe(RECIPE | {"data": moved})
        assert json.loads((tmp_path / "config.json").read_text())["recipe"]["data"] == moved
        with pytest.raises(LongtailError, match=r"another recipe \(stages\[0\].epochs was 3, is 4\)"):
            run.describe(RECIPE | {"stages": [{"epochs": 4, "steps_at": [0.8, 0.9]}]})
    assert files(tmp_path) == ["classes.csv", "config.json", "metrics.jsonl", "teacher"]


def test_a_run_of_an_earlier_version_lacks_settings_that_are_new(tmp_path: Path) -> None:
    now = recipe.to_dict(recipe.Recipe(recipe.Data("digits-lt"), (recipe.Stage("gml"),)))
    with RunFolder(tmp_path) as run:
        run.describe({**now, "stages": [{k: v for k, v in now["stages"][0].items() if k != "ema"}]})
        (tmp_path / "metrics.jsonl").touch()
    with RunFolder(tmp_path, resume=True) as run:
        with pytest.raises(LongtailError, match=r"another recipe \(stages\[0\].ema was None"):
            run.describe(now)
        run.describe(now, lambda then: recipe.to_dict(recipe.from_dict(then)))
    assert "ema" in json.loads((tmp_path / "config.json").read_text())["recipe"]["stages"][0]


def test_another_environment_is_worth_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder(tmp_path) as run:
        run.describe(RECIPE)
        (tmp_path / "metrics.jsonl").touch()
    then = runfolder.describe_environment()
    monkeypatch.setattr(runfolder, "describe_environment", lambda: then | {"threads": 99})
    with RunFolder(tmp_path, resume=True) as run, pytest.warns(UserWarning, match=r"threads was \d+, is 99"):
        run.describe(RECIPE)


@pytest.mark.parametrize("there_before", [True, False])
def test_bad_input_leaves_nothing_behind(tmp_path: Path, there_before: bool) -> None:
    path = tmp_path / "runs" / "first"
    if there_before:
        path.mkdir(parents=True)
    with pytest.raises(LongtailError, match="k is under"):
        stopped_run(path, LongtailError("k is under k_m C"))
    assert files(tmp_path) == (["runs", "runs/first"] if there_before else [])


def test_what_was_found_stays(tmp_path: Path) -> None:
    with pytest.raises(LongtailError, match="not finite"):
        stopped_run(tmp_path / "run", LongtailError("the loss is not finite"), "nonfinite.json")
    assert files(tmp_path / "run") == ["classes.csv", "config.json", "nonfinite.json", "teacher"]


def test_a_run_that_was_killed_before_it_found_anything_may_be_started_anew(tmp_path: Path) -> None:
    with RunFolder(tmp_path) as run:
        run.describe(RECIPE)
    with RunFolder(tmp_path) as run:
        assert not run.resumed
        run.describe(RECIPE | {"seed": 1})
    assert json.loads((tmp_path / "config.json").read_text())["recipe"]["seed"] == 1


def test_a_run_that_was_killed_while_it_described_itself_may_be_started_anew(tmp_path: Path) -> None:
    for leftover in ("config.json.tmp", ".lock.1.tmp"):
        (tmp_path / leftover).touch()
    with RunFolder(tmp_path, resume=True) as run:
        assert not run.resumed
        assert files(tmp_path) == [".lock"]


@pytest.mark.parametrize("name", ["thesis.tex", "config.json", "notes.tmp"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_folder_of_something_else_is_not_touched(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / name).write_text('{"seed": 1}')
    with pytest.raises(LongtailError, match=rf"not the folder of a run \(it holds {name}\)"):
        RunFolder(tmp_path, resume=resume).__enter__()
    assert files(tmp_path) == [name]
    assert (tmp_path / name).read_text() == '{"seed": 1}'


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(LongtailError, match=r"cannot write .*run .File exists"), RunFolder(tmp_path / "run"):
        pass


@pytest.mark.parametrize("inside", [Path(), Path("runs/first")])
def test_a_read_only_folder(tmp_path: Path, inside: Path) -> None:
    with read_only(tmp_path / "disk") as disk:
        with pytest.raises(LongtailError, match=r"cannot write .*: choose a folder that can be written to with --out"):
            RunFolder(disk / inside).__enter__()
        assert files(disk) == []


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk / "run").mkdir()
        with contextlib.suppress(OSError):
            (disk / "other").write_bytes(bytes(1 << 20))
        with pytest.raises(LongtailError, match="No space left on device"):
            RunFolder(disk / "run").__enter__()
        assert files(disk / "run") == []


def test_the_record_names_no_machine_and_no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = "/home/ada"
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(sys, "argv", [f"{home}/bin/longtail", "train", f"--data-root={home}/data", "/mnt/home/ada/x"])
    with RunFolder(tmp_path / "run") as run:
        run.describe(RECIPE | {"data": {"source": home, "root": f"{home}/data", "other": f"{home}-2"}})
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["command"] == ["longtail", "train", "--data-root=~/data", "/mnt/home/ada/x"]
    assert record["recipe"]["data"] == {"source": "~", "root": "~/data", "other": f"{home}-2"}
    assert os.uname().nodename not in json.dumps(record)
    assert record["environment"]["versions"]["torch"]


def test_the_commit_is_that_of_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of the project in which somebody has installed it."""

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    (tmp_path / "longtail" / "engine").mkdir(parents=True)
    module, init = tmp_path / "longtail" / "engine" / "runfolder.py", tmp_path / "longtail" / "__init__.py"
    init.touch()
    monkeypatch.setattr(runfolder, "__file__", str(module))
    assert runfolder._commit() is None
    git("init")
    git("commit", "--allow-empty", "-m", "theirs")
    assert runfolder._commit() is None
    git("add", "longtail/__init__.py")
    git("commit", "-m", "ours")
    assert runfolder._commit() == git("rev-parse", "HEAD")
    init.write_text("changed")
    assert runfolder._commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert runfolder._commit() is None
